"""The report of a benchmark run as a tree of frozen dataclasses; its JSON form is ``report.json``.

Accuracies and shares are in 0..1, intervals 95 %, over prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rewardlab.benchmarks.agreement import AgreementScores
from rewardlab.benchmarks.robustness.model import Robustness
from rewardlab.benchmarks.robustness.text import largest_loss
from rewardlab.benchmarks.systems import SystemScores
from rewardlab.metrics.calibration import Bin, RiskPoint
from rewardlab.metrics.intervals import AccuracyEstimate, DifferenceEstimate, Interval
from rewardlab.metrics.revision import RevisionScores, ShareEstimate
from rewardlab.metrics.ties import TieScores
from rewardlab.reporting.tables import percent, with_interval
from rewardlab.samplers.base import SAMPLING_KEYS


@dataclass(frozen=True)
class CountedEstimate:
    """An accuracy of ``n`` pairs, or prompts."""

    n: int
    accuracy: float
    interval: Interval


@dataclass(frozen=True)
class GroupScores:
    """What is reported of one group of a benchmark. ``position_interval`` is None if there is no bias."""

    n: int
    accuracy: float
    interval: Interval
    invalid_rate: float
    position_bias: float | None
    position_interval: Interval | None = None


@dataclass(frozen=True)
class Accuracy:
    """``micro`` is the mean over pairs, ``macro`` the unweighted mean over groups."""

    micro: float
    macro: float


@dataclass(frozen=True)
class CurvePoint:
    """Accuracy of the majority of ``k`` votes of one order, each order a trial.

    ``balanced``: one majority of k votes of each of both orders; None where one order alone was asked. ``weighted``: as many
    votes by the probabilities of their verdicts; None where votes carry none.
    """

    k: int
    accuracy: float
    interval: Interval
    any_correct: float
    balanced: AccuracyEstimate | None
    weighted: AccuracyEstimate | None


@dataclass(frozen=True)
class ValidMajority:
    """Accuracy of the same trials if the majority of the *valid* votes decided, however few they are: the rule of most papers.
    ``decided`` is the fraction of trials (0..1) that it decides, right or wrong; the others are not right here either."""

    accuracy: float
    interval: Interval
    decided: float


@dataclass(frozen=True)
class StoppingPoint:
    """Samples and tokens per pair where votes stop at an ``error`` (None: all are asked), and what that does to accuracy.
    ``tokens`` is None where they are not known."""

    error: float | None
    samples: float
    tokens: float | None
    accuracy: float
    interval: Interval
    difference: float
    difference_interval: Interval


@dataclass(frozen=True)
class LengthFifth:
    """A fifth of the pairs by how much longer the better response is: ``characters`` is the median difference."""

    characters: int
    n: int
    accuracy: float
    interval: Interval


@dataclass(frozen=True)
class Calibration:
    """How far a confidence in the response named can be trusted; see ``confidence.calibrate``."""

    mean_confidence: float
    accuracy: float
    ece: float
    ece_interval: Interval
    ece_if_exact: float
    brier: float
    reliability: tuple[Bin, ...]
    aurc: float
    risk_coverage: tuple[RiskPoint, ...]
    brier_interval: Interval | None = None


@dataclass(frozen=True)
class Confidence:
    """``undecided`` of ``num_pairs`` name no response. ``calibration`` is None where all are undecided."""

    num_pairs: int
    undecided: int
    calibration: Calibration | None


@dataclass(frozen=True)
class JudgeScores:
    """What stands beside every accuracy, of a judge as of a control. ``difference``: the judge's accuracy of one vote in each
    order (of the control ``greedy`` where that was run) less this control's, pair by pair; an interval around 0 says that the
    control, a judge that does not see the image, does as well."""

    accuracy: Accuracy
    interval: Interval
    slices: Mapping[str, Mapping[str, CountedEstimate]]
    invalid_rate: float
    swap_consistency: float | None
    position_bias: float | None
    difference: DifferenceEstimate | None = None


@dataclass(frozen=True)
class BaselineScores:
    """What a judge that does not look scores on the same rows and orders; ``groups`` are its accuracies. ``interval`` is None
    if the accuracy cannot vary: a coin's, and that of the first response shown in both orders."""

    micro: float
    macro: float
    groups: Mapping[str, float]
    interval: Interval | None
    all_right: CountedEstimate | None


