"""What `eval/gpu_truth.py` tries: the cases of each stage, each a call that returns figures."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import json
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
Row = dict[str, Any]
TAIL = 3000  # characters of a failed command's output that are kept
GROUPED = ("grpo", "gspo", "dr_grpo", "dapo", "rloo", "rlcs", "reinforce_pp_baseline", "vapo", "pag")
FITTED = ("vc_ppo", "vapo", "ppo", "t_ppo", "pag")
SERVERS: list[subprocess.Popen[bytes]] = []  # that this process has started
OTHER_HARDWARE = {  # recipes of configs/rl that need what one card does not have
    "stable_reinforce_multi_node": "a server of vLLM",
    "stable_reinforce_qwen2_5_vl_7b": "vLLM",
    "stable_reinforce_qwen3_vl_8b": "vLLM",
}


@dataclass(frozen=True)
class Options:
    """What a call is given: the folder that is kept and that of large files, the shapes that are timed."""

    out: Path
    work: Path
    on_cpu: bool
    minutes: float
    model: str
    commit: str

    @property
    def device(self) -> str:
        return "cpu" if self.on_cpu else "cuda"

    @property
    def small(self) -> str:
        """The shapes that are run."""
        return "tiny" if self.on_cpu else "small"

    @property
    def image_px(self) -> int:
        return 112 if self.on_cpu else 448

    @property
    def data(self) -> Path:
        return self.work / "pairs.parquet"

    @property
    def start(self) -> Path:
        """The model that all runs but the first begin from."""
        return self.work / "runs" / "sft" / "final"


@dataclass(frozen=True)
class Case:
    """``call`` returns figures; it raises, or ends the interpreter with another status than 0, where something is wrong.

    ``seconds`` it takes on a card: with less time left it is not begun. ``partial`` returns what is known where it is cut off.
    ``bounds`` are the least and the most of figures: beyond them the case has failed. ``needs_gib``: memory of the card.
    ``folder`` is deleted after it; ``makes`` is what later cases need of it.
    """

    call: Callable[[], Row]
    seconds: float = 15
    folder: Path | None = None
    partial: Callable[[], Row] = dict
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)
    needs_gib: float = 0
    makes: Path | None = None


class _Tee(io.StringIO):
    """Keeps what is written, and writes it to the program's own output."""

    def write(self, text: str) -> int:
        sys.__stdout__.write(text)
        return super().write(text)


def cli(*words: Any) -> str:
    """Run a command of `rewardlab` in this process; return what it printed. Raise RuntimeError for any exit status but 0."""
    from rewardlab.cli import main
    from rewardlab.cli.exit_codes import ExitCode

    said, before, sys.argv = _Tee(), sys.argv, ["rewardlab", *map(str, words)]
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main()
    except SystemExit as end:
        if end.code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
            raise KeyboardInterrupt from end
        if end.code not in (0, None):
            raise RuntimeError(f"exit status {end.code}: {said.getvalue()[-TAIL:]} ({shlex.join(sys.argv)})") from end
    finally:
        sys.argv = before
    return said.getvalue()


def command(*words: Any) -> Row:
    cli(*words)
    return {}


def command_anew(folder: Path, *words: Any) -> Row:
    """Run a command whose folder later cases need, from its beginning."""
    shutil.rmtree(folder, ignore_errors=True)
    return command(*words)


def write_inputs(options: Options) -> Row:
    """Write a model with random weights and labelled pairs, whose judgments have the form of the plain template."""
    from eval.gpu_speed import SHAPES, make_model
    from rewardlab.data.images import decode_image, encode_png
    from rewardlab.data.pairs import write_parquet
    from rewardlab.demo.base_model import save_model
    from rewardlab.demo.pairs import make_pairs
    from rewardlab.types import choice_of
    from rewardlab.verdicts.parse import format_verdict

    model, processor = make_model(SHAPES[options.small], options.image_px, "cpu")
    save_model(options.work / "model", model, processor)
    px = options.image_px // 2
    pairs = [
        replace(
            pair,
            images=(encode_png(decode_image(pair.images[0]).resize((px, px))),),
            attempts="2",
            judgment=format_verdict(choice_of(pair.preferred or 0, pair.order), "One of them is right."),
        )
        for pair in make_pairs(64, seed=0, held_out=False)[0]
    ]
    write_parquet(pairs, options.data)
    return {"weights": sum(weight.numel() for weight in model.parameters())}


