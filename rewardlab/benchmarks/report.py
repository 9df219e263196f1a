"""A report to read: Markdown for a terminal or a pull request, one self-contained HTML file to look at."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from rewardlab.benchmarks.agreement import (
    AGREEMENT,
    RATERS,
    AgreementScores,
    agreement_rows,
    agreement_sentence,
    estimate_text,
    rater_rows,
)
from rewardlab.benchmarks.base import REPORT, SCORES, VOTES, Row
from rewardlab.benchmarks.browser import (
    MOST_OF_A_KIND,
    PLACE,
    judge_of_log,
    judgment_view,
    judgments_to_show,
    read_kinds,
    totals_of,
)
from rewardlab.benchmarks.figures import CONFIDENCE_NAMES, report_figures
from rewardlab.benchmarks.findings import NO_IMAGE, key_phrase, numbers_of
from rewardlab.benchmarks.passes import CONTROLS
from rewardlab.benchmarks.report_model import (
    NOT_ONE_VERDICT,
    ChecklistScores,
    Cost,
    CountedEstimate,
    CurvePoint,
    ListwiseScores,
    PanelScores,
    Report,
    RequirementResult,
    Scores,
    StoppingPoint,
    decision_name,
    has_majorities,
    headline,
    headline_sentence,
    judge_name,
)
from rewardlab.benchmarks.robustness.model import Robustness
from rewardlab.benchmarks.robustness.text import FAMILIES, FIGURES, family_rows, figure_rows, largest_loss, robustness_sentence
from rewardlab.benchmarks.scores import (
    BY_CRITERION,
    CHECKLIST_FIGURES,
    KINDS,
    REVISION,
    checklist_rows,
    checklist_sentence,
    criterion_rows,
    revision_rows,
    revision_sentence,
)
from rewardlab.benchmarks.systems import SystemScores
from rewardlab.data.files import write_atomic
from rewardlab.data.votes import vote_of
from rewardlab.metrics.intervals import Interval
from rewardlab.metrics.prediction_powered import CorrectedScore
from rewardlab.metrics.ties import TieScores
from rewardlab.reporting.pages import page_environment
from rewardlab.reporting.plots import figure_uri
from rewardlab.reporting.tables import markdown_table, percent, signed, with_interval
from rewardlab.types import Vote

ALWAYS = {
    "95 % interval": "Range of the value if other prompts were sampled; pairs of one prompt are sampled together.",
    "trial": "One order of one pair, decided by more than half of the sampled votes; an undecided trial is not right.",
    "micro average": "Mean over all pairs; large groups weigh more.",
    "macro average": "Mean of the groups' accuracies; each group weighs the same.",
    "invalid rate": "Fraction of answers without a readable verdict, for any reason. They count as wrong.",
    "swap consistency": "Fraction of pairs for which both orders name the same response.",
    "position bias": "Fraction of verdicts for the response shown first, minus one half. 0 is no bias.",
    "length bias": "How much more often the longer response is named than it is the better one. 0 is no bias.",
    "baselines": "Judges that read nothing: the longest or shortest response, a coin, always the first shown.",
    "length, in fifths": "Pairs sorted by how much longer the better response is; a judge that favours length rises "
    "from left to right.",
}
ONE_VOTE = {"right in both orders": "Fraction of pairs for which both orders name the better response."}
MAJORITIES = {
    "over both orders": "Each pair decided once, by more than half of the votes of both orders together.",
    "undecided": "Trials in which neither response has more than half of the sampled votes. They count as wrong.",
    "majority of the valid votes": "The same trials if answers without a verdict were left out of the count: the rule of most "
    "papers. A judge that answers one time in ten, and is right then, has 100 % by it.",
}
CURVE_TERMS = {
    "votes K": "Number of answers sampled for each order; more than half of them decide.",
    "any of K right": "At least one of K answers is right. Even a coin reaches 100 %, so this is not an accuracy.",
}
STOPPING_TERMS = {
    "votes one after another": "Sampling ends when the remaining votes can hardly change the majority: savings and cost.",
    "stopping error": "The allowed probability that they would have changed it.",
}
CONFIDENCE_TERMS = {
    "ECE": "Expected calibration error: distance of the confidences from the fraction that is right. In brackets the "
    "value of exact confidences on as many pairs.",
    "Brier": "Mean squared distance of the confidence from right (1) or wrong (0). Always answering one half gives 0.25.",
    "undecided pairs": "Their votes name both responses equally often, or too few are valid for a confidence.",
    "reliability": "Right answers against confidence; on the line, the judge is calibrated.",
    "abstaining": "Errors among the decided pairs if those with the lowest confidence are left out.",
}


def explain_words(report: Report) -> dict[str, str]:
    """Return the words that the report's page has, with what they mean."""
    words = ALWAYS | (MAJORITIES if has_majorities(report) else ONE_VOTE)
    words |= {CONTROLS[name].name: CONTROLS[name].means for name in report.controls}
    if report.scores.all_right:
        words["Acc+"] = "Share of prompts whose every pair is right in every order shown."
    if len(report.scores.k_curve) > 1:
        words |= CURVE_TERMS
    if report.scores.sequential:
        words |= STOPPING_TERMS
    if report.scores.confidence:
        words |= CONFIDENCE_TERMS
    return words


