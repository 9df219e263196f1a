"""One recording under the rules of every public scorer: how one judge gets seven scores, and why."""

from __future__ import annotations

import random
import re
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from xml.sax.saxutils import escape

from eval.field_study.rules import RULES, Rule, drawn
from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.replay import Replay
from rewardlab.benchmarks.vl_rewardbench import official_group
from rewardlab.errors import DataError
from rewardlab.metrics.accuracy import Labeled, pair_score
from rewardlab.reporting.tables import signed
from rewardlab.types import BOTH_ORDERS, Choice, Order, Vote, choice_of
from rewardlab.verdicts.formats import WRITERS
from rewardlab.verdicts.votes import judgment

OURS = "rewardlab"
NUM_DRAWS = 200  # of the order of every row; with one, scorers differ by dice alone
GROUPS = ("general", "hallucination", "reasoning")
_TAGS = re.compile(r"</?(?:think|answer)>")


@dataclass(frozen=True)
class FieldScore:
    """What a scorer makes of the recording, in 0..1; a group without a row is None.

    ``headline`` names the figure that it reports. ``num_rows`` have a credit; ``num_out`` were left out, ``num_other_order``
    scored by a sample of the order that the scorer would not have shown, ``num_regrouped`` counted in a group that is not the
    official one. Of a scorer that draws an order all of these are means over NUM_DRAWS draws, of which ``draws`` are the lowest
    and the highest figure; None of others.
    """

    name: str
    groups: Mapping[str, float | None]
    overall: float
    macro: float
    headline: str
    num_rows: int
    num_out: int
    num_other_order: int
    num_regrouped: int
    why: str
    draws: tuple[float, float] | None = None

    @property
    def figure(self) -> float:
        return self.overall if self.headline == "overall" else self.macro


def _samples(replay: Replay, row: Row) -> dict[str, list[Vote]]:
    counts = dict(zip(BOTH_ORDERS, replay.counts(row.row), strict=True))
    return {order: replay.votes(row, order, number) for order, number in counts.items() if number}


def text_in(vote: Vote, written: str, verdict_format: str) -> str:
    """Return a recorded answer as a scorer of the form ``written`` meets it: as it is in that form, else its words without tags
    and its verdict in that form. An answer without a verdict keeps its words alone."""
    if verdict_format == written:
        return vote.completion.text
    words = _TAGS.sub("", vote.completion.text)
    if vote.verdict.choice is None:
        return words
    if written in ("think_answer", "answer_sentence"):
        return WRITERS[written](vote.verdict.choice, words)
    return f"{words}\n{WRITERS[written](vote.verdict.choice, '').strip()}"


@dataclass(frozen=True)
class _Credit:
    """What an answer earns (0..1), in which group it counts, and whether that is another than the official one."""

    value: float
    group: str
    is_regrouped: bool


def _score(name: str, headline: str, why: str, credits: Sequence[_Credit], num_out: int, num_other_order: int) -> FieldScore:
    by_group: dict[str, list[float]] = defaultdict(list)
    for credit in credits:
        by_group[credit.group].append(credit.value)
    groups = {group: sum(by_group[group]) / len(by_group[group]) if by_group[group] else None for group in GROUPS}
    known = [share for share in groups.values() if share is not None]
    overall, macro = sum(credit.value for credit in credits) / len(credits), sum(known) / len(known)
    regrouped = sum(credit.is_regrouped for credit in credits)
    return FieldScore(name, groups, overall, macro, headline, len(credits), num_out, num_other_order, regrouped, why)


def _ours(rows: Sequence[Row], samples: Sequence[Mapping[str, list[Vote]]]) -> FieldScore:
    credits = []
    for row, votes in zip(rows, samples, strict=True):
        assert row.pair.preferred is not None
        all_votes = [vote for of_order in votes.values() for vote in of_order]
        value = pair_score(Labeled(judgment("", all_votes), row.pair.preferred, row.group))
        credits.append(_Credit(value, row.group, is_regrouped=False))
    num_both = sum(len(votes) == len(BOTH_ORDERS) for votes in samples)
    coverage = f"{num_both:,} of {len(rows):,} rows in both orders, each a trial"
    why = f"{coverage}; an unread answer is wrong and stays in the denominator"
    return _score(OURS, "overall", why, credits, num_out=0, num_other_order=0)


