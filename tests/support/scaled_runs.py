"""Runs of SFT, DPO and RL as a test and its torchrun children make them: on any number of processes, killed where asked."""

from __future__ import annotations

import io
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from accelerate.state import DistributedType, PartialState

from rewardlab.config import ConsistencyConfig, DPOConfig, PolicyConfig, RLConfig, SFTConfig
from rewardlab.data.files import write_atomic
from rewardlab.data.rows import with_frames
from rewardlab.demo.pairs import make_pairs
from rewardlab.metrics.running import Metric
from rewardlab.models.families import vision_token_ids
from rewardlab.processes import num_processes
from rewardlab.prompts.verification import CORRECT, REVISE, VERIFY, WRONG
from rewardlab.rewards.pairwise import Anchors, PairwiseReward, PolicyReward
from rewardlab.training import policy as policy_module
from rewardlab.training import sft as sft_module
from rewardlab.training.dpo import train_dpo
from rewardlab.training.policy_gradient.batch import whole_pass
from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.rl import train_rl
from rewardlab.training.sft import train_sft
from rewardlab.types import IMAGE_MARK, Choice, PreferencePair, Tie, choice_of
from rewardlab.verdicts.parse import format_verdict
from rewardlab.verdicts.turns import Look
from tests.support.killing import Kill, KilledError
from tests.support.preferring_judge import Prefers
from tests.support.rewards import TokenReward

SHARED: dict[str, Any] = {
    "template": "plain",
    "learning_rate": 1e-3,
    "lr_scheduler": "constant",
    "micro_batch_size": 4,
    "save_steps": 2,
    "max_steps": 4,
    "gradient_checkpointing": False,
    "data_workers": 0,  # processes that take longer to start than such a run takes
}


GENTLE = SHARED | {"learning_rate": 1e-4}  # Adam makes full steps of float noise in gradients that vanish


def pairs() -> list[PreferencePair]:
    made = make_pairs(32, seed=0, held_out=False)[0]
    said = [format_verdict(choice_of(pair.preferred or 0, pair.order), "x" * (n % 7)) for n, pair in enumerate(made)]
    return [replace(pair, attempts="2", judgment=text) for pair, text in zip(made, said, strict=True)]


