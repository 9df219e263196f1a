"""An endpoint that refuses or fails is never a judge of 0 %: real servers, from the command line to the three reports."""

from __future__ import annotations

import json
import re
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
from tests.support.openai_server import VERDICT, ChatServer, chat_server
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
    ("status", "sentence", "cure"),
    [
        (404, "The model `m` does not exist", "--judge openai:MODEL@URL"),
        (401, "Incorrect API key", "OPENAI_API_KEY"),
        (400, "bad parameter: x", "reasoning_effort, body"),
    ],
)
def test_a_refusing_endpoint_stops_the_run(status: int, sentence: str, cure: str, pairs_file: Path, tmp_path: Path) -> None:
    """With the server's sentence, what it is about and exit status 3, long before every pair is asked; no report is left."""
    server = ChatServer(refuse=lambda body, number: (status, sentence))
    with chat_server(server) as url:
        ended = bench(url, pairs_file, tmp_path / "out")
    assert ended.returncode == 3
    assert f"HTTP {status}: {sentence}" in ended.stderr
    assert cure in ended.stderr
    assert "run the same command again" in ended.stderr
    assert not (tmp_path / "out" / "report.json").exists()
    assert len(server.bodies) <= 2 * CHUNK


def test_a_run_without_an_answer_is_taken_over(demo_pairs: Any, tmp_path: Path) -> None:
    """Cured by another setting, in the same folder; once there is an answer the folder is that run's."""
    write_parquet(demo_pairs[0][:20], tmp_path / "few.parquet")
    server = ChatServer(refuse=lambda body, number: None if "reasoning_effort" in body else (400, "reasoning_effort is needed"))
    with chat_server(server) as url:
        refused = bench(url, tmp_path / "few.parquet", tmp_path / "out")
        cured = bench(url, tmp_path / "few.parquet", tmp_path / "out", "reasoning_effort=low")
        other = bench(url, tmp_path / "few.parquet", tmp_path / "out", "reasoning_effort=high")
    assert (refused.returncode, cured.returncode, other.returncode) == (3, 0, 2)
    assert "reasoning_effort, body" in refused.stderr
    assert "belongs to a run that differs in judge" in other.stderr


def test_answers_without_any_verdict_are_no_figure(demo_pairs: Any, tmp_path: Path) -> None:
    """The last line has no percentage, the status is 1, and the command that is named reads the answers."""
    write_parquet(demo_pairs[0][:20], tmp_path / "few.parquet")
    with chat_server(ChatServer(text="I looked.\n\n[[A]]")) as url:
        unread = bench(url, tmp_path / "few.parquet", tmp_path / "out")
    assert unread.returncode == 1
    assert unread.stdout.splitlines()[-1].startswith("pairs: no verdict was read in any of 40 answers, of 20 pairs -> ")
    assert "Worse than guessing" not in unread.stdout
    cure = re.search(r"--judge (replay:\S+) template=(\w+)", unread.stderr)
    assert cure is not None
    options = ["--data", tmp_path / "few.parquet", "--judge", cure[1], f"template={cure[2]}", "--out", tmp_path / "again"]
    again = run_main(main, "bench", "run", "pairs", *options)
    assert again.returncode == 0
    assert again.stdout.splitlines()[-1].startswith("pairs: 50.0 [")


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
    [failed] = [line.split(" | ") for line in text.splitlines() if "| **failed** |" in line]
    assert [cell for n, cell in enumerate(failed) if n not in (0, 1, 6)] == ["–"] * 6 + ["– |"]  # but for the best baseline
    assert "- **pairs: FAILED: 10 of 200 votes" in text
    assert "pairs_: FAILED" not in text


def test_a_suite_without_any_verdict_is_no_figure(demo_pairs: Any, tmp_path: Path) -> None:
    """Of one of its benchmarks: the table has no accuracy there, the sentences say why, and the status is 1."""
    write_parquet(demo_pairs[0][:20], tmp_path / "few.parquet")
    entry = {"benchmark": "pairs", "data": "few.parquet", "controls": []}
    (tmp_path / "suite.yaml").write_text(f"title: t\nbenchmarks: [{entry}, {dict(entry, template='double_brackets')}]\n")
    with chat_server(ChatServer(text="I looked.\n\n[[A]]")) as url:
        how = ["--judge", f"openai:m@{url}", "--root", tmp_path, "--out", tmp_path / "s"]
        ended = run_main(main, "bench", "suite", tmp_path / "suite.yaml", *how)
    assert ended.returncode == 1
    assert "pairs: Invalid answers: 100.0 % have no verdict" in ended.stderr
    assert "pairs_: " not in ended.stderr
    unread, read = [line.split(" | ") for line in ended.stdout.splitlines() if line.startswith("| [pairs")]
    assert [unread[1], *unread[3:5]] == ["**no verdict read**", "–", "–"]
    assert read[1].startswith("50.0 [")


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


