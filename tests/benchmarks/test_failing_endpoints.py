"""An endpoint that refuses or fails is never a judge of 0 %: real servers, from the command line to the three reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.benchmark import benchmark
from rewardlab.benchmarks.passes import CHUNK
from rewardlab.cli import main
from rewardlab.data.pairs import write_parquet
from rewardlab.distill.pipeline import distill
from rewardlab.errors import EndpointError
from rewardlab.samplers.failures import GIVE_UP_AFTER, GIVE_UP_AFTER_REFUSALS, FailureStreak, errors_in_words
from rewardlab.types import Completion, FinishReason
from tests.support.distillation import config_for
from tests.support.openai_server import ChatServer, chat_server
from tests.support.shell import run_main


@pytest.fixture
def pairs_file(demo_pairs: Any, tmp_path: Path) -> Path:
    write_parquet(demo_pairs[0][:100], tmp_path / "pairs.parquet")
    return tmp_path / "pairs.parquet"


def bench(url: str, data: Path, out: Path, *options: object) -> Any:
    return run_main(
        main, "bench", "run", "pairs", "--data", data, "--judge", f"openai:m@{url}", "--out", out, "--controls", "", *options
    )


@pytest.mark.parametrize(
    ("status", "sentence"), [(404, "The model `m` does not exist"), (401, "Incorrect API key"), (400, "bad parameter: x")]
)
def test_a_refusing_endpoint_stops_the_run(status: int, sentence: str, pairs_file: Path, tmp_path: Path) -> None:
    """With the server's sentence and exit status 3, long before every pair is asked; no report is left."""
    server = ChatServer(refuse=lambda body, number: (status, sentence))
    with chat_server(server) as url:
        ended = bench(url, pairs_file, tmp_path / "out")
    assert ended.returncode == 3
    assert f"HTTP {status}: {sentence}" in ended.stderr
    assert "run the same command again" in ended.stderr
    assert not (tmp_path / "out" / "report.json").exists()
    assert len(server.bodies) <= 2 * CHUNK


def test_where_all_fail_there_is_no_report(demo_pairs: Any, tmp_path: Path) -> None:
    """However few they are; of a control, too, and the cure is named."""
    write_parquet(demo_pairs[0][:4], tmp_path / "few.parquet")
    server = ChatServer(refuse=lambda body, number: (400, "no images"))
    with (
        chat_server(server) as url,
        pytest.raises(EndpointError, match=r"every one of 8 requests failed: 'HTTP 400: no images'"),
    ):
        benchmark("pairs", judge=f"openai:m@{url}", data=tmp_path / "few.parquet", out=tmp_path / "a", controls=())
    server = ChatServer(refuse=lambda body, number: (400, "no blanks") if number > 8 else None)
    with chat_server(server) as url, pytest.raises(EndpointError, match=r"requests of the control blank failed.*--controls"):
        benchmark("pairs", judge=f"openai:m@{url}", data=tmp_path / "few.parquet", out=tmp_path / "b")


