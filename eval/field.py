"""One recording under the rules of every public scorer of VL-RewardBench: how one judge gets seven scores, and why.

    python eval/field.py RECORDING --data FILE [--format NAME] [--picture FILE.svg]   a replay file, or the votes.jsonl of a run
    python eval/field.py --data FILE                                                 a simulated judge, for the docs

The scorers are the official one, R1-Reward's, Proxy-GRM's, UnifiedReward's, lmms-eval's, VLMEvalKit's and ours. The simulated
judge has a known accuracy: it names the better response with a probability by group, prefers the first response, sometimes
ends without a verdict, and sometimes calls the other answer better in its reasoning. Its table goes to
``eval/results/field.md``, the pictures (by Chromium and playwright) to ``docs/pictures``. A few seconds, no network.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from eval.field_study.audit import audit_field, audit_lines, field_picture
from eval.pictures import CHROMIUM, FOLDER, Camera
from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.registry import find_benchmark
from rewardlab.benchmarks.replay import Replay
from rewardlab.cli.exit_codes import exit_code_of
from rewardlab.errors import RewardlabError
from rewardlab.models.checkpoints import commit
from rewardlab.prompts import reading_format
from rewardlab.types import BOTH_ORDERS, choice_of

FIELD_PICTURES = ("field", "field-dark")


@dataclass(frozen=True)
class SimulatedJudge:
    """Shares in 0..1: ``skill`` by group, of answers that name the better response where the judge does not ``lean``, which is
    to name the first whatever it is; ``mute`` have no verdict; ``doubts`` first call the other answer the better one."""

    general: float = 0.6
    hallucination: float = 0.72
    reasoning: float = 0.58
    lean: float = 0.2
    mute: float = 0.08
    doubts: float = 0.12

    def accuracy(self, group: str) -> float:
        """Return the chance of a right answer over both orders; an answer without a verdict is wrong."""
        skill: float = getattr(self, group)
        return (1 - self.mute) * (self.lean / 2 + (1 - self.lean) * skill)

    def text(self, better: int, group: str, dice: random.Random) -> str:
        """Return an answer where the response at place ``better`` (1 or 2) is the better one."""
        number = 1 if dice.random() < self.lean else better if dice.random() < getattr(self, group) else 3 - better
        first, second = dice.randint(1, 4), dice.randint(1, 4)
        words = f"Response 1 has {first} details that the image shows, Response 2 has {second}."
        if dice.random() < self.mute:
            return f"<think>{words} They are hard to tell apart, both with a mistake or {dice.randint(1, 2)}"
        if dice.random() < self.doubts:
            words += f" For its style one could say that Answer {3 - number} is better."
        return f"<think>{words}</think><answer>{number}</answer>"


def recorded(rows: Sequence[Row], judge: SimulatedJudge, seed: int = 0) -> Iterator[str]:
    """Yield the lines of a replay file: one answer in each order to each row."""
    dice = random.Random(seed)
    for row in rows:
        assert row.pair.preferred is not None
        for order in BOTH_ORDERS:
            better = 1 if choice_of(row.pair.preferred, order).value == "first" else 2
            yield json.dumps({"row": row.row, "order": order.value, "text": judge.text(better, row.group, dice)})


def take_pictures(picture: str, folder: Path) -> None:
    """Write an SVG's pictures, light and dark, to ``folder``."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as work, sync_playwright() as driver:
        page_file = Path(work) / "field.html"
        page_file.write_text(
            f"<!DOCTYPE html><meta charset=utf-8><style>body{{margin:0;padding:8px;width:fit-content}}</style>{picture}"
        )
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, dark in zip(FIELD_PICTURES, (False, True), strict=True):
            page = Camera(browser, folder).page(f"file://{page_file}", width=1000, height=600, dark=dark, scale=1.5)
            page.add_style_tag(content="@media(prefers-color-scheme:dark){html{background:#12161c}}")
            Camera(browser, folder).keep(name, page.locator("body").screenshot())
            page.close()
        browser.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=Path, nargs="?", help="recorded texts; default: a simulated judge's")
    parser.add_argument("--data", type=Path, required=True, help="VL-RewardBench's data file")
    parser.add_argument("--format", help="verdict format of the recorded texts (default: think_answer)")
    parser.add_argument("--picture", type=Path, help="picture of the recording's table, as .svg")
    parser.add_argument("--out", type=Path, default=ROOT / "eval" / "results" / "field.md")
    parser.add_argument("--pictures", type=Path, default=FOLDER, help="folder of the docs' pictures")
    options = parser.parse_args(arguments)
    rows = find_benchmark("vl_rewardbench").load(options.data, images=None, with_images=False)
    if options.recording:
        scores = audit_field(Replay(options.recording, reading_format(options.format) if options.format else None), rows)
        print("\n".join(audit_lines(scores)))
        if options.picture:
            options.picture.write_text(field_picture(scores), encoding="utf-8")
        return
    write_results(rows, options)


def write_results(rows: Sequence[Row], options: argparse.Namespace) -> None:
    """Write the table and the pictures of a simulated judge's recording."""
    judge = SimulatedJudge()
    with tempfile.TemporaryDirectory() as work:
        recording = Path(work) / "recording.jsonl"
        recording.write_text("\n".join(recorded(rows, judge)) + "\n")
        scores = audit_field(Replay(recording, "think_answer"), rows)
    command = shlex.join(["python", "eval/field.py", "--data", options.data.name])
    truth = sum(judge.accuracy(row.group) for row in rows) / len(rows)
    shares = {name: f"{100 * getattr(judge, name):.0f} %" for name in ("lean", "mute", "doubts")}
    head = [
        "# One judge under every public scorer",
        "",
        f"`{command}`, commit {commit()[:12]}. One recording:",
        "one answer in each order to each row. The judge is simulated: it names the first response in",
        f"{shares['lean']} of its answers whatever it is, ends without a verdict in {shares['mute']}, and calls the other",
        f"answer the better one on the way in {shares['doubts']}. It is right in {100 * truth:.1f} % over both orders.",
        "",
    ]
    options.out.write_text("\n".join([*head, *audit_lines(scores)]) + "\n")
    options.pictures.mkdir(parents=True, exist_ok=True)
    take_pictures(field_picture(scores), options.pictures)


if __name__ == "__main__":
    try:
        main()
    except RewardlabError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(exit_code_of(error)) from error
