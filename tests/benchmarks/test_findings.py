"""What a report says is wrong with a judge: of each fault a judge that has it and the ones that do not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks import runner
from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.comparison import read_run
from rewardlab.benchmarks.findings import Estimate, Evidence, chance_of, find_faults, gather_evidence, key_phrase
from rewardlab.benchmarks.leaderboard import leaderboard_markdown
from rewardlab.benchmarks.report import confidence_rows, explain_words, report_html, report_markdown, summary_line
from rewardlab.benchmarks.report_model import Confidence, CountedEstimate, CurvePoint, Report, headline_sentence
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.scores import confidence_report
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.benchmarks.suite import suite_markdown
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.metrics.accuracy import Labeled, pair_score
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import (
    BOTH_ORDERS,
    Choice,
    Completion,
    FinishReason,
    Message,
    PreferencePair,
    Verdict,
    VerdictStatus,
    Vote,
    choice_of,
)
from rewardlab.verdicts.parse import format_verdict
from rewardlab.verdicts.votes import reduce_votes
from tests.support.labeled import labeled

PLAIN, STOP = load_template("plain"), FinishReason.STOP
BLIND, UNSURE, GUESSES = "Does not look at the image", "Not shown to look at the image", "Cannot be told from guessing"
FIRST, FLIPS, INVALID, WORSE = (
    "Leans to the response shown first",
    "Flips with the order",
    "Invalid answers",
    "Worse than guessing",
)
Reader = Callable[[PreferencePair | None, Choice, random.Random], Choice | None]


def seeing(pair: PreferencePair | None, right: Choice, dice: random.Random) -> Choice | None:
    """Right in nine of ten with its image, a coin without."""
    sure = pair is not None and dice.random() < 0.9
    return right if sure else dice.choice(list(Choice))


def blind(pair: PreferencePair | None, right: Choice, dice: random.Random) -> Choice | None:
    """Right in nine of ten, with an image or without."""
    return right if dice.random() < 0.9 else right.swap()


def with_verdict(reader: Reader, fraction: float) -> Reader:
    """The same judge, with a verdict in this fraction of its answers."""
    return lambda pair, right, dice: reader(pair, right, dice) if dice.random() > 1 - fraction else None


JUDGES: dict[str, tuple[Reader, list[str]]] = {
    "seeing": (seeing, []),
    "blind": (blind, [BLIND]),
    "first": (lambda pair, right, dice: Choice.FIRST, [BLIND, GUESSES, FIRST, FLIPS]),
    "coin": (lambda pair, right, dice: dice.choice(list(Choice)), [BLIND, GUESSES, FLIPS]),
    "mute": (lambda pair, right, dice: None, [INVALID]),
    "blind, 5 % valid": (with_verdict(blind, 0.05), [INVALID, UNSURE, WORSE]),
    "seeing, 5 % valid": (with_verdict(seeing, 0.05), [INVALID, WORSE]),
}


@pytest.fixture(scope="module")
def pairs_file(demo_pairs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs that are told apart by their texts, whatever is shown with them."""
    file = tmp_path_factory.mktemp("pairs") / "pairs.parquet"
    texts: dict[tuple[str, tuple[str, str]], PreferencePair] = {}
    for pair in demo_pairs[0]:
        for number in range(3):
            asked = replace(pair, pair_id=f"{pair.pair_id}-{number}", question=f"{pair.question} ({pair.pair_id}, {number})")
            texts[asked.question, asked.responses] = asked
    write_parquet(list(texts.values()), file)
    return file


@pytest.fixture(scope="module")
def reports(pairs_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Report, Path, Any]]:
    """The run of each judge of :data:`JUDGES`."""
    folder, patch, done = tmp_path_factory.mktemp("runs"), pytest.MonkeyPatch(), {}
    pairs = read_pairs(pairs_file)
    shown = {
        build_messages(pair, order=order, template=PLAIN)[0].text: (pair, order) for pair in pairs for order in BOTH_ORDERS
    }
    for name, (reader, _) in JUDGES.items():

        def handler(prompt: tuple[Message, ...], draw: int, reader: Reader = reader) -> str:
            pair, order = shown[prompt[0].text]
            assert pair.preferred is not None
            dice = random.Random(f"{prompt[0].text} {prompt[0].images == pair.images}")
            said = reader(pair if prompt[0].images == pair.images else None, choice_of(pair.preferred, order), dice)
            return format_verdict(said, "x") if said else "I would rather not say."

        patch.setattr(runner, "open_any_judge", lambda settings, say=handler: GenerativeJudge(ScriptedSampler(say), PLAIN))
        settings = bench_settings("pairs", pairs_file, "hf:x", temperature=0.0, command="rewardlab bench run")
        report, rows = run_bench(settings, folder / name)
        done[name] = report, folder / name, rows
    patch.undo()
    return done


