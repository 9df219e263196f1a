"""The report page in a real browser: it opens, filters, finds words, and shows one judgment, on a desk and on a phone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewardlab.benchmarks.agreement import AgreementScores, GroupAgreement
from rewardlab.benchmarks.browser import judgments_to_show, read_kinds, tally
from rewardlab.benchmarks.comparison import read_run
from rewardlab.benchmarks.figures import report_figures
from rewardlab.benchmarks.report import report_html, write_reports
from rewardlab.benchmarks.report_model import (
    ChecklistScores,
    Cost,
    CountedEstimate,
    CriterionScores,
    JudgeScores,
    ListwiseScores,
    MemberScores,
    PanelScores,
    Report,
    RequirementResult,
)
from rewardlab.benchmarks.robustness.model import FamilyScores, Figures, Robustness
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.scores import calibrate
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.benchmarks.systems import SystemScores
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import DataError
from rewardlab.metrics.agreement import RaterAgreement
from rewardlab.metrics.intervals import AccuracyEstimate, DifferenceEstimate
from rewardlab.metrics.prediction_powered import CorrectedScore
from rewardlab.metrics.revision import ShareEstimate, VerifiedVote, revision_scores
from rewardlab.metrics.ties import TieScores
from rewardlab.types import Order
from rewardlab.verdicts.checklist import ClaimFinding
from rewardlab.verdicts.votes import in_order
from tests.support.browser import BROKEN_WORDS, CHROMIUM, DESK, PHONE, chromium_browser
from tests.support.labeled import labeled

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@pytest.fixture(scope="module")
def run(demo_pairs: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """Two votes per order on 60 pairs: right, always the first place, unreadable, and torn, in turns."""
    folder = tmp_path_factory.mktemp("page")
    pairs = demo_pairs[0][:60]
    write_parquet(pairs, folder / "pairs.parquet")
    lines = []
    for row, pair in enumerate(pairs):
        for order in ("given", "swapped"):
            right = 1 + ((pair.preferred == 1) != (order == "swapped"))
            said = {0: [right, right], 1: [1, 1], 2: ["?", "?"], 3: [right, 3 - right]}[row % 4]
            lines += [{"row": row, "order": order, "text": f"<think>row {row}</think><answer>{one}</answer>"} for one in said]
    (folder / "votes.jsonl").write_text("\n".join(map(json.dumps, lines)))
    settings = bench_settings("pairs", folder / "pairs.parquet", f"replay:{folder / 'votes.jsonl'}")
    report, rows = run_bench(settings, folder / "out")
    write_reports(report, rows, folder / "out")
    return folder / "out", rows


def test_kinds(run: tuple[Path, list[Any]]) -> None:
    """Each of the four sorts of pair is told apart."""
    found = read_kinds(run[0] / "scores.jsonl")
    assert [found[n] for n in range(4)] == [["right"], ["wrong", "flipped"], ["wrong", "invalid"], ["wrong", "split"]]


def test_judges_that_do_not_look_are_shown_with_their_images(demo_pairs: Any, tmp_path: Path) -> None:
    """A baseline's and a replay's pages have the pictures of the pairs, wherever these are at hand; scores do not change."""
    vl = [
        {"id": f"RLAIF-V-{n}", "prompt": f"What is {n}?", "chosen": "yes", "rejected": "no", "image": f"i/{n}.png"}
        for n in range(3)
    ]
    (tmp_path / "vl.jsonl").write_text("\n".join(map(json.dumps, vl)))
    (tmp_path / "i").mkdir()
    for n in range(3):
        (tmp_path / "i" / f"{n}.png").write_bytes(demo_pairs[0][n].images[0])
    write_parquet(demo_pairs[0][:3], tmp_path / "pairs.parquet")
    texts = [{"row": n, "order": order, "text": "<answer>1</answer>"} for n in range(3) for order in ("given", "swapped")]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, texts)))
    hub = [
        {"id": f"RLAIF-V-{n}", "query": "What?", "response": ["yes", "no"], "human_ranking": [0, 1]}
        | {"image": {"bytes": demo_pairs[0][n].images[0], "path": None}}
        for n in range(3)
    ]
    pq.write_table(pa.Table.from_pylist(hub), tmp_path / "hub.parquet")
    sources = (("vl_rewardbench", "vl.jsonl"), ("vl_rewardbench", "hub.parquet"), ("pairs", "pairs.parquet"))
    for name, data in sources:
        for judge in ("baseline:first", f"replay:{tmp_path / 's.jsonl'}"):
            out = tmp_path / f"{data}-{judge[:6]}"
            report, rows = run_bench(bench_settings(name, tmp_path / data, judge), out)
            write_reports(report, rows, out)
            views, _ = judgments_to_show(rows, out)
            assert [len(view.images) for view in views] == [1, 1, 1]
            assert not any(row.pair.images for row in rows)
            assert not any("without their images" in note for note in report.notes)
    shutil.rmtree(tmp_path / "i")
    report, rows = run_bench(bench_settings("vl_rewardbench", tmp_path / "vl.jsonl", "baseline:first"), tmp_path / "none")
    assert any("shown without their images" in note and "--images" in note for note in report.notes)
    assert [view.images for view in judgments_to_show(rows, tmp_path / "none")[0]] == [[], [], []]
    with pytest.raises(DataError, match=r"--images .*nowhere: no such folder"):
        run_bench(
            bench_settings("vl_rewardbench", tmp_path / "vl.jsonl", "baseline:first", images=tmp_path / "nowhere"),
            tmp_path / "x",
        )


def test_every_judgment_has_a_page(run: tuple[Path, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty pairs, 25 a page: each row on one, links from the report and to the neighbours; fewer pages leave none behind."""
    out, rows = tmp_path / "out", run[1]
    shutil.copytree(run[0], out)
    report = read_run(out).report
    page = (out / "report.html").read_text()
    assert "up to 40 of each kind; the same command with --all-judgments writes pages of all" in page
    monkeypatch.setattr("rewardlab.benchmarks.report.ROWS_OF_A_PAGE", 25)
    write_reports(report, rows, out, all_judgments=True)
    pages = sorted((out / "judgments").iterdir())
    assert sorted(path.name for path in pages) == ["rows-0-24.html", "rows-25-49.html", "rows-50-59.html"]
    texts = {path.name: path.read_text() for path in pages}
    for row in rows:
        there = [name for name, text in texts.items() if f'id="row-{row.row}"' in text]
        first, last = map(int, there[0].removesuffix(".html").split("-")[1:])
        assert len(there) == 1
        assert first <= row.row <= last
    middle = texts["rows-25-49.html"]
    assert re.findall(r'<a href="([^"#]+)"', middle)[:3] == ["../report.html", "rows-0-24.html", "rows-50-59.html"]
    assert "25 of 60 pairs are on this page. All votes" in middle
    assert "&lt;think&gt;row 30&lt;/think&gt;" in middle
    assert 'href="judgments/rows-25-49.html">25 to 49</a>' in (out / "report.html").read_text()
    monkeypatch.setattr("rewardlab.benchmarks.report.ROWS_OF_A_PAGE", 30)
    write_reports(report, rows, out)  # they are there, and so are kept as they should be
    assert sorted(path.name for path in (out / "judgments").iterdir()) == ["rows-0-29.html", "rows-30-59.html"]