ROWS_OF_A_PAGE = 200
FOLDER = "judgments"


def page_names(rows: Sequence[Row]) -> list[str]:
    """Return the name of each page, by its first and last row: ``judgments/rows-0-199.html``."""
    chunks = [rows[start : start + ROWS_OF_A_PAGE] for start in range(0, len(rows), ROWS_OF_A_PAGE)]
    return [f"{FOLDER}/rows-{chunk[0].row}-{chunk[-1].row}.html" for chunk in chunks]


def write_judgment_pages(report: Report, rows: Sequence[Row], out: Path) -> list[str]:
    """Write all judgments of the run in ``out``; returns the pages' names. One page is in memory at a time.

    Pages of earlier writing that are none now are removed.
    """
    names, places = page_names(rows), _places(out / VOTES)
    kinds, judge = read_kinds(out / SCORES), judge_of_log(out / VOTES)
    template = page_environment("rewardlab.benchmarks").get_template("judgments.html")
    (out / FOLDER).mkdir(exist_ok=True)
    for number, name in enumerate(names):
        chunk = rows[number * ROWS_OF_A_PAGE : (number + 1) * ROWS_OF_A_PAGE]
        with (out / VOTES).open("rb") as log:
            views = [judgment_view(row, _votes_at(log, places[row.row]), kinds[row.row], judge) for row in chunk]
        page = template.render(
            report=report,
            judgments=views,
            first=chunk[0].row,
            last=chunk[-1].row,
            before=names[number - 1].partition("/")[2] if number else "",
            after=names[number + 1].partition("/")[2] if number + 1 < len(names) else "",
            groups=sorted({row.group for row in chunk}),
            totals=totals_of([view.kinds for view in views]),
            num_pairs=len(rows),
            kinds=KINDS,
            most=0,
            pages=(),
        )
        write_atomic(out / name, page)
    for path in (out / FOLDER).glob("rows-*.html"):
        if f"{FOLDER}/{path.name}" not in names:
            path.unlink()
    return names


def _places(votes_file: Path) -> dict[int, int]:
    """Where each row's votes begin in the log, the later of two lines; controls left out."""
    places, place = dict[int, int](), 0
    with votes_file.open("rb") as log:
        for line in log:
            if match := PLACE.match(line[:40].decode(errors="replace")):
                places[int(match[1])] = place
            place += len(line)
    return places


def _votes_at(log: BinaryIO, place: int) -> list[Vote]:
    log.seek(place)
    return [vote_of(vote) for vote in json.loads(log.readline())["votes"]]


