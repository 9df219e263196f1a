"""Two judges on the same pairs: the difference, its interval and its p-value, against other means; what cannot be compared."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from rewardlab.benchmarks.comparison import (
    P_AND_INTERVAL,
    Run,
    against,
    compare_runs,
    holm,
    p_text,
    pair_differences,
    protocol_sentences,
    read_run,
)
from rewardlab.benchmarks.figures import report_figures
from rewardlab.benchmarks.leaderboard import (
    leaderboard,
    leaderboard_csv,
    leaderboard_html,
    leaderboard_markdown,
    leaderboard_text,
    pairs_table,
)
from rewardlab.benchmarks.report import explain_words, facts, report_markdown
from rewardlab.benchmarks.report_model import Accuracy, LengthFifth, headline
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import app
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError, DataError
from rewardlab.metrics.intervals import sign_flip_p
from rewardlab.reporting.tables import signed


def test_p_by_enumeration_and_by_scipy() -> None:
    """All sign patterns counted one by one; many pairs against scipy's permutation test and the binomial of McNemar's."""
    sums = [1.0, -0.5, 0.5, 1.0, 1.0]
    patterns = [abs(sum(s * v for s, v in zip(signs, sums, strict=True))) for signs in product((1, -1), repeat=5)]
    assert sign_flip_p(sums) == pytest.approx(np.mean([value >= 3.0 - 1e-9 for value in patterns]))
    dice = np.random.default_rng(0)
    gaps = dice.choice([-1.0, 0.0, 0.0, 1.0, 1.0], size=80)
    theirs = stats.permutation_test((gaps,), np.mean, permutation_type="samples", n_resamples=9999, random_state=1).pvalue
    better, worse = int((gaps > 0).sum()), int((gaps < 0).sum())
    assert sign_flip_p(gaps.tolist()) == pytest.approx(theirs, abs=0.02)
    assert sign_flip_p(gaps.tolist()) == pytest.approx(stats.binomtest(better, better + worse).pvalue, abs=0.02)


def test_clusters_stand_together() -> None:
    """Ten pairs of one prompt that all differ are one observation; what cancels within a prompt says nothing."""
    assert sign_flip_p([1.0] * 10, ["a"] * 10) == 1.0
    assert sign_flip_p([1.0] * 10) == pytest.approx(2 / 1024)
    assert sign_flip_p([1.0, -1.0], ["a", "a"]) == 1.0
    assert sign_flip_p([]) == 1.0


def test_under_no_difference_p_is_even() -> None:
    """One comparison in ten of judges that are alike is below 0.1."""
    dice = np.random.default_rng(3)
    found = [sign_flip_p(dice.normal(size=40).tolist(), flips=500, seed=n) for n in range(300)]
    assert np.mean(np.array(found) < 0.1) == pytest.approx(0.1, abs=0.05)


@pytest.fixture(scope="module")
def runs(demo_pairs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_parquet(demo_pairs[0][:60], folder / "pairs.parquet")
    for rule in ("first", "longest", "random"):
        run_bench(bench_settings("pairs", folder / "pairs.parquet", f"baseline:{rule}"), folder / rule)
    run_bench(bench_settings("pairs", folder / "pairs.parquet", "baseline:first", limit=50), folder / "short")
    return folder


def test_a_leaderboard(runs: Path) -> None:
    """Best first; against the one named first, the difference of the two reports' accuracies; a run differs not from itself."""
    first, longest = read_run(runs / "first"), read_run(runs / "longest")
    found = against(first, longest)
    assert found.difference == pytest.approx(longest.report.scores.accuracy.micro - 0.5)
    assert found.interval[0] <= found.difference <= found.interval[1]
    again = against(first, first)
    low, high = again.interval
    assert (again.difference, again.p_value) == (0.0, 1.0)
    assert low == -high < 0  # as far as sixty pairs can tell
    text = leaderboard_markdown([first, longest, read_run(runs / "random")])
    order = [Path(line.split(" (")[0].removeprefix("| ")).name for line in text.splitlines() if "(baseline:" in line]
    assert len(order) == 3
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| baseline:")] == [
        f"| baseline: {name}" for name in ("longest", "shortest", "random", "first")
    ]
    page = leaderboard_html([first, longest, read_run(runs / "random")])
    assert page.count("<tr") == (1 + 3 + 4) + (1 + 3) + (1 + 2)  # runs and baselines; all pairs; other figures
    assert page.count("data:image/svg+xml") == 2  # of a desk and of a phone
    assert not re.search(r"(?:src|href)=\"(?!data:)", page)
    accuracy = {run: read_run(runs / run).report.scores.accuracy.micro for run in order}
    assert sorted(order, key=lambda run: -accuracy[run]) == order