def test_plots_side_by_side_are_alike_in_height(run: tuple[Path, list[Any]]) -> None:
    """And the share for the place shown first is drawn with its interval, of each group too."""
    report = read_run(run[0]).report
    figures = {one.name: one.figure for one in report_figures(report)}
    assert {figure.get_size_inches()[1] for figure in figures.values()} == {3.0}
    (axes,) = figures["position"].axes
    low, high = report.scores.position_interval or (0.0, 0.0)
    drawn = [tuple(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2]
    assert (50 + 100 * low, 50 + 100 * high) in drawn
    assert all(cell.position_interval for cell in report.scores.groups.values())


def test_tally() -> None:
    """By hand, each order by itself: marks are as shown, letters those of the data file."""
    votes = labeled("112-", "1").judgment.votes
    assert tally(in_order(votes, Order.GIVEN)) == "2 of 4 votes for A, 1 for B, 1 without a verdict"
    assert tally(in_order(votes, Order.SWAPPED)) == "1 of 1 vote for B"
    assert tally(labeled("--").judgment.votes) == "2 of 2 votes without a verdict"
    assert tally(labeled("1==-").judgment.votes) == "1 of 4 votes for A, 2 for a tie, 1 without a verdict"


def with_every_row(report: Report) -> Report:
    """A report in which no optional part is empty, with figures as long as they get; all but ``failure``, which hides some."""
    scores, estimate = report.scores, CountedEstimate(1_250, 0.6193, (0.5812, 0.6561))
    share, gap = ShareEstimate(1_428, 0.594, (0.55, 0.62)), DifferenceEstimate(0.112, (-0.041, 0.259))
    figures = Figures(**{one.name: gap if "over_harmless" in one.name else share for one in fields(Figures)})  # type: ignore[arg-type]
    family = FamilyScores("insertion", "a claim of authority", False, True, 1_250, share, share, share, 0.012)
    control = JudgeScores(scores.accuracy, scores.interval, {}, 0.0, 0.5, 0.1, gap)
    judge = "openai:Qwen/Qwen2.5-VL-72B-Instruct@http://localhost:8001/v1"
    alone = AccuracyEstimate(0.61, (0.58, 0.65))
    member = MemberScores(judge, alone, alone, 0.91, 12, 3)
    estimates = dict.fromkeys(("0 to 9", "10 to 99"), estimate)
    rate = CorrectedScore(12_345, 1_250, alone, alone, alone, 0.12, 1_234)
    return replace(
        report,
        judge=judge,
        command=f"rewardlab bench run pairs --data pairs.parquet --judge {judge} --votes 2 --out runs/bench",
        template="plain",
        temperature=1.0,
        top_p=0.95,
        stop_error=0.05,
        max_tokens=2_048,
        seconds_per_vote=0.123,
        scores=replace(
            scores,
            groups={f"{name} and a long name": cell for name, cell in scores.groups.items()},
            slices={"number of images": estimates, "length of the question": estimates},
            all_right=estimate,
            pairs_without_majority=7,
            confidence={"vote_share": calibrate([labeled("1112", "111")] * 20, [0.75, 0.9] * 10, list("abcdefghij") * 2)},
            length_bias=0.123,
            length_interval=(0.1, 0.2),
            tokens_per_vote=1_234.5,
        ),
        controls=dict.fromkeys(("greedy", "blank", "other"), control),
        official=("Task: general, hallucination, reasoning; " * 6, "accuracy " * 30),
        notes=("a note of 40 words " * 10,),
        panel=PanelScores("majority", 0.1234, (member, member)),
        findings=("Flips with the order: 30.0 % of pairs [25.0, 35.4]", "Leans to the first place: 12.3 points"),
        cost=Cost(960, 192_000, 28_800, 1_000, 123.4567),
        cached_votes=1_234,
        revision=revision_scores([VerifiedVote(True, True, False, True), VerifiedVote(False, False, True, True)], ["a", "b"]),
        robustness=Robustness(1_250, "0123abcd", share, figures, figures, {"authority": family, "blank_answer": family}),
        checklist=ChecklistScores(
            *(share, share, 3.4, dict.fromkeys(ClaimFinding, 0.333)),
            criteria={"faithfulness to the image": CriterionScores(estimate, 0.94), "x" * 80: CriterionScores(estimate, None)},
        ),
        listwise=ListwiseScores("choice", 7_460, 102, dict.fromkeys("ABCD", 0.25)),
        ties=TieScores(1_889, 619, 404, 12, alone, share),
        agreement=AgreementScores(
            *(1_250, 3_750, 3, alone, alone, alone, alone, 0.74, 0.61, 0.15, 0.67, 0.81),
            raters=(RaterAgreement("rater_with_a_long_name", 1_250, alone, alone, 0.61, 0.81, 0.012, replaceable=True),),
            groups={"general": GroupAgreement(88, alone, alone)},
            length_bias=gap,
            place_bias=gap,
        ),
        systems=SystemScores(
            *(12_345, 1_250, 12),
            win_rates=dict.fromkeys(("gemma-3-27b-it", "qwen2.5-vl-72b"), rate),
            pairs={"gemma-3-27b-it over qwen2.5-vl-72b": rate},
            accuracy=rate,
            confidence=(alone, AccuracyEstimate(0.81, (0.78, 0.85))),
        ),
        requirements=(
            RequirementResult("accuracy.micro>=0.6", False, "accuracy.micro is 59.4 %: it is below the 60 % required"),
        ),
    )


@pytest.mark.nightly
def test_no_row_makes_the_page_narrow(run: tuple[Path, list[Any]]) -> None:
    """With every optional row, open or not: the page does not scroll sideways and breaks no word of up to 12 characters."""
    out, rows = run
    full = with_every_row(read_run(out).report)
    empty = (None, "", (), {}, 0)
    assert {one.name for one in fields(full) if getattr(full, one.name) in empty} == {"failure", "seed"}
    assert not [one.name for one in fields(full.scores) if getattr(full.scores, one.name) in empty]
    pages = {"attacked": full, "plain": replace(full, robustness=None), "failed": replace(full, failure="every vote failed")}
    with chromium_browser() as browser:
        for name, report in pages.items():
            (out / "every_row.html").write_text(report_html(report, rows[:2], out))
            for width, height in (DESK, PHONE):
                page = browser.new_page(viewport={"width": width, "height": height})
                page.goto(f"file://{out}/every_row.html")
                page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
                assert "28,800 of answers" in page.inner_text("body")
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
                assert page.evaluate(BROKEN_WORDS) == [], (name, width)
                page.close()


@pytest.fixture(params=[DESK, PHONE], ids=["desktop", "phone"])
def page(request: pytest.FixtureRequest, run: tuple[Path, list[Any]]) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        width, height = request.param
        page = browser.new_page(viewport={"width": width, "height": height})
        page.on("pageerror", lambda error: pytest.fail(f"the page's script failed: {error}"))
        page.goto(f"file://{run[0]}/report.html")
        yield page
        browser.close()


def test_browsing(page: Any) -> None:
    """Nothing wider than the screen; each filter shows its own and no other; words narrow it; one judgment opens."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    cards = "details.judgment:not([hidden])"
    assert page.locator(cards).count() == 60
    for kind, number in {"wrong": 45, "flipped": 15, "invalid": 15, "split": 15, "right": 15}.items():
        page.click(f".filters button[data-kind={kind}]")
        assert page.locator(cards).count() == number, kind
        assert page.locator(f"{cards}[data-kinds~={kind}]").count() == number
        assert page.inner_text(".filters output") == f"{number} shown"
    page.click(".filters button[data-kind='']")
    page.fill(".filters input", "no such words")
    assert page.locator(cards).count() == 0
    page.fill(".filters input", "<think>row 17</think>")
    assert page.locator(cards).count() == 1
    assert not page.locator(f"{cards} .body").is_visible()
    page.click(f"{cards} summary")
    assert page.locator(f"{cards} .vote").count() == 4
    assert page.locator(f"{cards} .body").is_visible()
    page.fill(".filters input", "")
    group = page.locator(".filters option").nth(1).inner_text()
    page.select_option(".filters select", group)
    shown = page.locator(cards)
    assert 0 < shown.count() < 60
    assert all(shown.nth(n).get_attribute("data-group") == group for n in range(shown.count()))
    sizes = page.evaluate("[...document.querySelectorAll('.plots img')].map(one => one.naturalWidth)")
    assert len(sizes) == 3  # accuracy, votes, position: two votes are no confidence, and the fifths of length coincide
    assert all(sizes)


def test_one_naming(page: Any) -> None:
    """Row 1 always names the place shown first: A where A was first, B where B was, under a heading for each order."""
    page.evaluate("location.hash = 'row-1'")
    card = page.locator("#row-1")
    headings = card.locator("h3").all_inner_texts()
    assert headings == ["A shown first: 2 of 2 votes for A", "B shown first: 2 of 2 votes for B"]
    verdicts = card.locator(".vote > b").all_inner_texts()
    better = "B" if "B (preferred)" in card.locator(".pair").inner_text().replace("Response ", "") else "A"
    assert verdicts == [f"for {one}, {'right' if one == better else 'wrong'}" for one in "AABB"]
    assert "first response, 1 or A is B" in card.locator("small", has_text="call the first").nth(1).inner_text()
    body = page.inner_text("body")
    assert "Response 0" not in body
    assert "response 0" not in body


def test_links(page: Any, run: tuple[Path, list[Any]]) -> None:
    """A judgment and a filter have addresses; what a link leads to is open, below the bar, and shows the pair's own id."""
    address = f"file://{run[0]}/report.html"
    page.goto(f"{address}#kind=split&q=row%2023")
    assert page.locator("details.judgment:not([hidden])").count() == 1
    page.click(".filters button[data-kind=wrong]")
    assert page.evaluate("location.hash") == "#kind=wrong&q=row+23"
    page.evaluate("location.hash = 'row-5'")
    page.wait_for_function("document.getElementById('row-5').open")
    assert page.locator("details.judgment:not([hidden])").count() == 60  # the filter would hide it
    title, bar = page.locator("#row-5 summary b").bounding_box(), page.locator(".filters").bounding_box()
    assert title["y"] >= bar["y"] + bar["height"]
    assert title["y"] < page.viewport_size["height"]
    assert run[1][5].pair.pair_id in page.locator("#row-5 summary").inner_text()
    page.fill(".filters input", run[1][7].pair.pair_id)
    assert page.locator("#row-7").is_visible()
    page.goto(f"{address}#row-999")
    page.reload()
    assert "row 999 is not on this page" in page.inner_text(".filters output")