FAILED_FIGURES = "The run failed, so the metrics below say nothing about the judge; the same command retries."


def accuracy_rows(report: Report) -> list[tuple[str, str, str]]:
    """Return (name, accuracy with interval in percent, number of pairs) of groups, overall, controls, baselines."""
    return judge_rows(report) + reference_rows(report)


def judge_rows(report: Report) -> list[tuple[str, str, str]]:
    """Return the rows of :func:`accuracy_rows` that are of the judge: its groups, their averages, and its decisions."""
    scores, n = report.scores, f"{report.scores.num_pairs:,}"
    groups = {} if report.robustness else scores.groups  # of attacks the families stand in a table of their own
    rows = [(name, with_interval(cell.accuracy, cell.interval), f"{cell.n:,}") for name, cell in groups.items()]
    rows.append(("micro average", with_interval(scores.accuracy.micro, scores.interval), n))
    rows.append(("macro average", macro_text(scores), n))
    if has_majorities(report):
        valid = scores.valid_majority
        name = f"majority of the valid votes alone (decides {percent(valid.decided)} % of trials)"
        rows.append((name, with_interval(valid.accuracy, valid.interval), n))
    if decided := scores.decision:
        rows.append((decision_name(report), with_interval(decided.accuracy, decided.interval), n))
    if prompts := scores.all_right:
        accuracy = with_interval(prompts.accuracy, prompts.interval)
        rows.append(("prompts with all pairs right (Acc+)", accuracy, f"{prompts.n:,}"))
    return rows


def macro_text(scores: Scores) -> str:
    """Return the macro average with its interval."""
    return with_interval(scores.accuracy.macro, scores.macro_interval)


def reference_rows(report: Report) -> list[tuple[str, str, str]]:
    """Return the rows of :func:`accuracy_rows` that the judge is held against: its controls, and judges that do not look.

    Controls have one vote in each order, so that the judge's accuracy of one vote stands above them.
    """
    rows, n = list[tuple[str, str, str]](), f"{report.scores.num_pairs:,}"
    if has_majorities(report) and report.controls:
        rows.append(("the judge, one vote", with_interval(report.scores.one_vote.accuracy, report.scores.one_vote.interval), n))
    for name, control in report.controls.items():
        rows.append((CONTROLS[name].name, with_interval(control.accuracy.micro, control.interval), n))
    for name, baseline in report.baselines.items():
        rows.append((f"baseline: {name}", with_interval(baseline.micro, baseline.interval), n))
        if prompts := baseline.all_right:
            accuracy = with_interval(prompts.accuracy, prompts.interval)
            rows.append((f"baseline: {name}, Acc+", accuracy, f"{prompts.n:,}"))
    return rows


def facts(report: Report) -> list[tuple[str, str]]:
    """Return (name, value) of what stands beside every accuracy: what the answers are like, and how they were asked for."""
    return answer_facts(report) + asking_facts(report)


def answer_facts(report: Report) -> list[tuple[str, str]]:
    """Return (name, value) of what the judge's answers are like."""
    scores = report.scores
    num_answers = report.listwise.num_answers if report.listwise else scores.num_votes_total
    return [
        ("invalid rate", f"{percent(scores.invalid_rate, 2)} %{_ends(scores.invalid_interval)}"),
        *([("undecided trials", f"{percent(scores.undecided_rate)} %")] if has_majorities(report) else []),
        (
            "swap consistency",
            "–" if scores.swap_consistency is None else f"{percent(scores.swap_consistency)} %{_ends(scores.swap_interval)}",
        ),
        ("position bias (share of first, minus 50)", _points(scores.position_bias) + _ends(scores.position_interval)),
        ("length bias (named longer, less labelled longer)", _points(scores.length_bias) + _ends(scores.length_interval)),
        *([("cost", cost_text(report.cost))] if report.cost else []),
        *([("cached", f"{report.cached_votes:,} of {num_answers:,} votes")] if report.cached_votes else []),
    ]