def test_too_many_failures_mark_the_report(pairs_file: Path, tmp_path: Path) -> None:
    """In terminal, Markdown and page, in the leaderboard and the check, with exit status 3; the same command makes it good."""
    server = ChatServer(refuse=lambda body, number: (400, "too <long>") if number % 20 == 5 else None)
    with chat_server(server) as url:
        ended = bench(url, pairs_file, tmp_path / "out")
        report = benchmark("pairs", judge=f"openai:m@{url}", data=pairs_file, out=tmp_path / "python", controls=())
        allowed = bench(url, pairs_file, tmp_path / "allowed", "--max-failed", "0.1")
        server.refuse = lambda body, number: None
        again = benchmark("pairs", judge=f"openai:m@{url}", data=pairs_file, out=tmp_path / "python", controls=())
    assert ended.returncode == 3
    assert "10 of 200 votes failed at the endpoint (5.0 %" in ended.stderr
    for text in (ended.stdout, (tmp_path / "out" / "report.md").read_text()):
        assert "FAILED: 10 of 200 votes" in text
        assert "'HTTP 400: too <long>' (10)" in text
    assert "FAILED: 10 of 200 votes" in (tmp_path / "out" / "report.html").read_text()
    assert "failed: 10 of 200" in repr(report)
    assert allowed.returncode == 0
    assert "FAILED" not in allowed.stdout
    assert "votes failed at the endpoint and count as wrong: 'HTTP 400: too <long>'" in allowed.stdout
    board = run_main(main, "bench", "compare", tmp_path / "allowed", tmp_path / "out", "--out", tmp_path / "board.html")
    [row] = [line for line in board.stdout.splitlines() if line.startswith("| out (")]
    assert [cell.strip() for cell in row.split("|")][2:4] == ["failed", ""]
    assert "out failed: 10 of 200 votes" in (tmp_path / "board.html").read_text()
    check = run_main(main, "bench", "check", tmp_path / "out")
    assert check.returncode == 1
    assert "failed: 10 of 200" in check.stdout
    assert again.failure == ""


def test_a_suite_goes_on_and_says_which_failed(pairs_file: Path, tmp_path: Path) -> None:
    """The table has no accuracy of a failed run, and the status is 3."""
    suite = tmp_path / "suite.yaml"
    entry = {"benchmark": "pairs", "data": pairs_file.name, "controls": []}
    suite.write_text(f"title: t\nbenchmarks: [{entry}, {dict(entry, max_failed=0.5)}]\n")
    server = ChatServer(refuse=lambda body, number: (400, "no") if number % 20 == 5 else None)
    with chat_server(server) as url:
        ended = run_main(
            main, "bench", "suite", suite, "--judge", f"openai:m@{url}", "--root", tmp_path, "--out", tmp_path / "s"
        )
    assert ended.returncode == 3
    text = (tmp_path / "s" / "suite.md").read_text()
    assert "| **failed** |" in text
    assert "- **pairs: FAILED: 10 of 200 votes" in text
    assert "pairs_: FAILED" not in text


@pytest.mark.parametrize("status", [401, 404, 400])
def test_a_teacher_that_refuses_is_asked_few_times(status: int, demo_pairs: Any, tmp_path: Path) -> None:
    """Not about every pair."""
    server = ChatServer(refuse=lambda body, number: (status, "no such thing"))
    pairs = demo_pairs[0][:300]
    with chat_server(server) as url, pytest.raises(EndpointError, match=f"HTTP {status}: no such thing"):
        distill(pairs, config_for(url), tmp_path)
    assert len(server.bodies) < 100


def fail(error: str) -> Completion:
    return Completion("", FinishReason.ERROR, error=error)


@pytest.mark.parametrize(("error", "most"), [("HTTP 401: key", GIVE_UP_AFTER), ("HTTP 400: content", GIVE_UP_AFTER_REFUSALS)])
def test_failures_in_a_row(error: str, most: int) -> None:
    """An answer begins the count anew; a refusal of what may be in the request counts only before the first answer."""
    streak = FailureStreak("judge")
    for _ in range(most - 1):
        streak.take(fail(error))
    with pytest.raises(EndpointError, match=f"judge: {most} requests in a row failed, the last with '{error}'"):
        streak.take(fail(error))
    streak = FailureStreak("judge")
    for _ in range(most - 1):
        streak.take(fail(error))
    streak.take(Completion("yes", FinishReason.STOP))
    for _ in range(most - 1):
        streak.take(fail(error))
    if error.startswith("HTTP 400"):
        for _ in range(1000):
            streak.take(fail(error))


def test_errors_are_counted_by_their_words() -> None:
    failed = [fail("a")] * 3 + [fail("b")] * 5 + [fail("c"), fail("d"), fail("e"), Completion("x", FinishReason.STOP)]
    assert errors_in_words(failed) == "'b' (5), 'a' (3), 'c' (1), 2 other errors"
    assert errors_in_words([Completion("x", FinishReason.STOP)]) == ""