@pytest.mark.parametrize("name", JUDGES)
def test_each_judge_has_its_own_faults(name: str, reports: dict[str, tuple[Report, Path, Any]]) -> None:
    """No more and no fewer; the sentences stand in report.json, Markdown and page, above every table."""
    report, folder, rows = reports[name]
    assert [key_phrase(finding) for finding in report.findings] == JUDGES[name][1]
    assert json.loads((folder / "report.json").read_text())["findings"] == list(report.findings)
    text, page = report_markdown(report), report_html(report, rows, folder)
    assert text.splitlines()[2] == f"**{headline_sentence(report)}**"
    for finding in report.findings:
        assert text.index(f"- **{key_phrase(finding)}**") < text.index("| micro average")
        assert page.index(f"<b>{key_phrase(finding)}</b>") < page.index("<table")
    assert ('role="alert"' in page) == bool(report.findings)
    suite, board = suite_markdown("suite", {"pairs": report}), leaderboard_markdown([read_run(folder)])
    assert all(key_phrase(finding) in table for finding in report.findings for table in (suite, board))


def test_the_blind_judge_s_sentence(reports: dict[str, tuple[Report, Path, Any]]) -> None:
    """With the image and without it, as by the report, and the difference as by the two."""
    report = reports["blind"][0]
    with_image, without = report.scores.accuracy.micro, report.controls["blank"].accuracy.micro
    sentence = f"{BLIND}: {100 * with_image:.1f} % right with it, {100 * without:.1f} % with a blank one (by single votes, "
    assert report.findings[0].startswith(sentence)
    assert f"difference {100 * (with_image - without):+.1f} points [" in report.findings[0].replace("-0.0", "+0.0")


def estimate(value: float, slack: float = 0.03) -> Estimate:
    return Estimate(value, (value - slack, value + slack))


SOUND = Evidence(num_prompts=200, sees=True, num_with_image=600, sighted=0.9, blank=0.6, gain=estimate(0.3))


@pytest.mark.parametrize(
    ("evidence", "phrases"),
    [
        (SOUND, []),
        (replace(SOUND, gain=estimate(0.019)), [BLIND]),
        (replace(SOUND, gain=estimate(0.021)), [UNSURE]),
        (replace(SOUND, gain=estimate(0.031)), []),
        (replace(SOUND, gain=None), []),
        (replace(SOUND, num_with_image=0, gain=None), ["No image was shown"]),
        (replace(SOUND, num_with_image=0, gain=None, sees=False), []),
        (replace(SOUND, position=estimate(0.05)), [FIRST]),
        (replace(SOUND, position=estimate(0.049)), []),
        (replace(SOUND, position=estimate(-0.17)), ["Leans to the response shown second"]),
        (replace(SOUND, position=estimate(0.17, 0.18)), []),
        (replace(SOUND, flipped=estimate(0.25)), [FLIPS]),
        (replace(SOUND, flipped=estimate(0.24)), []),
        (replace(SOUND, length=estimate(0.1)), ["Prefers the longer response"]),
        (replace(SOUND, length=estimate(-0.1)), ["Prefers the shorter response"]),
        (replace(SOUND, length=estimate(0.09)), []),
        (replace(SOUND, num_missing=13), ["Samples are missing"]),
        (replace(SOUND, num_missing=12), []),
        (replace(SOUND, num_prompts=19), ["Few prompts"]),
    ],
)
def test_at_each_bound(evidence: Evidence, phrases: list[str], reports: dict[str, tuple[Report, Path, Any]]) -> None:
    """A judge without fault, beside evidence on either side of each bound."""
    report = reports["seeing"][0]
    assert report.scores.num_votes_total == 1200
    assert [key_phrase(finding) for finding in find_faults(report, evidence)] == phrases
    assert find_faults(replace(report, judge="baseline:first"), evidence) == ()