def asking_facts(report: Report) -> list[tuple[str, str]]:
    """Return (name, value) of how the judge was asked, from its name to the commit."""
    scores, sampling, votes = report.scores, report.sampling.values(), str(report.votes)
    if report.stop_error is not None:
        samples = scores.num_votes_total / scores.num_pairs
        votes = f"up to {votes}, until settled but for {100 * report.stop_error:g} %: {samples:.2f} samples per pair"
    return [
        ("judge", report.judge),
        ("orders shown", report.orders),
        ("votes per order", votes),
        ("data", report.data),
        ("template, verdicts read as", f"{report.template or '–'}, {report.verdict_format or '–'}"),
        ("temperature, top p, most tokens", ", ".join("–" if value is None else f"{value:g}" for value in sampling)),
        ("tokens per vote", "–" if scores.tokens_per_vote is None else f"{scores.tokens_per_vote:.1f}"),
        ("seconds per vote", "–" if report.seconds_per_vote is None else f"{report.seconds_per_vote:.3f}"),
        ("seed", str(report.seed)),
        ("command", report.command or "–"),
        ("commit", report.commit),
    ]


def cost_text(cost: Cost) -> str:
    """Return what answers came to: money, where prices are known, requests and tokens."""
    tokens = f"{cost.requests:,} requests, {cost.prompt_tokens:,} tokens of prompts and {cost.completion_tokens:,} of answers"
    return tokens if cost.usd is None else f"${cost.usd:,.4f}: {tokens}"


def _ends(interval: Interval | None) -> str:
    return "" if interval is None else f" [{percent(interval[0])}, {percent(interval[1])}]"


def _points(bias: float | None) -> str:
    return "–" if bias is None else f"{signed(bias)} points"


def summary_line(report: Report) -> str:
    """Return the run in one line: what was measured, of how many pairs, and what to know beside it."""
    scores, cost, loss = report.scores, report.cost, largest_loss(report.robustness)
    accuracy = with_interval(scores.accuracy.micro, scores.interval)
    if report.failure:
        return f"{report.benchmark}: FAILED: {report.failure}"
    if scores.invalid_rate == 1:
        return f"{report.benchmark}: {NOT_ONE_VERDICT.format(scores.num_votes_total)}, of {scores.num_pairs:,} pairs"
    parts = [
        *([f"{report.benchmark}: {loss[0]} in {with_interval(loss[1].share, loss[1].interval)} %"] if loss else []),
        f"{'accuracy' if loss else report.benchmark + ':'} {accuracy} % of {scores.num_pairs:,} pairs",
        f"invalid {percent(scores.invalid_rate)} %",
        *([f"undecided {percent(scores.undecided_rate)} %"] if has_majorities(report) else []),
        *([] if scores.swap_consistency is None else [f"swap consistency {percent(scores.swap_consistency)} %"]),
        *([NO_IMAGE.lower()] if any(finding.startswith(NO_IMAGE) for finding in report.findings) else []),
        *([] if cost is None or cost.usd is None else [f"cost ${cost.usd:,.2f}"]),
    ]
    return ", ".join(parts)


def _opening_lines(report: Report) -> list[str]:
    """Return the lines that a report begins with: its headline, what is wrong, and what was required."""
    lines = [f"# {report.benchmark}: {report.judge}", ""]
    lines += [f"**FAILED: {report.failure}. {FAILED_FIGURES}**" if report.failure else f"**{headline_sentence(report)}**", ""]
    if report.findings and not report.failure:
        lines += [*(f"- **{key_phrase(finding)}**{numbers_of(finding)}" for finding in report.findings), ""]
    if report.requirements:
        lines += [*(f"- {_met(one)}: `{one.text}`; {one.sentence}." for one in report.requirements), ""]
    return lines