def test_what_cannot_be_compared(runs: Path, tmp_path: Path) -> None:
    """Other rows, another file, no run."""
    with pytest.raises(ConfigError, match=r"60 rows and .*short 50"):
        against(read_run(runs / "first"), read_run(runs / "short"))
    longest = read_run(runs / "longest")
    other = replace(longest, report=replace(longest.report, data_sha256="x"))
    with pytest.raises(ConfigError, match="different benchmarks or data files"):
        against(read_run(runs / "first"), other)
    (tmp_path / "report.json").write_text(json.dumps({}))
    with pytest.raises(DataError, match=r"has a report\.json and no scores\.jsonl; .*votes\.jsonl"):
        read_run(tmp_path)
    with pytest.raises(DataError, match="holds no finished run"):
        read_run(tmp_path / "nowhere")


@pytest.mark.slow
def test_runs_that_were_asked_otherwise_are_refused(runs: Path, tmp_path: Path) -> None:
    """By orders, votes, sampling; baselines are asked nothing, unknown sampling is no difference. The flag says it."""
    lines = [
        {"row": row, "order": order, "text": "<answer>1</answer>"}
        for row in range(60)
        for order in ("given", "given", "swapped", "swapped")
    ]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for name, orders, votes in (("both", "both", None), ("given", "given", None), ("one", "both", 1)):
        replay = f"replay:{tmp_path / 'r.jsonl'}"
        settings = bench_settings("pairs", runs / "pairs.parquet", replay, orders=orders, votes=votes)
        run_bench(settings, tmp_path / name)
    both, given, one = (str(tmp_path / name) for name in ("both", "given", "one"))
    for other, told in ((given, "orders (both and given)"), (one, "votes (2 and 1)")):
        done = CliRunner().invoke(app, ["bench", "compare", both, other])
        assert isinstance(done.exception, ConfigError)
        assert told in str(done.exception)
    allowed = CliRunner().invoke(app, ["bench", "compare", both, given, "--different-protocols"])
    assert allowed.exit_code == 0, allowed.output
    assert "used another protocol" in allowed.output
    assert CliRunner().invoke(app, ["bench", "compare", both, str(runs / "first")]).exit_code == 0
    sampled = read_run(tmp_path / "both")
    warm = replace(sampled, report=replace(sampled.report, temperature=0.7))
    assert protocol_sentences([sampled, warm]) == []
    cold = replace(sampled, report=replace(sampled.report, temperature=0.0))
    assert len(protocol_sentences([warm, cold])) == 1


LONG = "a-judge-with-a-long-name-of-its-own-that-nobody-would-shorten"


def five_runs(runs: Path, tmp_path: Path) -> list[Run]:
    """Runs in deep folders, one of them failed, with names of sixty letters and an address as the judge."""
    found = [read_run(runs / name) for name in ("first", "longest", "random")]
    found += [replace(found[1], report=replace(found[1].report, judge="openai:model@https://a.host.example/v1/a/long/path"))]
    found += [replace(found[2], report=replace(found[2].report, failure="31 of 240 votes failed at the endpoint (HTTP 429)"))]
    return [replace(run, name=str(tmp_path / "deep" / "folders" / f"{LONG}-{n}")) for n, run in enumerate(found)]