@dataclass(frozen=True)
class Scores:
    """Everything that is computed of one judge's votes. Intervals are over ``num_clusters`` prompts; one is None if its
    metric is. ``tokens_per_vote`` is None where no vote says how long it is: of recordings of
    texts, and of judges that write none.

    ``accuracy`` is of trials decided by more than half of the votes asked; ``undecided_rate`` of the trials (0..1) have no such
    winner and are not right. ``one_vote``: the accuracy of one vote in each order, what controls are compared with.
    """

    num_pairs: int
    num_votes_total: int
    accuracy: Accuracy
    interval: Interval
    slices: Mapping[str, Mapping[str, CountedEstimate]]
    invalid_rate: float
    undecided_rate: float
    valid_majority: ValidMajority
    one_vote: AccuracyEstimate
    swap_consistency: float | None
    position_bias: float | None
    groups: Mapping[str, GroupScores]
    all_right: CountedEstimate | None
    decision: AccuracyEstimate | None
    k_curve: tuple[CurvePoint, ...]
    sequential: tuple[StoppingPoint, ...]
    statuses: Mapping[str, int]
    pairs_tied_over_both_orders: int
    pairs_without_majority: int
    pairs_without_valid_vote: int
    length_bias: float | None
    by_length: tuple[LengthFifth, ...]
    confidence: Mapping[str, Confidence]
    tokens_per_vote: float | None
    macro_interval: Interval | None = None
    swap_interval: Interval | None = None
    position_interval: Interval | None = None
    length_interval: Interval | None = None
    invalid_interval: Interval | None = None
    num_clusters: int = 0


@dataclass(frozen=True)
class MemberScores:
    """A member of a panel by itself. ``trials`` is its accuracy as the panel's headline is counted, each order a trial;
    ``accuracy`` that of its own outcome of each pair, over both orders.

    ``agreement`` is the share of pairs, of those where both name a winner, on which it names the panel's (None: there are
    none). It ``abstained`` from as many pairs, for want of valid votes; ``failed_votes`` had no answer.
    """

    judge: str
    trials: AccuracyEstimate
    accuracy: AccuracyEstimate
    agreement: float | None
    abstained: int
    failed_votes: int


@dataclass(frozen=True)
class PanelScores:
    """How a panel came to its outcomes: by ``rule``, majority or log-odds. ``disagreement`` is the share of pairs on which two
    members name different winners, of those on which two or more name one (None: there are none)."""

    rule: str
    disagreement: float | None
    members: tuple[MemberScores, ...]


