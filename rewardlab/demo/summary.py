"""The quickstart's summary: one record, printed as a table and drawn as one page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rewardlab.benchmarks.report_model import JudgeScores, Report, Scores, json_form
from rewardlab.data.files import read_lines
from rewardlab.data.pairs import read_pairs
from rewardlab.demo.build import TEST
from rewardlab.demo.server import favored_response
from rewardlab.metrics.intervals import paired_difference
from rewardlab.models.checkpoints import versions
from rewardlab.types import Choice, Order, choice_of
from rewardlab.verdicts.places import reasoning_of

STAGES = ("base", "sft", "rl")
TITLES = {"base": "base model", "sft": "SFT", "rl": "StableReinforce"}


@dataclass(frozen=True)
class Accuracy:
    """A share of right answers with its 95 % interval over pairs."""

    accuracy: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Slice:
    """Accuracy on the ``n`` pairs of one source, with its 95 % interval over pairs."""

    n: int
    accuracy: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Control:
    """Accuracy and invalid rate of a control pass: greedy decoding, a blank image, another pair's image."""

    accuracy: float
    interval: tuple[float, float]
    invalid_rate: float


@dataclass(frozen=True)
class StageSummary:
    """The numbers of one stage's judge; ``votes`` maps a number of votes per order to the accuracy of their majority.

    ``reasoning``: among right verdicts, the shares whose reasoning agrees, contradicts, or is unclear (None: no right verdict).
    """

    num_pairs: int
    invalid_rate: float
    sampled_at_1: Accuracy
    votes: dict[str, Accuracy]
    greedy: Control
    blank: Control | None
    other: Control | None
    digits_greedy: Slice | None
    swap_consistency_greedy: float | None
    swap_consistency: float | None
    position_bias: float | None
    reasoning: dict[str, float | None]
    tokens_per_vote: float | None


@dataclass(frozen=True)
class Gain:
    """A paired difference of accuracies with its 95 % interval over pairs."""

    mean: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Summary:
    """Everything the quickstart reports; ``teacher`` and ``baselines`` are as their stages wrote them,
    ``served`` the answers of the last judge over HTTP.
    """

    seed: int
    commit: str
    versions: dict[str, str]
    seconds: dict[str, float]
    cpu_seconds: dict[str, float]
    teacher: dict[str, Any]
    stages: dict[str, StageSummary]
    rl_gain_sampled_at_1: Gain
    baselines: dict[str, dict[str, Any]]
    served: Control

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _StageVote:
    order: Order
    choice: Choice | None
    text: str

    def is_right(self, preferred: int) -> bool:
        return self.choice == choice_of(preferred, self.order)


_Value = Accuracy | Slice | Control | float | None
_VotesOfRow = Mapping[int, Sequence[_StageVote]]


def _read_report(out: Path, stage: str) -> Report:
    return Report.from_json(json.loads((out / "bench" / stage / "report.json").read_text(encoding="utf-8")))


def _read_votes(out: Path, stage: str) -> dict[int, list[_StageVote]]:
    votes = {}
    for line in read_lines(out / "bench" / stage / "votes.jsonl")[1:]:
        entry = json.loads(line)
        if entry["pass"] == "votes":
            votes[entry["row"]] = [
                _StageVote(Order(vote["order"]), Choice(vote["choice"]) if vote["choice"] else None, vote["text"])
                for vote in entry["votes"]
            ]
    return votes


def reasoning_shares(votes: _VotesOfRow, preferred: Sequence[int]) -> dict[str, float | None]:
    """Return, among right verdicts, the shares whose reasoning favors the same response, the opposite one, neither."""
    counts = {"agrees": 0, "contradicts": 0, "unclear": 0}
    for row, row_votes in votes.items():
        for vote in row_votes:
            if vote.is_right(preferred[row]):
                side = favored_response(reasoning_of(vote.text))
                choice = 1 if vote.choice is Choice.FIRST else 2
                counts["unclear" if side is None else "agrees" if side == choice else "contradicts"] += 1
    total = sum(counts.values())
    return {name: count / total if total else None for name, count in counts.items()}


def sampled_scores(votes: _VotesOfRow, preferred: Sequence[int]) -> dict[str, float]:
    """Return the accuracy of a single sampled vote for each pair, over all its votes in both orders."""
    return {
        str(row): sum(vote.is_right(preferred[row]) for vote in row_votes) / len(row_votes) for row, row_votes in votes.items()
    }


def _control(scores: JudgeScores | Scores) -> Control:
    return Control(scores.accuracy.micro, scores.interval, scores.invalid_rate)


def summarize_stage(report: Report, votes: _VotesOfRow, preferred: Sequence[int]) -> StageSummary:
    """Return the numbers of one stage's column."""
    scores, controls = report.scores, report.controls
    curve = {str(point.k): Accuracy(point.accuracy, point.interval) for point in scores.k_curve}
    digits = controls["greedy"].slices["source"].get("digits")
    return StageSummary(
        num_pairs=scores.num_pairs,
        invalid_rate=scores.invalid_rate,
        sampled_at_1=curve["1"],
        votes=curve,
        greedy=_control(controls["greedy"]),
        blank=_control(controls["blank"]) if "blank" in controls else None,
        other=_control(controls["other"]) if "other" in controls else None,
        digits_greedy=None if digits is None else Slice(digits.n, digits.accuracy, digits.interval),
        swap_consistency_greedy=controls["greedy"].swap_consistency,
        swap_consistency=scores.swap_consistency,
        position_bias=scores.position_bias,
        reasoning=reasoning_shares(votes, preferred),
        tokens_per_vote=scores.tokens_per_vote,
    )