def training_words(
    options: Options, stage: str, config: str, name: str, *more: str, model: Path | None = None, steps: int = 2, batch: int = 4
) -> list[Any]:
    """Return the words of a training of few steps in small batches."""
    words = [stage, "--data", options.data, "--out", options.work / "runs" / name, *(["--config", config] if config else [])]
    words += ["--model", model or options.start, f"max_steps={steps}", "save_steps=100", f"batch_size={batch}"]
    words += [f"micro_batch_size={batch // 2}", "max_tokens=null", "pixels=null"]
    return [*words, *([] if stage == "rm" else ["template=plain"]), *more]


def rl_words(options: Options, recipe: str, *more: str) -> list[Any]:
    """Return the command of a recipe of ``configs/rl``, its batches small."""
    words = ["rollout_batch_size=8", "max_completion_length=32", "consistency.weight=0", "importance={}"]
    words += ['attempts=["2"]', f"group_size={2 if recipe in GROUPED else 1}", "learning_rate=1e-5"]
    words += ["value_pretrain_steps=2", "health.policy=warn"] if recipe in FITTED else []
    words += ["window=16", "window_tail=1"] if recipe == "t_ppo" else []
    words += ["overlong_margin=8"] if recipe == "dapo" else []
    words += ["sampling_batch_size=null"] if recipe.startswith("stable_reinforce_q") else []
    return training_words(options, "rl", f"rl/{recipe}", recipe, *words, *more)


def train_rl(options: Options, recipe: str, *more: str) -> Row:
    """Train a recipe; return how far the sampler's log-probabilities were from the trainer's."""
    words = rl_words(options, recipe, *more)
    cli(*words)
    path = Path(words[words.index("--out") + 1]) / "metrics.jsonl"
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    values = [row["importance/gap"] for row in rows if "importance/gap" in row]
    return {"importance_gap": values[-1] if values else None}


def examine(*words: Any) -> Row:
    """Have the doctor take its step. Raise RuntimeError where it left it out."""
    if "trained and saved" not in (said := cli(*words)):
        raise RuntimeError(f"the doctor took no step: {said[-TAIL:]}")
    return {}


def recipes() -> list[str]:
    """Return every recipe that a single card can run, the plainest first."""
    names = sorted(path.stem for path in (ROOT / "configs" / "rl").glob("*.yaml"))
    return sorted(set(names) - OTHER_HARDWARE.keys(), key=lambda name: (name != "stable_reinforce", name != "grpo", name))


