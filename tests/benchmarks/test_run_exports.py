"""Figures and tables as files: each opens as what it is, and has the numbers of the report."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rewardlab.benchmarks.comparison import Run, read_run
from rewardlab.benchmarks.leaderboard import (
    csv_text,
    latex_escape,
    latex_text,
    main_table,
    markdown_text,
    write_figures,
)
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import main
from rewardlab.data.pairs import write_parquet
from rewardlab.metrics.intervals import AccuracyEstimate
from rewardlab.reporting.plots import SUFFIXES, plot_length, save_figure
from tests.support.shell import run_main


@pytest.fixture(scope="module")
def runs(demo_pairs: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two judges, whose names LaTeX would take for its own."""
    folder = tmp_path_factory.mktemp("runs")
    write_parquet(demo_pairs[0][:40], folder / "pairs.parquet")
    for rule in ("longest", "random"):
        settings = bench_settings("pairs", folder / "pairs.parquet", f"baseline:{rule}", votes=3)
        run_bench(settings, folder / f"{rule}_50%")
    return [folder / "longest_50%", folder / "random_50%"]


def test_figures(runs: list[Path], tmp_path: Path) -> None:
    """Every figure of each run, and one of both judges, on white; only formats that there are."""
    done = run_main(main, "bench", "figures", *runs, "--format", "svg, png", "--out", tmp_path / "figures")
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "figures").iterdir())
    assert {path.name for path in files} >= {"judges.svg", "longest_50-accuracy.svg", "random_50-position.png"}
    for path in files:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert image.width == 1000
                assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    done = run_main(main, "bench", "figures", runs[0], "--format", "gif", "--out", tmp_path / "three")
    assert done.returncode == 2
    assert "unknown format gif; expected svg, pdf, png" in done.stderr


def test_names_of_files_never_meet(runs: list[Path], tmp_path: Path) -> None:
    """Of runs whose names differ by what files leave out."""
    report = read_run(runs[0]).report
    written = write_figures([Run("50%", report, []), Run("50", report, [])], tmp_path, ["svg"])
    assert len({path.name for path in written}) == len(written) == len(list(tmp_path.iterdir()))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_of_a_figure(suffix: str, tmp_path: Path) -> None:
    """It is what its name says; the same figure is the same file; an SVG needs no font and no reader's setting."""
    for name in ("one", "two"):
        save_figure(
            plot_length([(-20, AccuracyEstimate(0.5, (0.4, 0.6))), (7, AccuracyEstimate(0.7, (0.6, 0.8)))]),
            tmp_path / f"{name}{suffix}",
        )
    data = (tmp_path / f"one{suffix}").read_bytes()
    assert data == (tmp_path / f"two{suffix}").read_bytes()
    assert data.startswith({".svg": b"<?xml", ".pdf": b"%PDF", ".png": b"\x89PNG"}[suffix])
    if suffix == ".svg":
        assert b"<text" not in data
        assert b"var(--" not in data
    with pytest.raises(ValueError, match=r"\.svg, \.pdf, \.png"):
        save_figure(plot_length([]), tmp_path / "one.gif")


def test_csv(runs: list[Path], tmp_path: Path) -> None:
    """Every number is that of the report, to the last digit."""
    done = run_main(main, "bench", "table", *runs, "--out", tmp_path / "new" / "runs.csv")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "new" / "runs.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    for folder in runs:
        report = read_run(folder).report
        mine = {line["path"]: line for line in lines if line["run"] == folder.name}
        assert float(mine["accuracy.micro"]["value"]) == report.scores.accuracy.micro
        assert tuple(float(mine[f"interval.{end}"]["value"]) for end in ("low", "high")) == report.scores.interval
        for name, group in report.scores.groups.items():
            assert float(mine[f"groups.{name}.accuracy"]["value"]) == group.accuracy
        assert float(mine["baselines.longest.micro"]["value"]) == report.baselines["longest"].micro
        assert float(mine["position_bias"]["value"]) == report.scores.position_bias
        assert mine["accuracy.micro"]["judge"] == report.judge


def test_latex_and_markdown(runs: list[Path], tmp_path: Path) -> None:
    """As many cells in each line as columns; nothing that LaTeX would read as its own; a failed run has no number."""
    finished = [read_run(folder) for folder in runs]
    columns, rows = main_table(finished)
    body = [line for line in latex_text(finished).splitlines() if line.endswith(r"\\")]
    assert [line.replace(r"\&", "").count("&") for line in body] == [len(columns) - 1] * 3
    assert body[1].startswith(r"longest\_50\% & 40 & ")
    assert latex_escape(r"a_b&50% \x{$#~^") == (r"a\_b\&50\% \textbackslash{}x\{\$\#\textasciitilde{}\textasciicircum{}")
    assert markdown_text(finished).splitlines()[2].strip("| ").split(" | ") == rows[0]
    failed = Run("x/late", finished[0].report.__class__(**{**vars(finished[0].report), "failure": "HTTP 401"}), [])
    assert set(main_table([failed])[1][0][2:]) == {"failed"}
    assert "HTTP 401" in csv_text([failed])
    done = run_main(main, "bench", "table", *runs, "--out", tmp_path / "runs.xlsx")
    assert done.returncode == 2
    assert "expected a file that ends in .csv, .tex, .md" in done.stderr