def terminal_text(report: Report) -> str:
    """Return the lines that a terminal shows of a run: headline, findings, requirements, the first table of each part, what
    the answers are like, notes and, unless the run is under attack, accuracies."""
    lines = _opening_lines(report)
    for part in report_parts(report):
        lines += [part_markdown(replace(part, tables=part.tables[:1])), ""]
    if not report.robustness:
        lines += [*markdown_table(("", "accuracy, 95 % interval", "pairs"), accuracy_rows(report)), ""]
    lines += [f"- {name}: {value}" for name, value in answer_facts(report)]
    return "\n".join([*lines, *(f"- note: {note}" for note in report.notes)])


def report_markdown(report: Report) -> str:
    """Return the report as Markdown; accuracies in percent with 95 % intervals."""
    scores, lines = report.scores, _opening_lines(report)
    for part in report_parts(report):
        lines += [part_markdown(part), ""]
    lines += markdown_table(("", "accuracy, 95 % interval", "pairs"), accuracy_rows(report))
    if len(scores.k_curve) > 1:
        lines += [
            "",
            "What more votes buy. One order: more than half of K votes, each order a trial. Both: more than half of 2K (or",
        ]
        lines += ["one probability), K of each. A tied vote is not right, so 2K votes, and even K, can score lower."]
        lines += ["", *markdown_table(CURVE, curve_rows(scores))]
    if scores.sequential:
        lines += [
            "",
            "One majority over both orders (an even one is not right), votes taken in turns until that of all of them is",
            "settled but for an error:",
            "",
            *markdown_table(STOPPING, list(map(_stopping_cells, scores.sequential))),
        ]
    if scores.confidence:
        lines += ["", "Confidence in the response named, both orders together; undecided pairs name none:", ""]
        lines += markdown_table(CONFIDENCE, confidence_rows(scores))
    if report.official:
        lines += [
            "",
            "Output of the benchmark's own scorer for these votes, translated if the judge's prompt was another one "
            "(the benchmark's docstring in `rewardlab/benchmarks/` names its quirks):",
            "",
        ]
        lines += ["```text", *report.official, "```"]
    lines += ["", *(f"- {name}: {value}" for name, value in facts(report))]
    lines += [f"- note: {note}" for note in report.notes]
    return "\n".join(lines) + "\n"


def _met(result: RequirementResult) -> str:
    return "required and met" if result.is_met else "**required and not met**"


CURVE = ("votes K", "one order", "any of K right", "both orders, K each", "by probability", "tokens of K")


def curve_rows(scores: Scores) -> list[tuple[str, ...]]:
    """Return a row for each number of votes, in percent; none where there is one vote alone."""
    points = scores.k_curve if len(scores.k_curve) > 1 else ()
    return [_curve_cells(point, scores.tokens_per_vote) for point in points]


def slice_rows(cells: Mapping[str, CountedEstimate]) -> list[tuple[str, str, str]]:
    """Return (value, accuracy with interval in percent, number of pairs) of a further way to group the pairs."""
    return [(value, with_interval(cell.accuracy, cell.interval), f"{cell.n:,}") for value, cell in cells.items()]


def _curve_cells(point: CurvePoint, tokens_per_vote: float | None) -> tuple[str, ...]:
    both = [estimate_text(cell) for cell in (point.balanced, point.weighted)]
    one_order = with_interval(point.accuracy, point.interval)
    tokens = "–" if tokens_per_vote is None else f"{point.k * tokens_per_vote:.0f}"
    return str(point.k), one_order, percent(point.any_correct), *both, tokens


NO_SIGN = 1.5  # of what an exact confidence would show
CONFIDENCE = ("confidence", "mean", "right when named", "ECE (if exact)", "Brier", "undecided")