@pytest.mark.parametrize(("invalid_rate", "phrase"), [(0.5, BLIND), (0.51, UNSURE)])
def test_a_mostly_invalid_judge_is_not_called_blind(
    invalid_rate: float, phrase: str, reports: dict[str, tuple[Report, Path, Any]]
) -> None:
    """With nearly all trials wrong with either image no gain can reach 5 points, whatever the judge looks at."""
    report = reports["seeing"][0]
    report = replace(report, scores=replace(report.scores, invalid_rate=invalid_rate))
    evidence = replace(SOUND, sighted=0.012, blank=0.012, gain=estimate(0.0, 0.005))
    [finding] = [sentence for sentence in find_faults(report, evidence) if "look at the image" in sentence]
    assert key_phrase(finding) == phrase
    assert finding.endswith("; most answers have no verdict") == (phrase == UNSURE)
    shown = find_faults(report, replace(evidence, gain=estimate(0.03, 0.01)))
    assert (BLIND in map(key_phrase, shown)) == (phrase == BLIND)


def test_a_run_without_a_verdict_says_so(reports: dict[str, tuple[Report, Path, Any]]) -> None:
    """In the headline, the last line and in Python: its 0 % is of no judge that was understood."""
    report = reports["mute"][0]
    assert headline_sentence(report).startswith("0.0 % [0.0, 1.9] for no verdict was read in any of 1,200 answers, and each")
    assert summary_line(report) == "pairs: no verdict was read in any of 1,200 answers, of 600 pairs"
    assert repr(report).endswith("0.0 % [0.0, 1.9], for no verdict was read)")


def test_a_blind_run_says_so_in_its_last_line(reports: dict[str, tuple[Report, Path, Any]]) -> None:
    """Where a column of pictures was passed over, and everything else is as it should be."""
    report = reports["seeing"][0]
    blind = replace(report, findings=find_faults(report, replace(SOUND, num_with_image=0, gain=None)))
    assert "no image was shown" not in summary_line(report)
    assert summary_line(blind).endswith(", no image was shown")


def test_a_lean_in_given_orders_may_be_the_labels(reports: dict[str, tuple[Report, Path, Any]]) -> None:
    """Where the better response always stands first, a perfect judge names the first always."""
    report = replace(reports["seeing"][0], orders="given")
    assert find_faults(report, replace(SOUND, position=estimate(0.5))) == ()


def test_a_baseline_above_the_judge_is_named(reports: dict[str, tuple[Report, Path, Any]]) -> None:
    """The better of the two rules by length; a coin that is lucky is none."""
    report = reports["seeing"][0]
    lucky = report.baselines | {"random": replace(report.baselines["random"], micro=0.99)}
    assert find_faults(replace(report, baselines=lucky), SOUND) == ()
    long = report.baselines | {"longest": replace(report.baselines["longest"], micro=0.96)}
    [finding] = find_faults(replace(report, baselines=long), SOUND)
    assert finding.startswith("Not shown to be above a rule that reads nothing: the longest response is right in 96.0 %")


def test_a_coin_with_an_even_number_of_votes(reports: dict[str, tuple[Report, Path, Any]]) -> None:
    """An even vote is not right, so that a coin has 25 by two votes: 56 are no guesses. Of probabilities it has 50."""
    assert [chance_of(votes) for votes in (1, 2, 3, 4)] == [0.5, 0.25, 0.5, 0.3125]
    report = reports["seeing"][0]
    accuracy = replace(report.scores.accuracy, micro=0.56)
    for votes, low, high, expected in (
        (1, 0.4, 0.7, GUESSES),
        (2, 0.4, 0.7, None),
        (2, 0.2, 0.3, GUESSES),
        (2, 0.1, 0.2, "Worse"),
    ):
        changed = replace(
            report, votes=votes, baselines={}, scores=replace(report.scores, accuracy=accuracy, interval=(low, high))
        )
        sentences = [text for text in find_faults(changed, SOUND) if "where a coin has" in text]
        assert [text.startswith(expected or "") for text in sentences] == ([True] if expected else [])
    by_probability = replace(
        changed, scores=replace(changed.scores, confidence={"verdict_probability": Confidence(1, 0, None)})
    )
    assert any("a coin has 50" in text for text in find_faults(by_probability, SOUND))