def _by_rule(rule: Rule, rows: Sequence[Row], samples: Sequence[Mapping[str, list[Vote]]], replay: Replay) -> FieldScore | None:
    earned = [_credits(rule, row, votes, replay) for row, votes in zip(rows, samples, strict=True)]
    num_draws = NUM_DRAWS if rule.order is drawn else 1
    scores = [_of_draw(rule, rows, earned, random.Random(seed)) for seed in range(num_draws)]
    known = [score for score in scores if score is not None]
    return _mean_of(known) if len(known) > 1 else known[0] if known else None


def _credits(rule: Rule, row: Row, votes: Mapping[str, list[Vote]], replay: Replay) -> dict[str, _Credit | None]:
    """Return what the first sample of each recorded order earns; None of one that is left out."""
    credits: dict[str, _Credit | None] = {}
    group = rule.group(row.pair.pair_id)
    for order, (vote, *_) in votes.items():
        assert row.pair.preferred is not None
        better: Choice = choice_of(row.pair.preferred, Order(order))
        value = rule.credit(text_in(vote, rule.written, replay.verdict_format), better)
        credits[order] = None if value is None else _Credit(value, group, group != official_group(row.pair.pair_id))
    return credits


def _of_draw(
    rule: Rule, rows: Sequence[Row], earned: Sequence[Mapping[str, _Credit | None]], dice: random.Random
) -> FieldScore | None:
    credits, num_out, num_other = [], 0, 0
    for row, by_order in zip(rows, earned, strict=True):
        order = rule.order(row, dice)
        if order not in by_order and not rule.strict and by_order:
            order, num_other = order.swap(), num_other + 1
        credit = by_order.get(order)
        if credit is None:
            num_out += 1
        else:
            credits.append(credit)
    if not credits:
        return None
    return _score(rule.name, rule.headline, f"{rule.shows}; {rule.failures}", credits, num_out, num_other)


def _mean_of(draws: Sequence[FieldScore]) -> FieldScore:
    """Return the mean of a scorer's draws; numbers of rows are rounded."""
    groups = {name: [share for draw in draws if (share := draw.groups[name]) is not None] for name in GROUPS}
    figures = [draw.figure for draw in draws]
    return replace(
        draws[0],
        groups={name: fmean(shares) if shares else None for name, shares in groups.items()},
        overall=fmean(draw.overall for draw in draws),
        macro=fmean(draw.macro for draw in draws),
        num_rows=round(fmean(draw.num_rows for draw in draws)),
        num_out=round(fmean(draw.num_out for draw in draws)),
        num_other_order=round(fmean(draw.num_other_order for draw in draws)),
        num_regrouped=round(fmean(draw.num_regrouped for draw in draws)),
        draws=(min(figures), max(figures)),
    )


def audit_field(replay: Replay, rows: Sequence[Row]) -> list[FieldScore]:
    """Return what each scorer makes of a recording of texts on VL-RewardBench, ours first; a scorer that none of the rows has a
    sample for is not there.

    Of several samples in an order the public scorers look at the first, ours at all. Raise DataError for a recording of scores
    or outcomes, of which there are no texts to read, and for one of other rows.
    """
    if strangers := replay.rows - {row.row for row in rows}:
        raise DataError(f"{replay.name}: has samples for row {min(strangers)}, which the data does not have")
    samples = [_samples(replay, row) for row in rows]
    votes = [vote for of_row in samples for of_order in of_row.values() for vote in of_order]
    if any(vote.verdict.rule in ("scores", "outcome") for vote in votes):
        raise DataError(f"{replay.name}: holds scores or outcomes; the scorers read texts, record those")
    scores = [_ours(rows, samples)]
    for rule in RULES:
        if (score := _by_rule(rule, rows, samples, replay)) is not None:
            scores.append(score)
    return scores


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def _less_ours(score: FieldScore, ours: FieldScore) -> str:
    same = ours.overall if score.headline == "overall" else ours.macro
    return signed(score.figure - same)