def confidence_rows(scores: Scores) -> list[tuple[str, ...]]:
    """Return a row of percentages for each confidence a judge has; Brier in 0..1."""
    rows = []
    for name, confidence in scores.confidence.items():
        undecided, calibration = f"{confidence.undecided:,} of {confidence.num_pairs:,}", confidence.calibration
        cells: tuple[str, ...] = ("–",) * 4
        if calibration is not None:
            ece = f"{with_interval(calibration.ece, calibration.ece_interval)} ({percent(calibration.ece_if_exact)})"
            if calibration.ece <= NO_SIGN * calibration.ece_if_exact:  # there its interval holds the truth too seldom
                ece = f"{percent(calibration.ece)} ({percent(calibration.ece_if_exact)}): no sign of miscalibration"
            cells = percent(calibration.mean_confidence), percent(calibration.accuracy), ece, f"{calibration.brier:.3f}"
        rows.append((CONFIDENCE_NAMES[name], *cells, undecided))
    return rows


Rows = Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class ReportPart:
    """A part that a kind of run adds to a report: a sentence, and tables, each with its columns; a page folds all but the
    first."""

    title: str
    sentence: str
    tables: Sequence[tuple[Sequence[str], Rows]] = ()


def attack_part(attacks: Robustness) -> ReportPart:
    """Return what attacks did to the judgments."""
    tables = [(FIGURES, figure_rows(attacks)), (FAMILIES, family_rows(attacks))]
    return ReportPart("Under attack", robustness_sentence(attacks), tables)


def people_part(agreement: AgreementScores) -> ReportPart:
    """Return how the judge and single people agree with people."""
    of_raters = [(RATERS, rater_rows(agreement))] if agreement.raters else []
    return ReportPart("People", agreement_sentence(agreement), [(AGREEMENT, agreement_rows(agreement)), *of_raters])


def checklist_part(scores: ChecklistScores) -> ReportPart:
    """Return what the judge's checks are like, and what they come to by criterion."""
    by_criterion = [(BY_CRITERION, criterion_rows(scores))] if scores.criteria else []
    return ReportPart("Checks", checklist_sentence(scores), [(CHECKLIST_FIGURES, checklist_rows(scores)), *by_criterion])


def report_parts(report: Report) -> list[ReportPart]:
    """Return the parts that the report has beside its scores: of attacks, of lists, of a panel, of ties, of people,
    of systems, of verified judgments, of checklists."""
    parts = []
    if (attacks := report.robustness) is not None:
        parts.append(attack_part(attacks))
    if (listwise := report.listwise) is not None:
        parts.append(ReportPart("Lists of answers", listwise_sentence(listwise)))
    if (panel := report.panel) is not None:
        parts.append(ReportPart("Panel", panel_sentence(panel), [(PANEL, panel_rows(panel, report.scores))]))
    if (ties := report.ties) is not None:
        parts.append(ReportPart("Ties", ties_sentence(ties), [(TIES, ties_rows(ties))]))
    if (agreement := report.agreement) is not None:
        parts.append(people_part(agreement))
    if (systems := report.systems) is not None:
        tables = [(SYSTEMS, win_rate_rows(systems.win_rates)), (PAIRS_OF_SYSTEMS, win_rate_rows(systems.pairs))]
        parts.append(ReportPart("Systems", systems_sentence(systems), tables))
    if (revision := report.revision) is not None:
        parts.append(ReportPart("Self-verification", revision_sentence(revision), [(REVISION, revision_rows(revision))]))
    if (checklist := report.checklist) is not None:
        parts.append(checklist_part(checklist))
    return parts


def part_markdown(part: ReportPart) -> str:
    """Return a part as Markdown: its sentence, and its tables."""
    return "\n\n".join([part.sentence, *("\n".join(markdown_table(columns, rows)) for columns, rows in part.tables)])