def test_tables_and_words_of_the_page(reports: dict[str, tuple[Report, Path, Any]]) -> None:
    """What the figures show stands in tables, too: accuracies by slice and by votes; every word has its sentence."""
    report, folder, rows = reports["seeing"]
    point = CurvePoint(1, 0.87654, (0.8, 0.9), 0.9, None, None)
    sliced = {"source": {"a museum": CountedEstimate(7, 0.98765, (0.9, 1.0))}}
    scores = replace(report.scores, k_curve=(point, replace(point, k=3)), slices=sliced)
    page = report_html(replace(report, scores=scores), rows, folder)
    assert "Accuracy by source" in page
    assert "98.8 [90.0, 100.0]" in page
    assert page.count("87.7 [80.0, 90.0]") == 2
    words = explain_words(report)
    assert {"macro average", "swap consistency", "text-only (blank image)"} <= words.keys()
    assert "ECE" not in words  # of one vote there is no confidence
    assert "another pair&#39;s image" not in page
    assert all(f"<dt>{word}</dt>" in page for word in words)


def test_an_ece_within_noise_has_no_interval(reports: dict[str, tuple[Report, Path, Any]]) -> None:
    """Its interval would hold the truth too seldom there."""
    scores = reports["blind"][0].scores
    votes = [labeled("111", "221")] * 8 + [labeled("222", "111")] * 4
    told = confidence_report(votes, [str(n) for n in range(12)])["vote_share"]
    calibration = told.calibration
    assert calibration is not None
    for ece, cell in ((0.03, "3.0 (2.0): no sign of miscalibration"), (0.0301, "3.0 [1.0, 5.0] (2.0)")):
        known = replace(calibration, ece=ece, ece_if_exact=0.02, ece_interval=(0.01, 0.05))
        confidence = {"vote_share": replace(told, calibration=known)}
        assert confidence_rows(replace(scores, confidence=confidence))[0][3] == cell


def test_sampled_votes_beside_greedy_blank_ones_prove_nothing(reports: dict[str, tuple[Report, Path, Any]]) -> None:
    """A greedy vote is more often right than a sampled one: less of a gain is no sign of blindness."""
    report = reports["seeing"][0]
    small = replace(SOUND, sighted=0.6, blank=0.6, gain=estimate(0.0), is_alike=False)
    [sentence] = [each for each in find_faults(report, small) if "image" in each]
    assert key_phrase(sentence) == UNSURE
    assert "--controls greedy,blank" in sentence
    assert [key_phrase(each) for each in find_faults(report, replace(small, is_alike=True)) if "image" in each] == [BLIND]


@pytest.mark.parametrize(("accuracy", "longer"), [(0.8, 0.8), (0.8, 0.2), (0.5, 0.65)])
def test_errors_are_no_preference_for_a_length(accuracy: float, longer: float, demo_pairs: Any) -> None:
    """Right as often whichever response is longer, of labels that favour one: nothing is said of length."""
    dice = random.Random(0)
    rows, items = [], []
    for number in range(800):
        better, worse = ("a longer answer", "short") if dice.random() < longer else ("short", "a longer answer")
        pair = replace(demo_pairs[0][0], pair_id=str(number), responses=(better, worse), preferred=0)
        votes = tuple(
            Vote(order, Verdict(choice_of(int(dice.random() >= accuracy), order), VerdictStatus.OK), Completion("x", STOP))
            for order in BOTH_ORDERS
        )
        rows.append(Row(number, pair, "g", str(number), {}))
        items.append(Labeled(reduce_votes(str(number), votes), 0, "g"))
    evidence = gather_evidence(rows, items, {}, sees=True, one_vote=[pair_score(item) for item in items], greedy=True)
    assert evidence.length is not None
    assert abs(evidence.length.value) < 0.05