def audit_lines(scores: Sequence[FieldScore]) -> list[str]:
    """Return the table in Markdown, the figure that each scorer reports in bold, and beneath it why each is what it is."""
    ours = scores[0]
    lines = [
        "| scorer | general | hallucination | reasoning | overall | macro | less ours | rows | draws |",
        "|---|" + "---:|" * 8,
    ]
    for score in scores:
        figures = [_percent(score.groups[group]) for group in GROUPS]
        overall, macro = _percent(score.overall), _percent(score.macro)
        both = [f"**{overall}**", macro] if score.headline == "overall" else [overall, f"**{macro}**"]
        less = "" if score is ours else _less_ours(score, ours)
        draws = f"{_percent(score.draws[0])} to {_percent(score.draws[1])}" if score.draws else ""
        lines.append(f"| {' | '.join([score.name, *figures, *both, less, f'{score.num_rows:,}', draws])} |")
    reported = [score.figure for score in scores]
    lines += ["", f"One recording, {len(scores)} scores: {_percent(min(reported))} to {_percent(max(reported))}."]
    lines += ["In bold the figure that a scorer reports; beside it the difference to the same figure of ours."]
    lines += [
        f"A scorer that draws orders is shown by the mean over {NUM_DRAWS} draws. Its own figure is one of them: from the"
    ]
    lines += ["lowest to the highest (draws).", ""]
    for score in scores:
        more = [score.why]
        if score.num_out:
            more.append(f"{score.num_out:,} rows left out")
        if score.num_regrouped:
            more.append(f"{score.num_regrouped:,} rows in another group than the official one")
        if score.num_other_order:
            more.append(f"{score.num_other_order:,} rows by the other order, the only one recorded")
        lines.append(f"- {score.name}: {'; '.join(more)}.")
    return lines


_STYLE = (
    "text{font:13px system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:#1d2530}.soft{font-size:11.5px;fill:#5a6675}"
    "line{stroke:#dde3ea}circle{fill:#2f5cc4}.draws{stroke:#2f5cc4;stroke-width:3}.ours{fill:#b3452c;stroke:#b3452c}"
    "@media(prefers-color-scheme:dark){text{fill:#e4e9f0}.soft{fill:#9ca9b8}line{stroke:#313b48}circle{fill:#8fb0ff}"
    ".draws{stroke:#8fb0ff}.ours{fill:#ff9d86;stroke:#ff9d86}}"
)
_LEFT, _WIDE, _RIGHT = 176, 450, 150  # pixels: of the names, of the axis, of the figures
_LETTERS = 92  # of a line of reasons, across the axis and the figures


def _draws_bar(ends: Sequence[float], y: int) -> list[str]:
    return [f'<line class="draws" x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{y}" y2="{y}"/>'] if ends else []


def field_picture(scores: Sequence[FieldScore]) -> str:
    """Return an SVG with a dot for the figure that each scorer reports, a bar from its lowest to its highest draw, and the
    reason below it, light or dark as the reader's page is. The dashes are our overall figure; in brackets is the difference to
    the same figure of ours. Raise ValueError for no scores."""
    if not scores:
        raise ValueError("expected at least one score to draw")
    ends = [end for score in scores for end in (score.draws or (score.figure,))]
    low, high = min(ends) - 0.01, max(ends) + 0.01

    def place(figure: float) -> float:
        return _LEFT + _WIDE * (figure - low) / (high - low)

    marks, y, ours = [], 20, f"{place(scores[0].figure):.1f}"
    for number, score in enumerate(scores):
        x, style = place(score.figure), ' class="ours"' if number == 0 else ""
        beside = f" ({_less_ours(score, scores[0])})" if number else ""
        marks += [
            f'<text x="{_LEFT - 16}" y="{y + 4}" text-anchor="end">{escape(score.name)}</text>',
            f'<line x1="{_LEFT}" x2="{_LEFT + _WIDE}" y1="{y}" y2="{y}"/>',
            f'<line class="ours" stroke-dasharray="3 3" x1="{ours}" x2="{ours}" y1="{y - 12}" y2="{y + 12}"/>',
            *_draws_bar([place(end) for end in score.draws or ()], y),
            f'<circle{style} cx="{x:.1f}" cy="{y}" r="6"/>',
            f'<text x="{_LEFT + _WIDE + 14}" y="{y + 4}">{_percent(score.figure)} {score.headline}{beside}</text>',
        ]
        for line in textwrap.wrap(score.why, _LETTERS):
            y += 16
            marks.append(f'<text class="soft" x="{_LEFT}" y="{y + 6}">{escape(line)}</text>')
        y += 32
    caption = (
        f"One recording, {len(scores)} scores in %; in brackets the difference to ours; bars: {NUM_DRAWS} draws of the orders"
    )
    marks.append(f'<text class="soft" x="{_LEFT}" y="{y + 4}">{caption}</text>')
    width, height = _LEFT + _WIDE + _RIGHT, y + 14
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>{"".join(marks)}</svg>\n'
