"""The loop of a judge and its policy without training: pairs, a plan, and what stands in for its commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import typer

from rewardlab.cli import app
from rewardlab.config import SignsConfig
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import RewardlabError
from rewardlab.training.harden_plan import HardenPlan
from rewardlab.types import PreferencePair
from tests.support.images import png

BAD_USAGE = typer.BadParameter.__base__  # click's UsageError: typer has a click of its own
PAIRS = [PreferencePair(f"p{n}", "Which?", (f"It is {n}.", "It is red."), 0, (png(),)) for n in range(6)]


@cache
def command_tree() -> Any:
    return typer.main.get_command(app)


def parse_words(words: Sequence[str]) -> str:
    """Parse a command line as `rewardlab` does, without running it; return the command's name. Raise BAD_USAGE for options and
    values that the command does not take."""
    command, rest, names = command_tree(), list(words), list[str]()
    while hasattr(command, "commands"):
        names.append(rest.pop(0))
        command = command.commands[names[-1]]
    command.make_context(names[-1], rest)
    return " ".join(names)


class Commands:
    """Stands in for the commands of a round: parses each as the real one does, and writes what it leaves. Before the
    ``killed_at``-th it ends."""

    def __init__(self, negatives: int = 2, killed_at: int = -1, right: Sequence[int] = (50, 60, 70)) -> None:
        self.lines: list[list[str]] = []
        self.names: set[str] = set()  # of all commands
        self.launchers: list[list[str]] = []  # of each line
        self.negatives, self.killed_at = negatives, killed_at
        self.earlier = 0  # so many more right answers has a checkpoint before the last
        self.right = dict(zip(("start_policy", "round_0", "round_1"), right, strict=True))

    def __call__(self, *words: Any, allowed: Sequence[int] = (0,), is_read: bool = False, launcher: Sequence[str] = ()) -> str:
        line = [str(word) for word in words]
        self.names.add(parse_words(line))
        if is_read:
            run = {"accuracy": 0.9, "against_first": None, "failure": ""}
            worse = "round_1" in line[2]
            return json.dumps({"runs": [run, {**run, "against_first": {"interval": (-0.05, -0.02 if worse else 0.02)}}]})
        if len(self.lines) == self.killed_at:
            raise RewardlabError("killed")
        self.lines.append(line)
        self.launchers.append(list(launcher))
        out = Path(line[line.index("--out") + 1])
        out.mkdir(parents=True, exist_ok=True)
        if line[0] in ("policy", "sft", "rl"):
            for name in ("checkpoint-4", "checkpoint-8", "final"):
                (out / name).mkdir()
            (out / "final" / "rewardlab.json").write_text("{}")
            metrics = {"answers/right": 0.5, "answers/novelty": 0.1}
            (out / "metrics.jsonl").write_text(
                "".join(json.dumps({"step": n, "reward": 0.1 * n, **metrics}) + "\n" for n in range(1, 9))
            )
            (out / "run.json").write_text(json.dumps({"config": {"signs": SignsConfig().model_dump()}}))
        elif line[0] == "self-distil":
            (out / "distilled.parquet").write_text("")
        elif line[0] == "data":
            place = next(name for name in (out.name, out.parent.name, out.parent.parent.name) if name in self.right)
            right = self.right[place] + (out.name == "checkpoint-4") * self.earlier
            counts = {"questions": 100, "right": right, "wrong": 99 - right, "unknown": 1, "paid": 99, "reward": 0.5}
            (out / "policy.json").write_text(json.dumps(counts))
            made = [PreferencePair(f"{out.parent.name}/{n}", "Which?", ("It is 1.", f"x{n}"), 0) for n in range(self.negatives)]
            if made:
                write_parquet(made, out / "negatives.parquet")
        else:
            (out / "report.json").write_text("{}")
        return ""

    @property
    def stages(self) -> list[str]:
        return [line[0] for line in self.lines]


def plan_in(folder: Path) -> HardenPlan:
    """Return the plan of a loop whose files are written into ``folder``, with absolute paths. Its policy is a hub id."""
    write_parquet(PAIRS, folder / "pairs.parquet")
    write_parquet([replace(pair, pair_id=f"held_out_{pair.pair_id}") for pair in PAIRS], folder / "held_out.parquet")
    (folder / "p.yaml").write_text("learning_rate: 1.0e-6\n")
    (folder / "j.yaml").write_text("learning_rate: 1.0e-6\nrollout_batch_size: 4\nbatch_size: 4\nconsistency: {weight: 0}\n")
    (folder / "judge_0").mkdir()
    (folder / "judge_0" / "config.json").write_text("{}")
    files = [str(folder / name) for name in ("pairs.parquet", "held_out.parquet", "judge_0", "p.yaml", "j.yaml", "judge")]
    data, held_out, judge, policy_config, judge_config, judge_file = files
    return HardenPlan(
        data, held_out, "policy_0", judge, policy_config, judge_config, "exact", rounds=2, mix=1.0, judge_file=judge_file
    )
