"""Where rollouts come from: sampled by our own decoder, scored, chosen, and kept so that a checkpoint resumes the same run.

What is then made of them is in ``policy_gradient.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor
from trl import GRPOTrainer
from trl.data_utils import prepare_multimodal_messages
from trl.models import unwrap_model_for_generation

from rewardlab.config import EngineConfig
from rewardlab.errors import CheckpointError
from rewardlab.metrics.running import Tallies
from rewardlab.models.families import FORWARD_KEYS, images_by_prompt, iterate_batches, slice_fields, vision_token_ids
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.decode import HotToken, draw, draw_uniforms
from rewardlab.training.policy_gradient.rollouts.dynamic import DynamicSampling, Sampled
from rewardlab.training.policy_gradient.rollouts.engine import RolloutEngine, messages_of
from rewardlab.training.policy_gradient.rollouts.sampler import RolloutSampler
from rewardlab.training.run.folder import LoadsWholeCheckpoints

STATE = "rollouts-{process}.pt"


def _process_of(path: Path) -> int:
    return int(path.stem.rsplit("-", 1)[1])


class RolloutTrainer(LoadsWholeCheckpoints, GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer that samples with the decoder that benchmarks and serves the judge, and may choose what it trains on.

    ``right_of_last_batch`` tells which of this process's last rollouts were right, ``read_of_last_batch`` which could be read
    at all. ``dynamic`` chooses groups itself, from its own stream of prompts, instead of taking those of the data loader.
    """

    right_of_last_batch: Callable[[], list[float]]
    read_of_last_batch: Callable[[], list[bool]]
    hot_token: HotToken | None = None
    rollout_sampler: RolloutSampler | None = None
    dynamic: DynamicSampling | None = None
    rollouts_at_once: int | None = None
    engine: EngineConfig | None = None
    _engine: RolloutEngine | None = None
    num_rollbacks = 0  # of this run: what led astray is not drawn again
    num_generated_tokens = 0  # by this process, trained on or not
    _chosen: list[Sampled] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._tallies = {"train": Tallies(), "eval": Tallies()}
        self._draws = (-1, 0)  # the step that drew last, and how often it did
        super().__init__(*args, **kwargs)

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    @property
    def max_new_tokens(self) -> int:
        return int(self.max_completion_length)

    def _count(self, metrics: dict[str, float], weight: float | Tensor = 1.0) -> None:
        """Log what holds of ``weight`` tokens, rollouts or batches of this process; what is logged is the mean over all."""
        for name, value in metrics.items():
            self._tallies[self._mode].add(name, value, getattr(value, "weight", float(weight)))

    def _log_metric(self, name: str, value: float) -> None:
        self._count({name: value})

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        for name, mean in self._tallies[self._mode].tell(gather_object).items():
            self._metrics[self._mode][name].append(mean)
        super().log(logs, start_time)

    def _own(self, num_rows: int) -> slice:
        """Where this process's ``num_rows`` stand among those of all."""
        start = self.accelerator.process_index * num_rows
        return slice(start, start + num_rows)

    def everywhere(self, flag: bool) -> bool:
        """Whether ``flag`` holds in every process."""
        told = torch.tensor([flag], device=self.accelerator.device)
        return bool(self.accelerator.gather(told).all().item())

    def mean_everywhere(self, value: float) -> float:
        """The mean of ``value`` over all processes."""
        told = torch.tensor([value], dtype=torch.float64, device=self.accelerator.device)
        return float(self.accelerator.gather(told).mean().item())

    def _generate_single_turn(
        self,
        prompt_ids: list[list[int]],
        images: Any,
        multimodal_fields: dict[str, Any],
        num_generations: int,
        has_tool_images: bool = False,
    ) -> tuple[list[list[int]], Any]:
        """Completions of each prompt, and what the sampler says of their log-probs where it is to be corrected for."""
        if self.engine is not None:
            return self._from_engine(prompt_ids)
        if self.use_vllm:
            tokens, logprobs = super()._generate_single_turn(
                prompt_ids, images, multimodal_fields, num_generations, has_tool_images
            )
            self._drawn_logprobs = logprobs
            self.num_generated_tokens += sum(map(len, tokens))
            return tokens, logprobs
        uniforms_NT = self._draw_uniforms(len(prompt_ids))
        size = self.rollouts_at_once or len(prompt_ids)
        tokens, logprobs = [], []
        with (
            unwrap_model_for_generation(
                self.model_wrapped, self.accelerator, gather_deepspeed3_params=self.args.ds3_gather_for_generation
            ) as policy,
            torch.no_grad(),
            self.accelerator.autocast(),  # as the log-probs that training computes of the same tokens
        ):
            for rows, batch in iterate_batches(prompt_ids, multimodal_fields, images, self._tokenizer.pad_token_id, size):
                draws = draw(
                    policy,
                    {name: value.to(self.accelerator.device) for name, value in batch.items()},
                    num_draws=1,
                    max_tokens=self.max_new_tokens,
                    temperature=self.temperature,
                    top_p=self.top_p,
                    ends=frozenset(self.eos_token_ids),
                    suppress=vision_token_ids(policy.config),
                    hot=self.hot_token,
                    uniforms=uniforms_NT[rows],
                )
                tokens += draws.tokens
                logprobs += draws.logprobs
        self._drawn_logprobs = logprobs
        self.num_generated_tokens += sum(map(len, tokens))
        return tokens, logprobs if self.args.importance_cap else None

    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        self._asked = prompts  # an engine is asked in words and images, not in tokens
        return super()._tokenize_prompts(prompts)

    def _from_engine(self, prompt_ids: list[list[int]]) -> tuple[list[list[int]], list[list[float]]]:
        assert self.engine is not None
        if self._engine is None:
            out = Path(self.args.output_dir)
            self._engine = RolloutEngine(
                self.engine, self.model_wrapped, self.processing_class, out, self.accelerator, apart=self.kept_elsewhere
            )
        elif self._synced != self.state.global_step:
            self._engine.sync(self.model_wrapped)
        self._synced, engine = self.state.global_step, self._engine
        self._draws = (self._synced, self._draws[1] + 1 if self._draws[0] == self._synced else 0)
        seed = np.random.SeedSequence(
            [self.args.seed, self.num_rollbacks, *self._draws, self.accelerator.process_index]
        ).generate_state(1)[0]
        params = SamplingParams(1, self.temperature, self.top_p, self.max_new_tokens, int(seed >> 1))
        asked, lengths = [messages_of(prompt) for prompt in self._asked], [len(ids) for ids in prompt_ids]
        tokens, logprobs = engine.drawn_by_the_policy(lambda: engine.draw(asked, lengths, params), self.model_wrapped)
        self._drawn_logprobs = logprobs
        self.num_generated_tokens += sum(map(len, tokens))
        return tokens, logprobs

    def close_engine(self) -> None:
        """End the engine's process, if there is one, however training ended."""
        if self._engine is not None:
            self._engine.close()

    def _draw_uniforms(self, num_rows: int) -> Tensor:
        """[own N, max_new_tokens] what decides each draw: by the seed, the step and the place in the batch of all processes, so
        that a rollout is the same on however many processes it is drawn, and in a run that was resumed on another number."""
        step = self.state.global_step
        self._draws = (step, self._draws[1] + 1 if self._draws[0] == step else 0)
        first = self.accelerator.process_index * num_rows
        key = (self.args.seed, self.num_rollbacks, *self._draws)
        return draw_uniforms(key, range(first, first + num_rows), self.max_new_tokens).to(self.accelerator.device)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        self.rollout_sampler = RolloutSampler(
            len(dataset or self.train_dataset),
            batch=self.args.generation_batch_size // self.num_generations,
            group=self.num_generations,
            repeats=self.num_iterations * self.args.steps_per_generation,
            seed=self.args.seed,
            together=2 if self.args.orders_together else 1,
        )
        return self.rollout_sampler

    def _generate(self, prompts: list[Any]) -> Any:
        if self._chosen is None:
            *head, images, extra = super()._generate(prompts)
            return *head, images_by_prompt(images), extra
        c = self._chosen
        logprobs = [one.drawn_logprobs for one in c] if self.args.importance_cap else None
        self._drawn_logprobs = [one.drawn_logprobs for one in c]
        ids, completions = [one.prompt_ids for one in c], [one.completion for one in c]
        return (
            ids,
            [one.completion_ids for one in c],
            None,
            completions,
            logprobs,
            {},
            images_by_prompt([one.images for one in c]),
            [],
        )

    def _calculate_rewards(self, inputs: list[dict[str, Any]], *args: Any) -> Tensor:
        """[global N, functions]; kept, because TRL hands on only the advantages it makes of them."""
        if self._chosen is None:
            self._rewards = super()._calculate_rewards(inputs, *args)
            self._right, self._read = self.right_of_last_batch(), self.read_of_last_batch()
        else:
            own = torch.stack([one.rewards for one in self._chosen]).to(self.accelerator.device)
            self._rewards = self.accelerator.gather(own)
            self._right, self._read = [one.right for one in self._chosen], [one.read for one in self._chosen]
        return self._rewards

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """TRL's, some rows at a time, which may be rows without an image beside rows with."""
        fields = {key: more.pop(key) for key in list(more) if key in FORWARD_KEYS}
        size = batch_size or len(input_ids)
        parts = []
        for start in range(0, len(input_ids), size):
            rows = slice(start, start + size)
            own = slice_fields(fields, rows)
            parts.append(
                super()._get_per_token_logps_and_entropies(
                    model, input_ids[rows], attention_mask[rows], logits_to_keep, **own, **more
                )
            )
        logps, entropies, losses = zip(*parts, strict=True)
        return (
            torch.cat(logps),
            None if entropies[0] is None else torch.cat(entropies),
            None if losses[0] is None else torch.stack(losses).mean(),
        )

    def sample_and_score(self, rows: list[dict[str, Any]]) -> list[Sampled]:
        """One rollout of each row, with its rewards; what every candidate earned is in the metrics, used or not."""
        prompts = [row["prompt"] for row in rows]
        if any(row.get("images") for row in rows):
            prompts = [prepare_multimodal_messages(row["prompt"], images=row["images"]) for row in rows]
        prompt_ids, completion_ids, _, completions, _, _, images, _ = super()._generate(prompts)
        rewards = super()._calculate_rewards(rows, prompts, completions, completion_ids)[self._own(len(rows))].cpu()
        right, read = self.right_of_last_batch(), self.read_of_last_batch()
        drawn = self._drawn_logprobs
        shown = [None] * len(rows) if images is None else images
        return [
            Sampled(*fields)
            for fields in zip(rows, prompt_ids, completion_ids, completions, shown, rewards, right, read, drawn, strict=True)
        ]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's batch, with ``loss_mask``: 1 on the tokens that this step trains on."""
        if self.dynamic is not None:
            self._chosen, metrics = self.dynamic.choose(self, len(inputs))
            inputs = [one.row for one in self._chosen]
            self._count(metrics)
        batch = super()._generate_and_score_completions(inputs)
        self._chosen = None
        batch["loss_mask"] = batch["completion_mask"] * batch.pop("tool_mask", 1)
        if self.hot_token:  # not of the policy's own drawing: nothing is learnt from it
            batch["loss_mask"][:, self.hot_token.position : self.hot_token.position + 1] = 0
        self.finish_batch(batch, inputs)
        batch["num_items_in_batch"], batch["num_rows"] = self.totals(batch["loss_mask"])
        return batch

    def totals(self, mask_NT: Tensor) -> tuple[Tensor, Tensor]:
        """(tokens, rollouts with any) of a mask, of all processes; without a dimension, so that TRL neither shuffles nor
        splits them."""
        own_2 = torch.stack([mask_NT.sum(), mask_NT.any(1).sum()]).long()
        all_2 = self.accelerator.reduce(own_2, reduction="sum")
        return all_2[0], all_2[1]

    def finish_batch(self, batch: dict[str, Any], inputs: list[dict[str, Any]]) -> None:
        """What a method adds to ``batch`` once its rollouts, of the rows ``inputs``, have their rewards."""
        raise NotImplementedError

    def rollout_state(self) -> dict[str, Any]:
        """What a resumed run needs to go on with the same prompts, of this process."""
        return {"dynamic": self.dynamic.state_dict()} if self.dynamic else {}

    def load_rollout_states(self, states: Sequence[dict[str, Any]]) -> None:
        """Go on where the processes of the run so far, of which there may have been more or fewer, have stopped."""
        if self.dynamic:
            self.dynamic.load_state_dicts([state["dynamic"] for state in states])

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """The state of the rollouts first: the trainer's own, written last, is what says that a checkpoint is whole."""
        if state := self.rollout_state():
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            folder.mkdir(exist_ok=True)
            told = {**state, "num_processes": self.accelerator.num_processes}
            torch.save(told, folder / STATE.format(process=self.accelerator.process_index))
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or not self.rollout_state():
            return
        states = [torch.load(path) for path in sorted(Path(checkpoint).glob(STATE.format(process="*")), key=_process_of)]
        if not states or len(states) != states[0]["num_processes"]:
            needed = states[0]["num_processes"] if states else "those"
            raise CheckpointError(
                f"{checkpoint}: the rollouts of {len(states)} of {needed} processes are in it; restore the others' files "
                f"({STATE.format(process='N')}), or delete the checkpoint to go back to the one before"
            )
        self.load_rollout_states(states)