@dataclass(frozen=True)
class Cost:
    """What the answers of an endpoint came to, controls and earlier parts of the run included; ``cached_tokens`` are among the
    ``prompt_tokens``. ``usd`` is None where no prices were given."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    usd: float | None = None


NO_COST = Cost(0, 0, 0)


@dataclass(frozen=True)
class ListwiseScores:
    """The part of a run by a list's own ``protocol``: ``num_answers`` to its requests, prompts ``left_out``, and of choices
    among four the fractions that name A, B, C and D (1/4 each: no bias)."""

    protocol: str
    num_answers: int
    left_out: int
    places: Mapping[str, float | None] | None


@dataclass(frozen=True)
class CriterionScores:
    """The checks of one criterion, on the pairs that have any: how often they name the better response, and how
    often both orders agree (None: no pair in both)."""

    decided: CountedEstimate
    swap_consistency: float | None


@dataclass(frozen=True)
class ChecklistScores:
    """The checklists of a judge's votes. ``readable`` is the share of votes with one, ``follows`` the share of these whose
    verdict follows from its checks (None: there are none); ``findings`` are the shares of the checks that are true, false and
    cannot be seen, of ``checks_per_vote`` on average. ``criteria`` by their names."""

    readable: ShareEstimate
    follows: ShareEstimate | None
    checks_per_vote: float
    findings: Mapping[str, float]
    criteria: Mapping[str, CriterionScores]


@dataclass(frozen=True)
class RequirementResult:
    """Whether a run meets what was required of it (``text``, as given); ``sentence`` names figure, interval and bound."""

    text: str
    is_met: bool
    sentence: str


@dataclass(frozen=True, repr=False)
class Report:
    """A run: what was asked of which judge, its ``scores``, controls and baselines, and what to know before reading them.

    In JSON the fields of ``scores`` stand beside the others. ``findings`` say what is wrong with the judge (see ``findings``).
    ``failure`` says why the run is no evidence of the judge, "" of one that is: then no figure of it stands as its own.
    ``cached_votes`` are answers of earlier runs; they are not in ``cost`` and ``seconds_per_vote``. ``revision`` is of a judge
    that verifies itself, ``checklist`` of one that checks before it chooses, ``robustness`` of a run under attack
    (`NAME:attacked`), ``listwise`` of four answers at once or of ratings, None of others. ``ties`` are of a set with pairs that
    people call a tie; all other scores are of the other pairs. ``agreement`` is with people, of a set with their ratings;
    ``systems`` of pairs that name who wrote the responses, also of those without a label. ``requirements`` are those of
    `--require`.
    """

    benchmark: str
    command: str
    data: str
    data_sha256: str
    judge: str
    judge_config: Mapping[str, Any]
    judge_config_hash: str
    template: str | None
    orders: str
    votes: int
    verdict_format: str | None
    temperature: float | None
    top_p: float | None
    stop_error: float | None
    max_tokens: int | None
    seed: int
    seconds_per_vote: float | None
    scores: Scores
    controls: Mapping[str, JudgeScores]
    baselines: Mapping[str, BaselineScores]
    official: tuple[str, ...]
    notes: tuple[str, ...]
    versions: Mapping[str, str | None]
    commit: str
    panel: PanelScores | None = None
    findings: tuple[str, ...] = ()
    failure: str = ""
    cost: Cost | None = None
    cached_votes: int = 0
    revision: RevisionScores | None = None
    checklist: ChecklistScores | None = None
    robustness: Robustness | None = None
    listwise: ListwiseScores | None = None
    ties: TieScores | None = None
    agreement: AgreementScores | None = None
    systems: SystemScores | None = None
    requirements: tuple[RequirementResult, ...] = ()

    def __repr__(self) -> str:
        low, high = (100 * end for end in self.scores.interval)
        if self.failure:
            return f"Report({self.benchmark!r}, {self.judge!r}: failed: {self.failure})"
        why = ", for no verdict was read" if self.scores.invalid_rate == 1 else ""
        return (
            f"Report({self.benchmark!r}, {self.judge!r}: {100 * self.scores.accuracy.micro:.1f} % [{low:.1f}, {high:.1f}]{why})"
        )

    def _repr_markdown_(self) -> str:
        """Return the main figures for a notebook; the whole report is in ``report.md`` and ``report.html``."""
        scores = self.scores
        lines = [f"**{self!r}**", "", f"- {scores.num_pairs:,} pairs, {scores.num_votes_total:,} votes"]
        lines += [f"- invalid answers: {100 * scores.invalid_rate:.2f} %"]
        lines += [f"- swap consistency: {100 * scores.swap_consistency:.1f} %"] if scores.swap_consistency is not None else []
        return "\n".join([*lines, *(f"- {finding}" for finding in self.findings)])

    @property
    def sampling(self) -> dict[str, float | int | None]:
        """Return how votes were sampled; None if that is not known."""
        return {name: getattr(self, name) for name in SAMPLING_KEYS}

    def to_json(self) -> dict[str, Any]:
        """Return what ``report.json`` holds."""
        flat: dict[str, Any] = {}
        for field in fields(self):
            value = json_form(getattr(self, field.name))
            flat |= value if field.name == "scores" else {field.name: value}
        for confidence in flat["confidence"].values():
            confidence |= confidence.pop("calibration") or {}
        return flat

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Report:
        """Return the report of what :meth:`to_json` gave. Raise ValueError if a field is missing or of another type."""
        nested = {
            name: {**cell, "calibration": cell if "ece" in cell else None}
            for name, cell in dict(values.get("confidence", {})).items()
        }
        flat = {**values, "confidence": nested} if "confidence" in values else dict(values)
        try:
            return _REPORT.validate_python({**flat, "scores": flat})
        except ValidationError as error:
            missing = dict.fromkeys(str(e["loc"][-1]) for e in error.errors() if e["type"] == "missing")
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"] if part != "scores")
            fault = f"lacks {', '.join(missing)}" if missing else f"has a bad {place} ({first['msg'].lower()})"
            raise ValueError(f"{fault}: {SCORE_ANEW}") from error


_REPORT = TypeAdapter(Report)
SCORE_ANEW = "run the same command again, it is scored anew"  # the cure of files that lack a figure


@dataclass(frozen=True)
class RowScore:
    """A line of ``scores.jsonl``: the score (0..1) of a row, the hash of its cluster, the fraction of its votes without a
    verdict (``invalid``), its kinds (see ``kinds``), the pair's own id and the index of its better response; ``alike`` is
    whether both orders name one response, None of a pair in one order. A tie has no better response (``preferred`` is None)
    and a score of 1 if the judge calls it a tie, else 0. ``longer`` is the index of the longer response, None of equal ones."""

    row: int
    group: str
    cluster: str
    score: float
    invalid: float
    kinds: tuple[str, ...]
    pair_id: str
    preferred: int | None
    alike: bool | None
    longer: int | None

    @property
    def three_way(self) -> float:
        """Return 1 if the judge is right in three classes, response 0, response 1 and tie; else 0."""
        return float(self.score == 1)


def json_form(value: Any) -> Any:
    """Return dataclasses, mappings and sequences as JSON has them: objects by field name, and lists."""
    if is_dataclass(value):
        return {field.name: json_form(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: json_form(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [json_form(inner) for inner in value]
    return value


TRIALS = {"both": "each pair in both orders, each order a trial", "random": "each pair in one order, drawn"}
LISTWISE_MEANINGS = {
    "choice": "accuracy on {:,} choices of {:,} prompts: one of four answers, the right one in each place once",
    "ratings": "accuracy on {:,} prompts: every right answer rated above every wrong one",
}
NOT_ONE_VERDICT = "no verdict was read in any of {:,} answers"


def has_majorities(report: Report) -> bool:
    """Return whether a trial has more than one vote, so that some of them may lack a verdict and the others decide."""
    return report.votes > 1 or report.panel is not None


def decision_name(report: Report) -> str:
    """Return what the accuracy of pairs that are decided once, over both orders, is called."""
    if report.panel:
        return f"panel by {report.panel.rule}, over both orders"
    if "verdict_probability" in report.scores.confidence:
        return "by probability over both orders"
    return "one majority over both orders" if report.votes > 1 else "right in both orders"


@dataclass(frozen=True)
class Headline:
    """``number`` in percent, its ``interval``, and ``meaning``."""

    number: str
    interval: str
    meaning: str


def headline(report: Report) -> Headline:
    """Return the accuracy over trials with its interval, of a run under attack the largest loss before it. A failed report has
    one too, which is not to be shown."""
    scores = report.scores
    accuracy = with_interval(scores.accuracy.micro, scores.interval)
    number, _, interval = accuracy.partition(" ")
    of = "attacked pairs" if report.robustness else "pairs"
    meaning = f"accuracy on {scores.num_pairs:,} {of}: {TRIALS.get(report.orders, f'each pair in {report.orders} order')}"
    if report.listwise:
        meaning = LISTWISE_MEANINGS[report.listwise.protocol].format(scores.num_pairs, scores.num_clusters)
    if has_majorities(report):
        meaning += f", decided by more than half of the votes asked ({percent(scores.undecided_rate)} % undecided)"
    if scores.decision:
        meaning += f"; {decision_name(report)}: {percent(scores.decision.accuracy)} %"
    if has_majorities(report) and (blank := report.controls.get("blank")):
        greedy = report.controls.get("greedy")
        name, sees = ("one greedy vote", greedy.accuracy.micro) if greedy else ("one vote", scores.one_vote.accuracy)
        meaning += f"; {name}: {percent(sees)} %, with a blank image {percent(blank.accuracy.micro)} %"
    if (loss := largest_loss(report.robustness)) is not None:
        words, share = loss
        number, _, interval = with_interval(share.share, share.interval).partition(" ")
        meaning = f"{words}, the largest loss under attack; {accuracy} % {meaning}"
    if scores.invalid_rate == 1:
        meaning = f"for {NOT_ONE_VERDICT.format(scores.num_votes_total)}, and each counts as wrong; {meaning}"
    return Headline(number, interval, meaning)


def headline_sentence(report: Report) -> str:
    """Return the headline as a line of text: "81.7 % [76.0, 86.4] accuracy on ..."."""
    parts = headline(report)
    return f"{parts.number} % {parts.interval} {parts.meaning}"


def judge_name(judge: str) -> str:
    """Return a judge without the address that it is served at: "openai:MODEL"."""
    return judge.partition("@http")[0]