def runs(options: Options) -> dict[str, Case]:
    work = options.work / "runs"

    def sft(name: str, *more: str) -> Case:
        words = training_words(options, "sft", "sft/qwen2_5_vl_7b", name, "learning_rate=1e-5", *more)
        return Case(partial(command, *words), folder=work / name)

    form = ["learning_rate=2e-3", "lr_scheduler=constant", "warmup_ratio=0", "min_lr_ratio=0"]
    first = training_words(options, "sft", "sft/qwen2_5_vl_7b", "sft", *form, model=options.work / "model", steps=40, batch=8)
    cases = {
        "inputs": Case(partial(write_inputs, options), makes=options.data),
        "sft": Case(partial(command_anew, work / "sft", *first), seconds=40, makes=options.start),
    }
    gap = {"importance_gap": (0.0, 0.05)}
    for recipe in recipes():
        if not recipe.endswith("qlora_24gb") or importlib.util.find_spec("bitsandbytes"):
            cases[f"rl {recipe}"] = Case(partial(train_rl, options, recipe), folder=work / recipe, bounds=gap)
    adapters = "lora={r: 8, alpha: 16}"
    cases["sft lora"] = sft("lora", adapters)
    lora = partial(train_rl, options, "stable_reinforce", adapters)
    cases["rl lora"] = Case(lora, folder=work / "stable_reinforce", bounds=gap)
    cases["rm"] = Case(partial(command, *training_words(options, "rm", "", "rm")), folder=work / "rm")
    cases["sft without checkpointing"] = sft("whole", "gradient_checkpointing=false")
    if importlib.util.find_spec("flash_attn"):
        cases["sft flash_attention_2"] = sft("flash", "attn_implementation=flash_attention_2")
    for engine in ("hf", "prob"):
        words = ["bench", "run", "pairs", "--data", options.data, "--judge", f"{engine}:{options.start}", "template=plain"]
        words += ["--limit", 8, "max_tokens=32", "--controls", "", "--out", work / engine]
        words += ["--votes", 3] if engine == "hf" else []
        cases[f"bench {engine}"] = Case(partial(command, *words), folder=work / engine)
    cases["serve"] = Case(partial(try_server, options), seconds=60)
    words = ["doctor", "rl/stable_reinforce", "--data", options.data, f"model={options.start}", "template=plain"]
    words += ["batch_size=4", "micro_batch_size=2", "rollout_batch_size=8", "max_completion_length=32"]
    cases["doctor"] = Case(partial(examine, *words, "consistency.weight=0", 'attempts=["2"]'), seconds=20)
    return cases