def film(seed: int) -> bytes:
    """Sixteen frames of 56 x 84 px, in a real MP4."""
    buffer, dice = io.BytesIO(), np.random.default_rng(seed)
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = 84, 56, "yuv420p"
        for _ in range(16):
            frame = av.VideoFrame.from_ndarray(dice.integers(0, 255, (56, 84, 3), dtype=np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return buffer.getvalue()


def mixed() -> list[PreferencePair]:
    """In every eight: four with one image, two with none, one with three of two sizes, one with a video of four frames."""
    made = pairs()[:16]
    for n, pair in enumerate(made):
        kind = n % 8
        if kind in (1, 5):
            made[n] = replace(pair, images=())
        elif kind == 3:
            larger = with_frames(replace(pair, images=(), videos=(film(n),)), 1).images
            made[n] = replace(pair, images=pair.images * 2 + larger)
        elif kind == 6:
            made[n] = with_frames(replace(pair, images=(), videos=(film(n),)), 4)
    assert sorted({len(pair.images) for pair in made}) == [0, 1, 3, 4]
    return made


def tied() -> list[PreferencePair]:
    """Pairs with a picture in each answer, every third of which is a tie."""
    made, others = pairs()[:24], pairs()[1:]
    for n, pair in enumerate(made):
        first, second = (f"{IMAGE_MARK}{text}" for text in pair.responses)
        answers = (pair.images, others[n].images)
        made[n] = replace(pair, images=(), responses=(first, second), response_images=answers)
        if n % 3 == 1:
            made[n] = replace(made[n], preferred=None, tie=Tie.TIE if n % 2 else Tie.BOTH_BAD)
    return made


def collapsing(from_step: int, times: int) -> tuple[Any, list[tuple[int, float]]]:
    """A ``log`` by which the first ``times`` runs log no verdicts from a step on, and where it notes (step, rate)."""
    log, seen = PolicyTrainer.log, []

    def faulty(self: Any, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            seen.append((self.state.global_step, self.optimizer.param_groups[0]["lr"]))
            if self.state.global_step >= from_step and self._sampling.num_rollbacks < times:
                self._add_metrics({"reward/invalid_frac": 1.0})
        log(self, logs, start_time)

    return faulty, seen


FAR = (0, 5, 6)  # of eight rollouts: of another sampler, with log-probs far below the trainer's
LOOK, LOOKS = Look(0, (25, 0, 75, 50)), {0: 1, 1: 1, 3: 2}  # how often each of eight rollouts looks
UNEQUAL = (0.0, 1.0, 0.0, 1.0, 50.0, 3.0, 3.0, 3.0)  # rewards of a batch of eight


def first_row() -> int:
    """Where this process's rollouts begin in a batch of eight."""
    return 8 // num_processes() * int(os.environ.get("RANK", "0"))


@contextmanager
def unequal_rollouts() -> Iterator[None]:
    """Have rollouts of the second half of a batch be one token long."""
    sample = PolicyTrainer._sample_decoder

    def cut(self: Any, prompt_ids: Any, images: Any, fields: Any, places: Any) -> Any:
        lengths = [12 if place < 4 else 1 for place in places]
        parts = sample(self, prompt_ids, images, fields, places)
        return tuple([row[:length] for row, length in zip(part or [], lengths, strict=True)] for part in parts)

    PolicyTrainer._sample_decoder = cut  # type: ignore[method-assign]
    try:
        yield
    finally:
        PolicyTrainer._sample_decoder = sample  # type: ignore[method-assign]


@contextmanager
def sampler_apart() -> Iterator[None]:
    """Have log-probs of rollouts be those of another sampler, as an engine's are: of three of eight far below the trainer's."""
    sample, old = PolicyTrainer._sample_decoder, PolicyTrainer._old_logprobs

    def apart(self: Any, prompt_ids: Any, images: Any, fields: Any, places: Any) -> Any:
        tokens, logprobs = sample(self, prompt_ids, images, fields, places)
        gaps = [0.15 if place in FAR else -0.01 * place for place in places]
        return tokens, [[value - gap for value in row] for row, gap in zip(logprobs or [], gaps, strict=True)]

    def computed(self: Any, batch: Any, rollouts: Any) -> Any:
        with torch.no_grad():
            return self._logprobs(self.model, batch, self.args.per_device_train_batch_size)[0]

    PolicyTrainer._sample_decoder, PolicyTrainer._old_logprobs = apart, computed  # type: ignore[method-assign]
    try:
        yield
    finally:
        PolicyTrainer._sample_decoder, PolicyTrainer._old_logprobs = sample, old  # type: ignore[method-assign]


@contextmanager
def unsampled_mass() -> Iterator[None]:
    """Log ``importance/unsampled``, the mean of -log(1 - p) for the probability p of the tokens that no engine samples. It is
    what the log-probs of an engine with the trainer's weights exceed the trainer's by."""
    old = PolicyTrainer._old_logprobs

    def noting(self: Any, batch: Any, rollouts: Any) -> Any:
        with torch.no_grad():
            logits = self.model(**whole_pass(batch.model_inputs, batch.image_fields)).logits.float()
        p_NW = logits.softmax(-1)[..., vision_token_ids(self.accelerator.unwrap_model(self.model).config)].sum(-1)
        lost_NT, mask_NT = batch.before_completion_tokens(-(-p_NW).log1p()), batch.loss_mask_NT
        tokens = float(mask_NT.sum())
        self._add_metrics({"importance/unsampled": Metric(float((lost_NT * mask_NT).sum()) / tokens, tokens)})
        return old(self, batch, rollouts)

    PolicyTrainer._old_logprobs = noting  # type: ignore[method-assign]
    try:
        yield
    finally:
        PolicyTrainer._old_logprobs = old  # type: ignore[method-assign]


@contextmanager
def sampling_by(scripted: Any) -> Iterator[None]:
    """Have rollouts be what ``scripted(trainer, the trainer's own sampling, prompt_ids, images, fields, places)`` returns."""
    sample = PolicyTrainer._sample_decoder

    def replaced(self: Any, *given: Any) -> Any:
        return scripted(self, partial(sample, self), *given)

    PolicyTrainer._sample_decoder = replaced  # type: ignore[method-assign]
    try:
        yield
    finally:
        PolicyTrainer._sample_decoder = sample  # type: ignore[method-assign]


def scripted_verifications(self: Any, sample: Any, prompt_ids: Any, images: Any, fields: Any, places: Any) -> Any:
    """Have six of eight judgments end; of their verifications, those of rollouts 0, 2, 3 and 7 say that they are wrong."""
    turns, _ = sample(prompt_ids, images, fields, places)
    for n, place in enumerate(places):
        text = self._tokenizer.decode(prompt_ids[n])
        if VERIFY in text and REVISE not in text:
            turns[n] = self._tokenizer(WRONG if place in (0, 2, 3, 7) else CORRECT, add_special_tokens=False)["input_ids"]
        if REVISE not in text and place not in (1, 5):
            turns[n] = [*turns[n], self.eos_token_ids[0]]
    return turns, [[-2.0] * len(turn) for turn in turns]


def scripted_looks(self: Any, sample: Any, prompt_ids: Any, images: Any, fields: Any, places: Any) -> Any:
    """Have some rollouts of eight look again, once or twice; none of them is the second process's, of two."""
    turns, _ = sample(prompt_ids, images, fields, places)
    for n, place in enumerate(places):
        if self._tokenizer.decode(prompt_ids[n]).count(str(LOOK)) < LOOKS.get(place, 0):
            turns[n] = self._tokenizer(str(LOOK), add_special_tokens=False)["input_ids"]
        turns[n] = [*turns[n][:30], self.eos_token_ids[0]]
    return turns, [[-2.0] * len(turn) for turn in turns]


def scripted_rollouts(self: Any, sample: Any, prompt_ids: Any, images: Any, fields: Any, places: Any) -> Any:
    """Have rollouts be whole judgments whose verdict and length are drawn by step and place in the batch of all processes."""
    said = []
    for place in places:
        dice = random.Random(f"{self.state.global_step} {place}")
        text = format_verdict(dice.choice(list(Choice)), "x" * dice.randrange(1, 7))
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        said.append(ids if place == 3 else [*ids, self.eos_token_ids[0]])  # the fourth is cut off
    return said, [[0.0] * len(ids) for ids in said]


class LengthReward:
    """Pays a response its length, anchors or not: as a scalar head, it has neither a least nor a parity."""

    least: float | None = None
    parity: float | None = None

    def __call__(
        self, questions: Sequence[PreferencePair], responses: Sequence[str], anchors: Anchors, step: int
    ) -> tuple[list[float | None], dict[str, float]]:
        return [float(len(text)) for text in responses], {}


def run_policy(checkpoint: Path, out: Path, reward: PolicyReward, **changes: Any) -> None:
    """Train a policy on scripted answers, all eight of a batch to one question, which two processes must share."""
    opened = policy_module.open_reward
    policy_module.open_reward = lambda config, pairs: reward  # type: ignore[assignment]
    batch = {"rollout_batch_size": 8, "batch_size": 8, "max_completion_length": 40, "advantage": "grpo", "group_size": 8}
    shared = {name: value for name, value in GENTLE.items() if name != "template"}
    try:
        with sampling_by(scripted_rollouts):
            policy_module.train_policy(pairs(), PolicyConfig(model=str(checkpoint), **(shared | batch | changes)), out)
    finally:
        policy_module.open_reward = opened


def write_judgments(data: Sequence[PreferencePair], path: Path) -> Path:
    """Write a right and a wrong judgment of each pair, of unequal lengths; by each process, the same."""
    rows = []
    for n, pair in enumerate(data):
        right = choice_of(pair.preferred or 0, pair.order)
        texts = {"chosen": format_verdict(right, "x" * (n % 7)), "rejected": format_verdict(right.swap(), "y" * (n % 5))}
        rows.append(json.dumps({"pair_id": pair.pair_id, "order": pair.order.value, **texts}) + "\n")
    write_atomic(path, "".join(rows))
    return path


@contextmanager
def killed_cold_start() -> Iterator[None]:
    """Have a cold start end right after its first checkpoint."""
    trainer = sft_module.ResumableSFTTrainer

    def build(*args: Any, **kwargs: Any) -> Any:
        built = trainer(*args, **kwargs)
        built.add_callback(Kill())
        return built

    sft_module.ResumableSFTTrainer = build  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        sft_module.ResumableSFTTrainer = trainer  # type: ignore[misc]


def run(
    stage: str,
    checkpoint: Path,
    out: Path,
    *,
    kill: bool = False,
    data: Sequence[PreferencePair] | None = None,
    unequal: bool = False,
    apart: bool = False,
    **changes: Any,
) -> None:
    """Train ``stage`` into ``out``, or go on with it; ``kill`` ends it right after its first checkpoint. With ``unequal`` the
    halves of each batch differ: the second's rollouts are one token long and paid more, and the first of them much more. With
    ``apart`` rollouts have log-probs of another sampler."""
    data = pairs() if data is None else data
    if changes.get("advantage") == "gae":  # no critic is fitted in a run this short
        changes = {"health": {"policy": "warn"}, **changes}
    if stage == "group":
        judge = PairwiseReward(Prefers(lambda text: 0.8 if "1" in text else 0.3))  # type: ignore[arg-type]
        return run_policy(checkpoint, out, judge, anchor="group")
    if stage == "scalar":
        return run_policy(checkpoint, out, LengthReward(), max_completion_length=23, positive_nll=0.3)
    if stage == "swap":
        changes = {**GENTLE, "rollout_batch_size": 8, "batch_size": 8, "max_completion_length": 40, **changes}
        config = RLConfig(model=str(checkpoint), consistency=ConsistencyConfig(weight=0.0), swap_weight=1.0, **changes)
        with sampling_by(scripted_rollouts):
            train_rl(data, config, out)
        return None
    if stage == "sft":
        with suppress(KilledError), killed_cold_start() if kill else nullcontext():
            train_sft(data, SFTConfig(model=str(checkpoint), **({**SHARED, "batch_size": 8} | changes)), out)
        return
    if stage == "dpo":
        config = DPOConfig(model=str(checkpoint), **({**SHARED, "batch_size": 16, "micro_batch_size": 8} | changes))
        train_dpo(data, config, out, judgments=write_judgments(data, out.with_suffix(".jsonl")))
        return
    batch = {"rollout_batch_size": 8, "batch_size": 8, "max_completion_length": 12}
    batch |= {"consistency": ConsistencyConfig(weight=0.0)}
    config = RLConfig(model=str(checkpoint), **(SHARED | batch | changes))
    reward = TokenReward(
        (lambda ids, n: UNEQUAL[first_row() + n]) if unequal else (lambda ids, n: float(sum(ids) % 5)),
        correct=lambda ids, n: float(sum(ids) % 2),
    )
    scripted = unequal_rollouts() if unequal else sampling_by(scripted_verifications) if config.self_verify else nullcontext()
    scripted = sampling_by(scripted_looks) if config.template == "look" else scripted
    sampler = sampler_apart() if apart else unsampled_mass() if config.engine else nullcontext()
    with suppress(KilledError), scripted, sampler:
        train_rl(data, config, out, reward=reward, callbacks=[Kill()] if kill else [])


def shard_on_cpus() -> None:
    """Have accelerate shard by FSDP2 where its configuration says so. By itself it takes DDP where there is no GPU."""
    prepare = PartialState.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        prepare(self, *args, **kwargs)
        if self.distributed_type is DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU  # read once, when FSDP is chosen; the device stays a CPU

    PartialState.__init__ = init  # type: ignore[method-assign]


def main(checkpoint: Path, folder: Path, *wanted: str) -> None:
    """``STAGE:NAME`` trains into FOLDER/NAME, ``STAGE:NAME:kill`` begins only."""
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        shard_on_cpus()
    for what in wanted:
        stage, name, *kill = what.split(":")
        if stage == "rl+taken_back":
            PolicyTrainer.log = collapsing(3, 1)[0]  # type: ignore[method-assign]
        data = {"mixed": mixed, "tied": tied}.get(stage.rpartition("+")[2], pairs)()
        run(stage.partition("+")[0], checkpoint, folder / name, kill=bool(kill), data=data, **CHANGES.get(stage, {}))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # DeepSpeed's threads sometimes abort an interpreter that ends by itself


# Of a model this small, on a CPU; a request's own seed breaks vLLM's CPU generator where prompts are read in chunks.
VLLM_ARGS = (
    "--max-model-len 1024 --enforce-eager --dtype float32 --block-size 32 --kv-cache-memory-bytes 134217728 "
    "--no-enable-chunked-prefill --max-num-batched-tokens 8192"
)
ENGINE: dict[str, Any] = {"engine": {"kind": "serve", "args": VLLM_ARGS}}
EVALUATION: dict[str, Any] = {"fraction": 0.2, "every_steps": 2, "max_tokens": 12, "batch_size": 4}
CHANGES: dict[str, dict[str, Any]] = {
    "swap": {"advantage": "grpo", "group_size": 4},
    "rl+engine": ENGINE,
    "rl+ahead": ENGINE | {"engine": ENGINE["engine"] | {"ahead": 1}},
    "rl+engine+critic": {**ENGINE, "advantage": "gae", "outliers": "keep", "value_pretrain_steps": 2},
    "rl+lora": {"lora": {"r": 4}},
    "rl+critic": {"advantage": "gae", "outliers": "keep", "kl": "k3_loss", "kl_coef": 0.1, "value_pretrain_steps": 2},
    "rl+unequal": {"unequal": True},
    "rl+importance": {"apart": True, "importance": {"mode": "sequence_mask"}},
    "rl+rlcs": {"advantage": "grpo", "group_size": 2, "dynamic_sampling": "oversample", "difficulty_weighted": True},
    "rl+split": {"advantage": "grpo", "preclip": None, "group_size": 4, "rollout_batch_size": 12, "batch_size": 12}
    | {"micro_batch_size": 2},
    "rl+verified": {"advantage": "gae", "self_verify": True, "outliers": "keep", "preclip": None},
    "rl+looking": {"template": "look", "max_completion_length": 96, "micro_batch_size": 2, "learning_rate": 1e-4},
    "rl+taken_back": {"health": {"patience": 2, "policy": "roll_back"}},  # the last of its process: it stays collapsing
    "sft+lora": {"lora": {"r": 4}},
    "sft+evaluated": {"evaluation": EVALUATION},
    "rl+evaluated": {"evaluation": EVALUATION},
    "rl+parts+mixed": {"kl": "k3_loss", "kl_coef": 0.1, "micro_batch_tokens": 300},
    "dpo+parts+mixed": {"micro_batch_tokens": 600},
    "sft+parts+mixed": {"micro_batch_tokens": 300},
    "sft+dealt": {"evaluation": EVALUATION | {"batch_size": 10}},
    "sft+gently+mixed": {"micro_batch_size": 1, "learning_rate": 1e-5},
    "rl+gently+mixed": {"micro_batch_size": 1, "learning_rate": 1e-5},
    "sft+mixed": {"micro_batch_size": 1},
    "rl+mixed": {"micro_batch_size": 1},
    # log-probs without gradient, a critic and a reference beside the policy
    "rl+halves+mixed": {
        "micro_batch_size": 1,
        "rollout_batch_size": 16,
        "advantage": "gae",
        "kl_coef": 0.1,
        "outliers": "keep",
    },
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
