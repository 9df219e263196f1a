"""A run of the paper's size, rehearsed on two cores: `python eval/rehearsal.py`, by hand; some forty minutes.

It makes 17,261 RL pairs and 200,000 SFT pairs with pictures of a megapixel, one set after the other, 6 and 27 GB on disk, and
runs `rewardlab rl` and `rewardlab sft` on them as processes, each with the 64 sequences that a process of the paper's four
cards has:

- tenth: on a tenth of the pairs, one process, as fast as data come;
- all: on all of them, the same;
- paced: on all of them, two processes, each step as long as on a card, and killed (SIGKILL) after a checkpoint;
- resumed: the same, gone on with;
- TRL's own trainer on the tenth.

The model is a Qwen2.5-VL of real classes and 152,064 entries, and narrow; what a card computes is stood in for
(`eval/rehearsals/stand_ins.py`), all else is the run's own. Writes `rehearsal.json` and `rehearsal.md` to `--out`. `--scale`
and `--side` make everything smaller; the tests do so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

import psutil

from eval.rehearsals.data import PLANS, make_model, make_set
from eval.rehearsals.figures import figures, limits, table
from eval.rehearsals.runs import Case, metrics_of, observe
from rewardlab.data.files import write_atomic
from rewardlab.errors import RewardlabError
from rewardlab.models.checkpoints import commit

# A card's seconds, for 8.3 G weights in bfloat16 at 350 TFLOP/s: a rollout of 2,000 + 650 tokens, 64 of a process together, is
# sampled by vLLM in 20 s, its old log-probs take 17 s and its gradients 58 s, weights recomputed and ZeRO-3's traffic within;
# an SFT sequence takes 8 x 8.3e9 x 2,600 operations.
CARD = {"rl": {"sampling": 20 / 64, "training": 75 / 64}, "sft": {"sampling": 0.0, "training": 0.5}}
CONFIGS = {"rl": "rl/stable_reinforce_qwen2_5_vl_7b", "sft": "sft/qwen2_5_vl_7b"}
# What two cores have not: vLLM, and an endpoint that is asked about consistency. The pixels are the released code's.
SETTINGS = {
    "rl": ["engine=null", "consistency.weight=0", "pixels.min=3136", "pixels.max=501760", "save_steps=2"],
    "sft": ["pixels.min=3136", "pixels.max=501760", "save_steps=4", "max_tokens=8192"],
}
TRAINED_BYTES = 16  # of a weight in float32: itself, its gradient, two moments of AdamW


@dataclass(frozen=True)
class Shape:
    """Sizes of a rehearsal. ``steps``: optimizer steps of a stage's runs; ``batches``: keys that make batches smaller than the
    config's, of tests; ``card``: 1 for a card's seconds, less to wait less."""

    steps: dict[str, int]
    batches: dict[str, list[str]]
    paced_batches: dict[str, list[str]]
    card: float = 1.0


FULL = Shape(
    steps={"rl": 8, "sft": 8},
    batches={"rl": ["rollout_batch_size=64", "batch_size=32"], "sft": ["batch_size=64"]},
    paced_batches={"rl": ["rollout_batch_size=128", "batch_size=64"], "sft": ["batch_size=128"]},
)
SMALL = Shape(
    steps={"rl": 6, "sft": 6},
    batches={"rl": ["rollout_batch_size=16", "batch_size=8"], "sft": ["batch_size=16"]},
    paced_batches={"rl": ["rollout_batch_size=16", "batch_size=8"], "sft": ["batch_size=16"]},
    card=0.02,
)


class Rehearsal:
    """The runs of one stage on one set, in a folder of their own."""

    def __init__(self, stage: str, data: Path, model: Path, folder: Path, shape: Shape, more: Sequence[str]) -> None:
        self._stage, self._data, self._model, self._folder, self._shape = stage, data, model, folder, shape
        self._more = list(more)
        self._model_bytes = TRAINED_BYTES * count_weights(model)

    def _command(self, data: Path, out: Path, steps: int, extra: Sequence[str]) -> tuple[str, ...]:
        keys = [f"model={self._model}", f"max_steps={steps}", *SETTINGS[self._stage], *extra, *self._more]
        return (self._stage, "--config", CONFIGS[self._stage], "--data", str(data), "--out", str(out), *keys)

    def _card(self, pace: float) -> dict[str, float]:
        return {name: value * pace * self._shape.card for name, value in CARD[self._stage].items()}

    def unpaced(self, part: str) -> dict[str, Any]:
        """A run on one process without a card's seconds, of the ``part`` "tenth" or "all"."""
        steps, out = self._shape.steps[self._stage], self._folder / f"{part}-run"
        command = self._command(self._data / part, out, steps, self._shape.batches[self._stage])
        return self._run(Case(f"{self._stage}, {part}", command, out, seconds=self._card(0.0)))

    def killed(self) -> dict[str, Any]:
        """A run on two processes at a card's pace, ended by SIGKILL one step after a checkpoint."""
        return self._run(replace(self._paced("killed"), kill_step=self._shape.steps[self._stage] // 4 * 2 + 1))

    def resumed(self) -> dict[str, Any]:
        """What was killed, gone on with. ``repeats``: what was logged after the checkpoint is logged again, equal."""
        case = self._paced("resumed")
        before = {line["step"]: line for line in metrics_of(case.out)}
        result = self._run(case)
        again = {line["step"]: line for line in metrics_of(case.out)}
        return result | {"repeats": bool(before) and all(_same(line, again.get(step)) for step, line in before.items())}

    def _paced(self, name: str) -> Case:
        out = self._folder / "paced-run"
        command = self._command(self._data / "all", out, self._shape.steps[self._stage], self._shape.paced_batches[self._stage])
        return Case(f"{self._stage}, all, paced, {name}", command, out, processes=2, seconds=self._card(1.0))

    def trl(self) -> dict[str, Any]:
        """TRL's own trainer on the tenth, one process, without a card's seconds."""
        name, out = {"rl": "trl-grpo", "sft": "trl-sft"}[self._stage], self._folder / "trl-run"
        command = (name, str(self._data / "tenth"), str(self._model), str(out), "2")
        return self._run(Case(f"{name}, tenth", command, out, seconds=self._card(0.0), limit_s=900.0), ours=False)

    def _run(self, case: Case, *, ours: bool = True) -> dict[str, Any]:
        notes = self._folder / f"notes-{case.name.replace(', ', '-')}"
        seen = observe(case, notes)
        shutil.rmtree(notes)
        outcome = "well" if seen.status == 0 else "killed" if case.kill_step and seen.killed else last_words(seen.tail)
        found = figures(case, seen, model_bytes=self._model_bytes)
        print(f"{case.name}: {outcome}", json.dumps({k: v for k, v in found.items() if isinstance(v, float)}), flush=True)
        return found | {"ours": ours, "paced": any(case.seconds.values()), "outcome": outcome}


def _same(one: dict[str, Any], other: dict[str, Any] | None) -> bool:
    names = [name for name in ("loss", "grad_norm", "reward", "num_tokens") if name in one]
    return other is not None and all(one[name] == other.get(name) for name in names)


def last_words(tail: str) -> str:
    """Return the last line of a run's output that says something, for a cell of a table."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "error:" in line]
    return (errors or lines or ["said nothing"])[-1].replace("|", "/")[:160]


def count_weights(model: Path) -> int:
    """Return how many numbers the weights of a checkpoint folder are."""
    from safetensors import safe_open

    total = 0
    for path in model.glob("*.safetensors"):
        with safe_open(path, "pt") as weights:
            sizes = (weights.get_slice(name).get_shape() for name in weights.keys())  # noqa: SIM118  (no mapping)
            total += sum(_product(size) for size in sizes)
    return total


def _product(numbers: Sequence[int]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result


def rehearse(stage: str, folder: Path, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the figures of a stage's runs; its data are deleted after them."""
    plan, shape = PLANS[stage], SMALL if arguments.scale < 1 else FULL
    sizes = ((arguments.side, arguments.side),) if arguments.side else None
    share = (arguments.side**2 if arguments.side else 1_000_000) / 1_000_000
    plan = replace(plan, num_pairs=round(plan.num_pairs * arguments.scale), pair_kb=plan.pair_kb * share + 20)
    with temporary_folder(folder) as own:
        data = make_set(plan, own / "data", sizes=sizes).parent
        runs = Rehearsal(stage, data, make_model(own / "model"), own, shape, arguments.set)
        cases = {
            "tenth": lambda: runs.unpaced("tenth"),
            "all": lambda: runs.unpaced("all"),
            "paced": runs.killed,
            "resumed": runs.resumed,
            "trl": runs.trl,
        }
        for name in arguments.runs:
            yield cases[name]()


@contextmanager
def temporary_folder(folder: Path | None) -> Iterator[Path]:
    """Yield a new folder in ``folder``, or in the system's, that is deleted however the block ends."""
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rehearsal-", dir=folder) as made:
        yield Path(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0] if __doc__ else None)
    runs = ("tenth", "all", "paced", "resumed", "trl")
    parser.add_argument("--stages", nargs="+", choices=list(PLANS), default=list(PLANS))
    parser.add_argument("--runs", nargs="+", choices=runs, default=list(runs), help="resumed goes on with paced")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the paper's pairs; below 1 with small batches too")
    parser.add_argument("--side", type=int, help="side of a square picture in px; without: a megapixel")
    parser.add_argument("--folder", type=Path, help="where data and runs are made; without: the system's temporary folder")
    parser.add_argument("--out", type=Path, default=ROOT / "eval" / "results", help="folder of the two files written")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further keys of the configs")
    arguments = parser.parse_args()
    found: list[dict[str, Any]] = []
    try:
        for stage in arguments.stages:
            for figures_of_run in rehearse(stage, arguments.folder, arguments):
                found.append(figures_of_run)
                report(found, arguments)  # of what there is, should a later one fail
    except RewardlabError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


def report(found: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Write both files."""
    shown = limits(found)
    facts = {
        "commit": commit(),
        "cores": os.cpu_count(),
        "memory_gib": psutil.virtual_memory().total / 2**30,
        "scale": arguments.scale,
        "settings": [*SETTINGS["rl"], *SETTINGS["sft"], *arguments.set],
    }
    record = {**facts, "runs": found, "limits": shown}
    write_atomic(arguments.out / "rehearsal.json", json.dumps(record, indent=1) + "\n")
    rows = [f"| {row['figure']} | {row['limit']:g} | {_number(row['worst'])} | {row['holds']} |" for row in shown]
    text = [
        f"# A run of the paper's size, rehearsed\n\n`python eval/rehearsal.py`, commit {commit()}; {facts['cores']} cores.\n",
        table(found),
        "| limit | at most | worst of ours | holds |\n|---|---|---|---|\n" + "\n".join(rows) + "\n",
    ]
    write_atomic(arguments.out / "rehearsal.md", "\n".join(text))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    main()