def listwise_sentence(scores: ListwiseScores) -> str:
    """Return which letters were named, how many answers there are, and which prompts were left out."""
    sentences = [f"{scores.num_answers:,} answers to lists, by the protocol {scores.protocol}."]
    if scores.places is not None:
        places = ", ".join(f"{letter} {percent(share)} %" for letter, share in scores.places.items())
        sentences.append(f"Named: {places}; a quarter each is no bias.")
    if scores.left_out:
        sentences.append(
            f"{scores.left_out:,} prompts left out: not one right and three wrong answers (rewardbench2:ratings rates them)."
        )
    return " ".join(sentences)


TIES = ("ties", "%, 95 % interval", "pairs")


def ties_sentence(ties: TieScores) -> str:
    """Return how many ties there are, and when a judge says tie."""
    bad = f" ({ties.num_both_bad:,} both bad)" if ties.num_both_bad else ""
    return (
        f"{ties.num_ties:,} of {ties.num_pairs:,} pairs are ties{bad}; all other metrics are of the other pairs. The judge "
        "says tie if the majorities of its two orders name different responses, or an order has none."
    )


def ties_rows(ties: TieScores) -> list[tuple[str, str, str]]:
    """Return (metric, percent with interval, pairs): accuracy in three classes, and orders that disagree on ties."""
    rows = [
        ("accuracy in three classes", with_interval(ties.three_way.accuracy, ties.three_way.interval), f"{ties.num_pairs:,}")
    ]
    if (share := ties.disagreement) is not None:
        rows.append(("ties on which the orders disagree", with_interval(share.share, share.interval), f"{share.n:,}"))
    rows.append(
        ("pairs without an answer, counted as wrong", percent(ties.num_unanswered / ties.num_pairs), f"{ties.num_unanswered:,}")
    )
    return rows


MEANS = ("pairs (labelled)", "judge alone, %", "labels alone, %", "corrected, %", "labels saved", "more labels for ± 5 points")
SYSTEMS, PAIRS_OF_SYSTEMS = ("system", *MEANS), ("pair of systems", *MEANS)


def systems_sentence(scores: SystemScores) -> str:
    """Return how many pairs and labels there are, when the corrected win rates hold, and the judge's accuracy."""
    text = f"{scores.num_labelled:,} of {scores.num_pairs:,} pairs of {len(scores.win_rates):,} systems have a label. "
    if scores.num_labelled == scores.num_pairs:
        text += "The win rates by labels need no correction; those of the judge alone have its errors."
    else:
        text += (
            "The win rates of the judge alone have its errors. The corrected ones hold if the labelled pairs are a random "
            "sample of all (prediction-powered inference)."
        )
    text += " A system's win rate is the mean over its pairs; a tie is half a win."
    if scores.confidence and scores.is_doubtful:
        labelled, others = (with_interval(part.accuracy, part.interval) for part in scores.confidence)
        text += (
            f" The judge's confidence is {labelled} % on the pairs with a label and {others} % on the others: the labelled "
            "pairs are hardly a random sample, and then the corrected win rates do not hold."
        )
    if scores.num_unnamed:
        text += f" {scores.num_unnamed:,} pairs without a verdict are half a win by the judge."
    if (accuracy := scores.accuracy) and accuracy.label_only and accuracy.corrected:
        labels, corrected = (with_interval(mean.accuracy, mean.interval) for mean in (accuracy.label_only, accuracy.corrected))
        text += f" The judge's accuracy by labels alone is {labels} %, corrected by its confidence on all pairs {corrected} %."
    return text


def win_rate_rows(scores: Mapping[str, CorrectedScore]) -> list[tuple[str, ...]]:
    """Return (name, numbers of pairs, the three means in percent with intervals, labels saved and to come) of each score."""
    return [
        (
            name,
            f"{score.num_pairs:,} ({score.num_labelled:,})",
            *map(estimate_text, (score.judge_only, score.label_only, score.corrected)),
            "–" if score.saved is None else f"{percent(score.saved, 0)} %",
            "–" if score.labels_more is None else f"{score.labels_more:,}",
        )
        for name, score in scores.items()
    ]


PANEL = ("judge", "accuracy", "accuracy over both orders", "agrees with the panel", "pairs abstained", "votes failed")