@pytest.fixture
def prompts_file(tmp_path: Path) -> Path:
    row = {"subset": "Math", "num_correct": 1, "num_incorrect": 3, "chosen": ["good"], "rejected": ["bad", "worse", "worst"]}
    lines = [json.dumps({**row, "id": str(n), "prompt": f"Q{n}"}) for n in range(20)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    return tmp_path / "prompts.jsonl"


@pytest.mark.nightly
@pytest.mark.parametrize(
    "command", [("rank", "--plan", "knockout"), ("bench", "run", "rewardbench2:choice", "--data")], ids=lambda c: c[0]
)
def test_rank_and_listwise_have_the_same_bound(command: tuple[str, ...], prompts_file: Path, tmp_path: Path) -> None:
    """A tenth of the answers fails, never two in a row: no figure is shown, the report says why, and the status is 3."""
    is_rank = command[0] == "rank"
    server = ChatServer(refuse=lambda body, number: (400, "too <long>") if number % 10 == 5 else None, text="[[A]]")
    if command[0] == "rank":
        server.text, command = VERDICT, (command[0], str(prompts_file), *command[1:])
    else:
        command = (*command, str(prompts_file))
    with chat_server(server) as url:
        how = [*command, "--judge", f"openai:m@{url}", "concurrency=1", "--out"]
        ended = run_main(main, *how, tmp_path / "out")
        written = json.loads((tmp_path / "out" / "report.json").read_text())
        allowed = run_main(main, *how, tmp_path / "allowed", "--max-failed", "0.2")
        server.refuse = lambda body, number: None
        again = run_main(main, *how, tmp_path / "out")
    assert ended.returncode == 3
    assert "the run failed: " in ended.stderr
    assert "(10.0 %, more than the 2 % of --max-failed): 'HTTP 400: too <long>'" in ended.stderr
    assert "best found" not in ended.stdout
    if is_rank:
        assert not any(words in ended.stdout for words in ("% undecided", "single best"))
        counts = {"statuses", "cached_votes", "num_prompts"}
        settings = {"plan", "budget", "votes", "judge", "command", "commit"}
        assert written.keys() == counts | settings | {"failure", "other_format"}
        assert "24 votes failed at the endpoint" in ended.stdout
    assert allowed.returncode == again.returncode == 0, again.stderr
    assert "best found" in again.stdout or "micro average" in again.stdout
    assert "FAILED" not in again.stdout
    assert json.loads((tmp_path / "out" / "report.json").read_text())["failure"] == ""


@pytest.mark.parametrize("protocol", ["choice", "ratings"])
def test_listwise_without_any_verdict_is_no_figure(protocol: str, prompts_file: Path, tmp_path: Path) -> None:
    """The status is 1; 3 if too many failed, too."""
    server = ChatServer(text="I cannot say.")
    with chat_server(server) as url:
        how = ["bench", "run", f"rewardbench2:{protocol}", "--data", prompts_file, "--judge", f"openai:m@{url}", "--out"]
        unread = run_main(main, *how, tmp_path / "a")
        server.refuse = lambda body, number: (400, "no") if number % 10 == 5 else None
        failed = run_main(main, *how, tmp_path / "b")
    assert (unread.returncode, failed.returncode) == (1, 3)
    assert "no verdict was read in any of" in unread.stdout
    assert "Invalid answers: 100.0 %" in unread.stderr


def test_a_refused_control_names_its_cure(pairs_file: Path, tmp_path: Path) -> None:
    """Where request after request is refused as well as where too many are: the votes are paid for, and need not be lost."""
    server = ChatServer(refuse=lambda body, number: (401, "no blank images") if number > 200 else None)
    with chat_server(server) as url:
        how = ["bench", "run", "pairs", "--data", pairs_file, "--judge", f"openai:m@{url}", "--out"]
        ended = run_main(main, *how, tmp_path / "a")
        assert ended.returncode == 3
        assert "20 requests of the control blank in a row failed" in ended.stderr
        assert "or leave the control out with --controls" in ended.stderr
        without = run_main(main, *how, tmp_path / "a", "--controls", "")
        assert without.returncode == 0, without.stderr
        asked = len(server.bodies)
        server.refuse = lambda body, number: (401, "no") if number > asked + 200 and number % 10 == 0 else None
        some = run_main(main, *how, tmp_path / "b")
    assert some.returncode == 3
    assert "20 of 200 votes of the control blank failed" in some.stderr
    assert "(--controls leaves it out)" in some.stderr
