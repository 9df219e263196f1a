"""The statistics of a distillation: difficulty, agreement, the teacher's position bias, tokens and money."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from scipy.stats import spearmanr

from rewardlab.config import DistillConfig
from rewardlab.distill.journal import Journal
from rewardlab.metrics.intervals import share_with_interval
from rewardlab.types import Order, PreferencePair, choice_of
from rewardlab.verdicts.other_formats import MOST_TEXTS, UNREAD, other_format

TAGS = ("1", "2", "3", "unsolved")


def tag_rank(tag: str) -> int:
    """Return the rank of a tag: 1, 2, 3, and 4 for unsolved."""
    return TAGS.index(tag) + 1


def rank_correlation(counts: Mapping[tuple[int, int], int]) -> float | None:
    """Return Spearman's rho of two ranks, given how often each pair of them occurred; None if one of them does not vary."""
    if len({first for first, _ in counts}) < 2 or len({second for _, second in counts}) < 2:
        return None
    both = [pair for pair, number in counts.items() for _ in range(number)]
    return float(spearmanr([first for first, _ in both], [second for _, second in both]).statistic)


@dataclass(frozen=True)
class AttemptRow:
    """A row of ``attempts.parquet``; ``kept``: the judgment is in ``distilled.parquet``."""

    pair_id: str
    attempt: int
    order: str
    verdict: str
    agrees: bool
    kept: bool
    text: str
    tokens: int
    prompt_tokens: int


class PositionBias(TypedDict):
    """``named_first``: fraction of valid verdicts for the response shown first, minus 0.5. ``right_when_first`` and
    ``right_when_second``: how often the teacher agrees with the label if the preferred response is shown there; without a bias
    they are equal. ``same_place``: fraction of pairs judged in both orders with a verdict for the same position. Fractions are
    [fraction, lower, upper]."""

    named_first: float | None
    right_when_first: list[float] | None
    right_when_second: list[float] | None
    same_place: list[float] | None


class Summary(TypedDict):
    """Statistics of the answers. ``other_format``: advice if answers without a verdict have one in another format, else
    None."""

    num_pairs: int
    num_kept: int
    num_rejected_attempts: int
    attempts: dict[str, int]
    attempts_by_level: dict[str, dict[str, int]]
    level_tag_spearman: float | None
    teacher_shares: dict[str, int]
    num_requests: int
    num_asked_again: int
    num_failed_requests: int
    verdict_statuses: dict[str, int]
    other_format: str | None
    teacher_position_bias: PositionBias
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost_usd: float
    model: str
    template: str
    seed: int


class Statistics(Summary):
    """The content of ``statistics.json``. ``asked_without``: fields that the teacher refuses, so that its defaults hold."""

    num_pairs_asked_about: int
    num_failed_pairs: int
    stopped_by_budget: bool
    asked_without: list[str]


class Tally:
    """Counts that grow pair by pair."""

    def __init__(self) -> None:
        self._attempts: Counter[str] = Counter()
        self._levels: Counter[tuple[int, str]] = Counter()
        self._statuses: Counter[str] = Counter()
        self._named_places: Counter[str] = Counter()
        self._right_at: Counter[tuple[str, bool]] = Counter()
        self._both: Counter[str] = Counter()
        self._shares: Counter[float] = Counter()
        self._unread: list[str] = []  # some texts without a verdict
        self._kept = self._tagged = self._rejected = 0

    def add(self, pair: PreferencePair, tagged: PreferencePair | None, rows: Sequence[AttemptRow]) -> None:
        """Count a pair, its tag, and its rows of ``attempts.parquet``."""
        choices: dict[Order, int] = {}  # the first valid verdict in each order
        for row in rows:
            order = Order(row.order)
            self._statuses[row.verdict] += 1
            self._rejected += not row.kept
            if row.verdict in UNREAD and len(self._unread) < MOST_TEXTS:
                self._unread.append(row.text)
            if row.verdict != "ok":
                continue
            assert pair.preferred is not None
            preferred_at = choice_of(pair.preferred, order)
            choice = preferred_at if row.agrees else preferred_at.swap()
            self._named_places[choice.value] += 1
            self._right_at[preferred_at.value, row.agrees] += 1
            choices.setdefault(order, pair.preferred if row.agrees else 1 - pair.preferred)
        if len(choices) == 2:
            self._both["same answer" if len(set(choices.values())) == 1 else "same place"] += 1
        if tagged is None:
            return
        self._tagged += 1
        self._kept += bool(tagged.judgment)
        self._attempts[tagged.attempts] += 1
        if tagged.level is not None:
            self._levels[tagged.level, tagged.attempts] += 1
        if tagged.teacher_share is not None:
            self._shares[round(tagged.teacher_share, 3)] += 1

    def summary(self, journal: Journal, config: DistillConfig) -> Summary:
        """Return the statistics. Rates come with their 95 % intervals (Wilson's)."""
        usage, counts = journal.usage(), journal.counts()
        levels = sorted({level for level, _ in self._levels})
        ranks = {(level, tag_rank(tag)): number for (level, tag), number in self._levels.items()}
        return {
            "num_pairs": self._tagged,
            "num_kept": self._kept,
            "num_rejected_attempts": self._rejected,
            "attempts": {tag: self._attempts[tag] for tag in TAGS},
            "attempts_by_level": {str(level): {tag: self._levels[level, tag] for tag in TAGS} for level in levels},
            "level_tag_spearman": rank_correlation(ranks),
            "teacher_shares": {str(share): number for share, number in sorted(self._shares.items())},
            "num_requests": counts["asked"],
            "num_asked_again": counts["asked_again"],
            "num_failed_requests": counts["failures"],
            "verdict_statuses": dict(self._statuses),
            "other_format": self._other_format(),
            "teacher_position_bias": self._position_bias(),
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "cost_usd": round(usage.usd, 6),
            "model": config.model,
            "template": config.template,
            "seed": config.seed,
        }

    def _other_format(self) -> str | None:
        other = other_format(self._unread)
        cure = f"template={other.name} asks for that form and reads it (with another --out)" if other else ""
        return other.sentence(cure) if other else None

    def _position_bias(self) -> PositionBias:
        first, second = (sum(self._right_at[place, hit] for hit in (True, False)) for place in ("first", "second"))
        both, verdicts = sum(self._both.values()), sum(self._named_places.values())
        return {
            "named_first": self._named_places["first"] / verdicts - 0.5 if verdicts else None,
            "right_when_first": share_with_interval(self._right_at["first", True], first),
            "right_when_second": share_with_interval(self._right_at["second", True], second),
            "same_place": share_with_interval(self._both["same place"], both),
        }