@pytest.mark.parametrize("width", [72, 80, 100, 120, 200])
def test_a_leaderboard_fits_the_terminal(runs: Path, tmp_path: Path, width: int) -> None:
    """No line is longer; accuracy, the difference and both p-values are always there, and what is not is named."""
    several = five_runs(runs, tmp_path)
    text = leaderboard_text(several, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    head = lines[2]
    assert head.startswith("judge")
    assert "accuracy" in head
    columns, rows = leaderboard(several)
    columns = ["against the first" if column.startswith("against ") else column for column in columns]
    shown = [column for column in columns if f"  {column}" in f"  {head}"]
    assert shown[:4] == ["judge", "accuracy", "against the first", "p"]
    assert "p (Holm)" in shown
    assert ("rank" in shown) == (width >= 80)
    assert ("invalid, %" in shown) == (width >= 200)
    for row in rows:
        for column in shown[1:]:
            assert row[columns.index(column)] in text
    named = " ".join(text.split())
    for column in columns:
        assert column in shown or column == "what is wrong" or column in named
    assert "31 of 240 votes failed" in named
    assert all(str(n) in "".join(text.split()).split("Accuracies")[0] for n in range(5))


def test_short_names_in_a_leaderboard(runs: Path) -> None:
    """The last part of the folder, in the table and in the column of the difference; the commands name the whole."""
    columns, rows = leaderboard([read_run(runs / "first"), read_run(runs / "longest")])
    assert columns[2] == "against first"
    assert [row[0] for row in rows[:2]] == ["first (baseline:first)", "longest (baseline:longest)"]
    assert f"- {runs / 'first'}: " in leaderboard_markdown([read_run(runs / "first")])
    text = leaderboard_text([read_run(runs / "first"), read_run(runs / "longest")], 120)
    assert f"- longest: baseline:longest, {runs / 'longest'}." in " ".join(text.split())


def test_a_leaderboard_as_numbers(runs: Path, tmp_path: Path) -> None:
    """One line a run in the order named; a failed run has no accuracy, the first no difference, a pair of runs no Holm."""
    several = five_runs(runs, tmp_path)
    lines = list(csv.DictReader(leaderboard_csv(several).splitlines()))
    assert [line["run"] for line in lines] == [run.name for run in several]
    assert float(lines[1]["difference"]) == against(several[0], several[1]).difference
    assert float(lines[1]["low"]) == several[1].report.scores.interval[0]
    assert float(lines[1]["p_holm"]) >= float(lines[1]["p"])
    assert (lines[0]["difference"], lines[4]["accuracy"], lines[4]["p"]) == ("", "", "")
    assert list(csv.DictReader(leaderboard_csv(several[:2]).splitlines()))[1]["p_holm"] == ""
    out = tmp_path / "board.csv"
    done = CliRunner().invoke(app, ["bench", "compare", str(runs / "first"), str(runs / "longest"), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert out.read_text().startswith("run,judge,")
    assert done.output.startswith("# pairs: 2 judges")  # no terminal: whole, in Markdown


def test_a_failed_run_has_no_figure(runs: Path) -> None:
    """Neither a cell of the table, nor a number of the CSV, nor a mark on the page's plot, which is not drawn of failed runs
    alone; it stands last, and what was asked of it stays."""
    random = read_run(runs / "random")
    report = replace(random.report, scores=replace(random.report.scores, tokens_per_vote=7.0), findings=("Few prompts: 1",))
    failed = replace(random, report=replace(report, failure="28 of 80 votes failed"))
    columns, rows = leaderboard([failed, read_run(runs / "first")])
    cells = dict(zip(columns, rows[1], strict=True))
    assert {name for name, cell in cells.items() if cell not in ("–", "")} == {"judge", "accuracy", "votes"}
    assert (cells["accuracy"], cells["votes"]) == ("failed", "1 × both")
    [line] = csv.DictReader(leaderboard_csv([failed]).splitlines())
    assert {name for name, cell in line.items() if cell} == {"run", "judge", "failure", "pairs"}
    page = leaderboard_html([failed])
    assert "<img" not in page
    assert "28 of 80 votes failed" in page
    assert "What is wrong" not in page


def test_what_is_not_known_is_no_zero(runs: Path) -> None:
    """A rule writes no tokens; nothing is -0.0."""
    report = read_run(runs / "longest").report
    assert report.scores.tokens_per_vote is None
    assert dict(facts(report))["tokens per vote"] == "–"
    assert dict(facts(report))["temperature, top p, most tokens"] == "–, –, –"
    columns, rows = leaderboard([read_run(runs / "first"), read_run(runs / "longest")])
    assert {row[columns.index("tokens a vote")] for row in rows} <= {"–", ""}
    tiny = replace(report, scores=replace(report.scores, position_bias=-0.0002, position_interval=(-0.0004, 0.0002)))
    assert dict(facts(tiny))["position bias (share of first, minus 50)"] == "+0.0 points [0.0, 0.0]"
    assert (signed(-0.0004), signed(0.0004), signed(-0.1234), signed(None)) == ("+0.0", "+0.0", "-12.3", "–")


def test_several_comparisons_are_adjusted(runs: Path) -> None:
    """Of three runs all three p-values by Holm; of two there is nothing to adjust."""
    three = [read_run(runs / name) for name in ("first", "longest", "random")]
    columns, rows = leaderboard(three)
    assert columns[columns.index("p") + 1] == "p (Holm)"
    pairs = pair_differences(tuple(three))
    adjusted = holm([against(three[n], three[m]).p_value for n, m in ((0, 1), (0, 2), (1, 2))])
    assert [pair.p_holm for pair in pairs] == adjusted
    shown = {row[columns.index("p (Holm)")] for row in rows if row[columns.index("p")]}
    assert shown == {p_text(value) for value in adjusted[:2]}
    assert [(pair.difference, pair.interval) for pair in compare_runs(three).pairs] == [
        (pair.difference, pair.interval) for pair in pairs
    ]
    assert not {"p (Holm)", "rank"} & set(leaderboard(three[:2])[0])
    assert pairs_table(three[:2])[1] == []


def test_ranks_have_intervals(runs: Path) -> None:
    """A judge that is right in all pairs is the first; two that nothing tells apart share the ranks below; a failed run has
    none. The better of each pair is named first, with a difference that is not negative."""
    first = read_run(runs / "first")
    best = replace(first, name="best", rows=[replace(row, score=1.0) for row in first.rows])
    best = replace(best, report=replace(first.report, scores=replace(first.report.scores, accuracy=Accuracy(1.0, 1.0))))
    other = replace(first, name="other")
    failed = replace(first, name="failed", report=replace(first.report, failure="28 of 80 votes failed"))
    several = [first, failed, best, other]
    columns, rows = leaderboard(several)
    ranks = [row[columns.index("rank")] for row in rows[:4]]
    assert ranks == ["1–1", "2–3", "2–3", "–"]
    assert [run.rank for run in compare_runs(several).runs] == [(2, 3), None, (1, 1), (2, 3)]
    _, pairs = pairs_table(several)
    assert [cells[0].partition(" less ")[0] for cells in pairs] == ["best", "best", "first"]
    assert not any(cells[1].startswith("-") for cells in pairs)
    lines = list(csv.DictReader(leaderboard_csv(several).splitlines()))
    assert [(line["rank_low"], line["rank_high"]) for line in lines] == [("2", "3"), ("", ""), ("1", "1"), ("2", "3")]


def test_a_leaderboard_for_a_paper(runs: Path, tmp_path: Path) -> None:
    """Two tables of booktabs, as many cells in each row; how to read them and the commands as comments; nothing unescaped."""
    out = tmp_path / "board.tex"
    folders = [str(runs / name) for name in ("first", "longest", "random")]
    done = CliRunner().invoke(app, ["bench", "compare", *folders, "--out", str(out)])
    assert done.exit_code == 0, done.output
    text = out.read_text()
    assert text.count(r"\toprule") == text.count(r"\end{tabular}") == 2
    tables = [part.splitlines()[2:] for part in text.split(r"\begin{tabular}")[1:]]
    for lines in tables:
        assert len({line.count(" & ") for line in lines if line.endswith(r"\\")}) == 1
    assert "rank" in tables[0][0]
    assert "invalid, \\% &" in tables[0][0]
    assert P_AND_INTERVAL in text
    assert text.count(" prompts)") == 3


def test_damaged_runs_are_named_in_a_line(runs: Path, tmp_path: Path) -> None:
    """A row twice, and figures that are none."""
    for name in ("report.json", "scores.jsonl"):
        (tmp_path / name).write_text((runs / "first" / name).read_text())
    rows = (tmp_path / "scores.jsonl").read_text()
    (tmp_path / "scores.jsonl").write_text(rows + rows.splitlines()[0] + "\n")
    with pytest.raises(DataError, match=r"row 0 is in its scores\.jsonl twice"):
        read_run(tmp_path)
    (tmp_path / "scores.jsonl").write_text(rows)
    values = json.loads((tmp_path / "report.json").read_text())
    for change, told in (({"accuracy": None}, "bad accuracy"), ({"votes": "many"}, "bad votes")):
        (tmp_path / "report.json").write_text(json.dumps(values | change))
        with pytest.raises(DataError, match=told) as caught:
            read_run(tmp_path)
        assert "\n" not in str(caught.value)
        assert "pydantic" not in str(caught.value)


def test_fifths_of_one_length_are_no_plot(runs: Path) -> None:
    """Where answers differ by a letter, fifths coincide: accuracy by length has no meaning there."""
    report = read_run(runs / "longest").report
    fifths = [LengthFifth(n, 12, 0.5, (0.3, 0.7)) for n in (-2, -1, 0, 1, 2)]
    for by_length, is_drawn in ((fifths, True), ([*fifths[:4], replace(fifths[4], characters=1)], False)):
        figures = report_figures(replace(report, scores=replace(report.scores, by_length=tuple(by_length))))
        assert ("length" in {figure.name for figure in figures}) is is_drawn


def test_words_of_one_vote_an_order(runs: Path) -> None:
    """The decision is called what it is: right in both orders; no majority is spoken of, nor a sum of the groups."""
    report = read_run(runs / "longest").report
    assert "right in both orders" in explain_words(report)
    assert not {"over both orders", "undecided"} & set(explain_words(report))
    assert "over both orders" in explain_words(replace(report, votes=3))
    assert "right in both orders: " in headline(report).meaning
    assert "add up" not in report_markdown(report)