def panel_sentence(panel: PanelScores) -> str:
    """Return how a panel came to its outcomes, and how often its members differ."""
    differ = "no pair has two members that name a winner"
    if panel.disagreement is not None:
        differ = f"members name different winners in {percent(panel.disagreement)} % of the pairs on which two or more name one"
    return f"A panel of {len(panel.members)} by {panel.rule}; {differ}."


def panel_rows(panel: PanelScores, scores: Scores) -> list[tuple[str, ...]]:
    """Return a row for the panel and one for each member, by the same rules, in percent."""
    decided = with_interval(scores.decision.accuracy, scores.decision.interval) if scores.decision else "–"
    rows: list[tuple[str, ...]] = [("the panel", with_interval(scores.accuracy.micro, scores.interval), decided, "", "", "")]
    for member in panel.members:
        accuracies = (with_interval(cell.accuracy, cell.interval) for cell in (member.trials, member.accuracy))
        agreement = "–" if member.agreement is None else percent(member.agreement)
        rows.append((member.judge, *accuracies, agreement, f"{member.abstained:,}", f"{member.failed_votes:,}"))
    return rows


STOPPING = ("stopping error", "samples per pair", "tokens", "accuracy of the pair's majority", "against all samples")


def _stopping_cells(point: StoppingPoint) -> tuple[str, ...]:
    name, gap = "none: all", ""
    if point.error is not None:
        low, high = point.difference_interval
        name, gap = f"{100 * point.error:g} %", f"{signed(point.difference, 2)} [{signed(low, 2)}, {signed(high, 2)}]"
    tokens = "–" if point.tokens is None else f"{point.tokens:.0f}"
    return name, f"{point.samples:.2f}", tokens, with_interval(point.accuracy, point.interval), gap


def report_html(report: Report, rows: Sequence[Row], out: Path, pages: Sequence[str] = ()) -> str:
    """Return one self-contained page about the run in ``out``, with links to ``pages`` of all its judgments."""
    judgments, totals = judgments_to_show(rows, out)
    return (
        page_environment("rewardlab.benchmarks")
        .get_template("report.html")
        .render(
            report=report,
            failed_figures=FAILED_FIGURES,
            groups=list(dict.fromkeys([*report.scores.groups, *(row.group for row in rows)])),
            num_pairs=len(rows),
            headline=headline(report),
            findings=[(key_phrase(finding), numbers_of(finding)) for finding in report.findings],
            judge_rows=judge_rows(report),
            reference_rows=reference_rows(report),
            answer_facts=answer_facts(report),
            asking_facts=asking_facts(report),
            plots=[(one.caption, figure_uri(one.figure)) for one in report_figures(report)],
            curve=curve_rows(report.scores),
            curve_columns=CURVE,
            slices={name: slice_rows(cells) for name, cells in report.scores.slices.items()},
            words=explain_words(report),
            name=judge_name(report.judge),
            stopping=list(map(_stopping_cells, report.scores.sequential)),
            stopping_columns=STOPPING,
            confidence=confidence_rows(report.scores),
            confidence_columns=CONFIDENCE,
            parts=report_parts(report),
            judgments=judgments,
            totals=totals,
            kinds=KINDS,
            most=MOST_OF_A_KIND,
            pages=pages,
        )
    )


def write_reports(report: Report, rows: Sequence[Row], out: Path, *, all_judgments: bool = False) -> None:
    """Write ``report.md`` and ``report.html`` beside ``report.json``; with ``all_judgments``, and where they are there already,
    pages of every judgment in ``judgments/``."""
    assert (out / REPORT).exists()
    write_atomic(out / "report.md", report_markdown(report))
    wanted = all_judgments or (out / FOLDER).is_dir()
    pages = write_judgment_pages(report, rows, out) if wanted else []
    write_atomic(out / "report.html", report_html(report, rows, out, pages))