def read_stage(out: Path, stage: str) -> StageSummary:
    """Return the numbers of one judge, from the files that its benchmark left in ``out/bench``."""
    preferred = [int(pair.preferred or 0) for pair in read_pairs(out / "demo" / TEST)]
    return summarize_stage(_read_report(out, stage), _read_votes(out, stage), preferred)


def summarize(
    out: Path,
    *,
    seed: int,
    commits: str,
    seconds: Mapping[str, float],
    cpu_seconds: Mapping[str, float],
) -> Summary:
    """Return everything the quickstart reports, from the files its stages wrote at ``commits``."""
    preferred = [int(pair.preferred or 0) for pair in read_pairs(out / "demo" / TEST)]
    votes = {stage: _read_votes(out, stage) for stage in STAGES}
    scores = {stage: sampled_scores(votes[stage], preferred) for stage in STAGES}
    gain, interval = paired_difference(scores["sft"], scores["rl"])
    return Summary(
        seed=seed,
        commit=commits,
        versions=versions(),
        seconds={name: round(value, 1) for name, value in seconds.items()},
        cpu_seconds={name: round(value, 1) for name, value in cpu_seconds.items()},
        teacher=json.loads((out / "distill" / "statistics.json").read_text(encoding="utf-8")),
        stages={stage: summarize_stage(_read_report(out, stage), votes[stage], preferred) for stage in STAGES},
        rl_gain_sampled_at_1=Gain(gain, interval),
        baselines=json_form(_read_report(out, "rl").baselines),
        served=_control(_read_report(out, "endpoint").scores),
    )


def _cell(value: _Value) -> str:
    if isinstance(value, Accuracy | Slice | Control):
        low, high = value.interval
        return f"{100 * value.accuracy:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
    return "–" if value is None else f"{100 * value:.1f}"


SUMMARY_ROWS: tuple[tuple[str, Callable[[StageSummary], _Value]], ...] = (
    ("invalid answers", lambda stage: stage.invalid_rate),
    ("one sampled vote", lambda stage: stage.sampled_at_1),
    ("majority of 5", lambda stage: stage.votes.get("5")),
    ("majority of 15", lambda stage: stage.votes.get("15")),
    ("one greedy vote", lambda stage: stage.greedy),
    ("  digits (scans)", lambda stage: stage.digits_greedy),
    ("  blank image", lambda stage: stage.blank),
    ("  another's image", lambda stage: stage.other),
    ("  swap consistency", lambda stage: stage.swap_consistency_greedy),
    ("consistent", lambda stage: stage.reasoning["agrees"]),
    ("position bias", lambda stage: stage.position_bias),
)


def summary_table(summary: Summary) -> list[tuple[str, list[str]]]:
    """Return (name, a cell per stage) of each row; percent, 95 % intervals over pairs."""
    return [(name, [_cell(value_of(summary.stages[stage])) for stage in STAGES]) for name, value_of in SUMMARY_ROWS]


def _points(gain: Gain) -> str:
    low, high = gain.interval
    return f"{100 * gain.mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}] points"


def summary_sentences(summary: Summary) -> list[str]:
    """Return the sentences below the table."""
    teacher = summary.teacher
    tags = ", ".join(f"{tag}: {count:,}" for tag, count in teacher["attempts"].items())
    baselines = ", ".join(f"{name} {100 * cell['micro']:.1f}" for name, cell in summary.baselines.items())
    return [
        "indented: of one greedy vote; consistent: right verdicts whose reasoning agrees",
        f"StableReinforce over SFT, one sampled vote, paired: {_points(summary.rl_gain_sampled_at_1)}",
        f"teacher: {teacher['num_requests']:,} requests; attempts {tags}; "
        f"Spearman of level and tag {teacher['level_tag_spearman']:.2f}",
        f"baselines: {baselines}",
        _time(summary.seconds),
        _cpu_time(summary.cpu_seconds),
    ]


def _cpu_time(cpu_seconds: Mapping[str, float]) -> str:
    stages = ", ".join(f"{name} {s:.0f}" for name, s in cpu_seconds.items() if name != "total")
    total = f", total {cpu_seconds['total'] / 60:.1f} minutes" if "total" in cpu_seconds else ""
    return f"seconds of CPU: {stages}{total}"


def _time(seconds: Mapping[str, float]) -> str:
    if "total" in seconds:
        return f"total {seconds['total'] / 60:.1f} minutes"
    return "total: not measured, an earlier call had begun it; stages: " + ", ".join(
        f"{name} {s:.0f} s" for name, s in seconds.items()
    )


def print_tables(summary: Summary, console: Console) -> None:
    """Print the table and the sentences below it."""
    num_pairs = summary.stages["rl"].num_pairs
    grid = Table(title=f"{num_pairs:,} held-out pairs, each in both orders; percent, 95 % intervals over pairs")
    grid.add_column("percent")
    for stage in STAGES:
        grid.add_column(TITLES[stage], justify="right")
    for name, cells in summary_table(summary):
        grid.add_row(name, *cells)
    console.print(grid)
    for sentence in summary_sentences(summary):
        console.print(sentence, highlight=False)