def try_server(options: Options) -> Row:
    """Start the endpoint in a process of its own and have it judge a pair, three votes in each order."""
    from rewardlab.demo.quickstart import free_port
    from rewardlab.processes import end_with_parent

    port, began, log = free_port(), time.monotonic(), options.work / "serve.log"
    words = ["serve", "--judge", f"hf:{options.start}", "template=plain", "max_tokens=32", "--port", str(port)]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "rewardlab.cli", *words],
            cwd=ROOT,
            stdout=sink,
            stderr=sink,
            preexec_fn=end_with_parent,
        )
    SERVERS.append(process)
    try:
        while not _answers(f"http://127.0.0.1:{port}/ready"):
            if process.poll() is not None or time.monotonic() - began > 240:
                raise RuntimeError(f"no endpoint (status {process.poll()}): {log.read_text(errors='replace')[-TAIL:]}")
            time.sleep(0.5)
        ready = time.monotonic() - began
        body = json.dumps({"question": "Which color?", "responses": ["Red.", "Blue."], "votes": 3}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/judge", body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            votes = json.load(response)["votes"]
        if len(votes) != 6:
            raise RuntimeError(f"{len(votes)} votes came back, expected 6")
        return {"ready_s": round(ready, 1)}
    finally:
        process.terminate()
        process.wait(timeout=60)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


def equal(options: Options) -> dict[str, Case]:
    from eval.gpu_comparisons import (
        compare_judges,
        compare_kernels,
        compare_types,
        decoder_beside_trainer,
        fused_head_beside_logits,
    )

    device, small = options.device, options.small
    judge = {
        "greedy_texts_equal": (0.8, 1),
        "logprob_gap_mean": (0, 0.05),
        "gradient_cosine": (0.99, 1.01),
        "loss_ratio": (0.98, 1.02),
        "float32_gradient_cosine": (0.999, 1.001),
    }
    head = {f"{dtype}_gradient_cosine": (0.999, 1.001) for dtype in ("float32", "bfloat16")}
    head |= {f"float32_{name}_gap_max": (0, 1e-3) for name in ("logprob", "entropy")}
    head |= {f"bfloat16_{name}_gap_max": (0, 0.1) for name in ("logprob", "entropy")}
    decoder = {"float32_gap_mean": (0, 1e-4), "bfloat16_gap_mean": (0, 0.03), "float32_same_texts": (1, 1)}
    decoder["float32_same_texts_of_fixed_steps"] = (0.9, 1)  # sums are in another order
    types = {"logprob_gap_mean": (0, 0.03), "gradient_cosine": (0.99, 1.01)}
    return {
        "fused head beside logits": Case(partial(fused_head_beside_logits, device, small), bounds=head),
        "decoder beside trainer": Case(partial(decoder_beside_trainer, device, small), bounds=decoder),
        f"{small} model, bfloat16 beside float32": Case(partial(compare_types, device, small), bounds=types),
        "packaged judge, bfloat16 beside float32 on a CPU": Case(
            partial(compare_judges, device, 4 if options.on_cpu else 100), seconds=30, bounds=judge
        ),
        "gradient in bfloat16 by kernel of attention": Case(
            partial(compare_kernels, device), bounds={"default": (0.999, 1.001)}
        ),
    }


@dataclass
class Held:
    """A model that several cases use, one after the other; made by the first, in the type that the case asks for."""

    options: Options
    shape: str
    model: Any = None
    processor: Any = None
    rate: float = 0.0

    def get(self, dtype: str) -> tuple[Any, Any]:
        import torch

        from eval.gpu_speed import SHAPES, free_memory, make_model, matmul_flops

        kind = getattr(torch, dtype)
        if self.model is None:
            self.rate = matmul_flops(self.options.device)
            self.model, self.processor = make_model(SHAPES[self.shape], self.options.image_px, self.options.device, kind)
        elif self.model.dtype != kind:
            self.model.to(kind)
            free_memory()
        return self.model, self.processor


def fast(options: Options) -> dict[str, Case]:
    from eval.gpu_comparisons import decoder_beside_generate
    from eval.gpu_speed import Sizes, bandwidth, never_end, noisy_pairs, profile_sft, time_rl, time_sft

    sizes = Sizes(batch=4, micro=2, answer=12, steps=1, image_px=112) if options.on_cpu else Sizes(image_px=options.image_px)
    held = Held(options, options.model)
    folder = options.work / "fast"

    def timed(call: Callable[..., Row], sizes: Sizes = sizes) -> Row:
        model, processor = held.get("float32")
        row = call(model, processor, sizes, options.device, held.rate, folder)
        return row | {"matmul_tflops": round(held.rate / 1e12, 1), **dataclasses.asdict(sizes)}

    def decoder(number: int) -> Row:
        model, processor = held.get("float32" if options.on_cpu else "bfloat16")
        model.eval()
        never_end(model)
        pairs = noisy_pairs(2 if options.on_cpu else 16, sizes.image_px, 8)
        more = {"number": number, "max_tokens": 12 if options.on_cpu else 128, "turns": 1}
        row = {**decoder_beside_generate(model, processor, pairs, options.device, **more), **more, "prompts": len(pairs)}
        size = sum(
            weight.numel() * weight.element_size()
            for name, weight in model.named_parameters()
            if "visual" not in name and "embed_tokens" not in name
        )
        return row | {"weights_ms": 1000 * size / bandwidth(options.device)}

    gib = {"3b": 75.0, "7b": 1e9}.get(options.model, 0.0)  # 16 bytes a weight and activations; 7B is the stage `large`'s
    calls: dict[str, Callable[..., Row]] = {"sft": time_sft, "sft, by operation": profile_sft}
    calls |= {"rl": partial(time_rl, "rewardlab"), "rl, TRL's GRPO": partial(time_rl, "trl")}
    cases: dict[str, Case] = {}
    small = {name: call for name, call in calls.items() if name != "sft, by operation" and not options.on_cpu}
    for note, shapes, those in (("", replace(sizes, micro=sizes.batch), calls), (", micro-batches of 2", sizes, small)):
        for name, call in those.items():
            cases[name + note] = Case(
                partial(timed, call, shapes), seconds=40, folder=folder, needs_gib=gib, bounds={"in_bfloat16": (1, 1)}
            )
    for number in (16, 4, 1):
        cases[f"decoder beside generate, {number} draws"] = Case(partial(decoder, number), seconds=30)
    return cases


def large(options: Options) -> dict[str, Case]:
    """Adapters of 7B, one step of SFT and of RL beside the doctor's estimate, by the commands."""
    shape = "tiny" if options.on_cpu else "7b"
    work, model = options.work / "large", options.work / "large_model"

    def write_model() -> Row:
        import torch

        from eval.gpu_speed import SHAPES, make_model
        from rewardlab.demo.base_model import save_model

        made, processor = make_model(SHAPES[shape], options.image_px, options.device, torch.bfloat16)
        save_model(model, made, processor)
        return {"weights": sum(weight.numel() for weight in made.parameters())}

    def trained(stage: str) -> Row:
        words = ["max_steps=2", "save_steps=100", "batch_size=4", "micro_batch_size=1", "template=plain", "pixels=null"]
        words += ["max_tokens=null", "lora={r: 16, alpha: 32}", "learning_rate=1e-5"]
        if stage == "rl":
            words += ["rollout_batch_size=8", "max_completion_length=128", "consistency.weight=0", 'attempts=["2"]']
        config = "sft/qwen2_5_vl_7b" if stage == "sft" else "rl/stable_reinforce"
        return command(stage, "--data", options.data, "--model", model, "--config", config, "--out", work / stage, *words)

    return {
        "inputs": Case(partial(write_inputs, options), makes=options.data),
        "model": Case(write_model, seconds=60, makes=model),
        "sft lora": Case(partial(trained, "sft"), seconds=60, folder=work, needs_gib=30),
        "rl lora": Case(partial(trained, "rl"), seconds=60, folder=work, needs_gib=30),
    }


def learns(options: Options) -> dict[str, Case]:
    """Train a judge of more weights on the hard demonstration, until the minutes are over."""
    import yaml

    from eval.hard_demo.quickstart import hard_quickstart

    configs, run = options.work / "configs", options.work / "learns"
    changes: dict[str, Row] = {"demo": {"hidden": 768, "layers": 8}}
    if options.on_cpu:
        sizes = {"num_train": 150, "num_test": 24, "num_validation": 8, "num_unlike": 16}
        changes = {"demo": {"hidden": 32, "layers": 2, "base_steps": 3, **sizes}, "sft": {"max_steps": 2}}
        changes["rl"] = {"max_steps": 2, "save_steps": 2, "rollout_batch_size": 8, "batch_size": 4, "micro_batch_size": 4}

    def quickstart() -> Row:
        configs.mkdir(parents=True, exist_ok=True)
        for path in (ROOT / "eval" / "hard_demo").glob("*.yaml"):
            text = {**yaml.safe_load(path.read_text(encoding="utf-8")), **changes.get(path.stem, {})}
            (configs / path.name).write_text(yaml.safe_dump(text), encoding="utf-8")
        hard_quickstart(run, configs)
        return {"curves": curves_of(run)}

    return {"hard demonstration": Case(quickstart, seconds=120, partial=lambda: {"curves": curves_of(run)}, folder=run)}


def curves_of(run: Path) -> Row:
    """Return what each stage of a quickstart has logged so far: [[step, value], ...] by stage and metric."""
    names = ("loss", "reward/accuracy", "completions/mean_length")
    curves: Row = {}
    for stage in ("sft", "rl"):
        path = run / stage / "metrics.jsonl"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # the last line may be half written
        rows = list(map(json.loads, whole.splitlines()))
        curves[stage] = {name: [[row["step"], row[name]] for row in rows if row.get(name) is not None] for name in names}
    return curves


STAGES: dict[str, Callable[[Options], dict[str, Case]]] = {
    "runs": runs,
    "equal": equal,
    "fast": fast,
    "learns": learns,
    "large": large,
}
