"""Every vote of an endpoint is on disk when it comes: a kill loses what is in flight, and what failed alone is asked again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.base import PARTIAL_VOTES, VOTES, Row
from rewardlab.benchmarks.pass_log import PassLog
from rewardlab.benchmarks.passes import Pass
from rewardlab.benchmarks.report_model import Report
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import main
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import DataError
from rewardlab.judging.best_of_n import run_ranking
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import BOTH_ORDERS, Candidates, Completion, FinishReason, Order, Verdict, VerdictStatus, Vote
from tests.support.openai_server import VERDICT, ChatServer, chat_server
from tests.support.shell import run_main


def write_pairs(demo_pairs: Any, number: int, folder: Path) -> Path:
    write_parquet(demo_pairs[0][:number], folder / "pairs.parquet")
    return folder / "pairs.parquet"


def bench(url: str, data: Path, out: Path, **changes: Any) -> Report:
    values: dict[str, Any] = {"controls": (), "concurrency": 8, "deadline_s": 30.0, **changes}
    return run_bench(bench_settings("pairs", data, f"openai:m@{url}", **values), out)[0]


def stored(folder: Path) -> list[tuple[list[Any], list[Any]]]:
    lines = [json.loads(line) for line in (folder / VOTES).read_text().splitlines()[1:]]
    return sorted(([line["pass"], line["row"]], line["votes"]) for line in lines)


def test_a_broken_run_asks_for_what_it_lacks(demo_pairs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken off in its first row of few: the votes that were answered are there, and those of both runs are the same."""
    data, write_vote = write_pairs(demo_pairs, 6, tmp_path), PassLog.write_vote
    options: dict[str, Any] = {"votes": 5, "controls": ("greedy",), "concurrency": 4, "deadline_s": 30.0}
    server, written = ChatServer(by_seed=True), []

    def broken(*arguments: Any) -> None:
        write_vote(*arguments)
        written.append(arguments)
        if len(written) == 23:
            raise KeyboardInterrupt

    with chat_server(server) as url:
        monkeypatch.setattr(PassLog, "write_vote", broken)
        with pytest.raises(KeyboardInterrupt):
            bench(url, data, tmp_path / "parts", **options)
        monkeypatch.setattr(PassLog, "write_vote", write_vote)
        assert len((tmp_path / "parts" / PARTIAL_VOTES).read_text().splitlines()) == 1 + 23
        asked = len(server.bodies)
        assert 23 <= asked <= 23 + 2 * 4
        bench(url, data, tmp_path / "parts", **options)
        assert len(server.bodies) - asked == 60 + 12 - 23
        assert not (tmp_path / "parts" / PARTIAL_VOTES).exists()
        bench(url, data, tmp_path / "whole", **options)
        assert stored(tmp_path / "parts") == stored(tmp_path / "whole")
        asked = len(server.bodies)
        bench(url, data, tmp_path / "whole", **options)
        assert len(server.bodies) == asked


def test_only_the_votes_that_failed_are_asked_again(demo_pairs: Any, tmp_path: Path) -> None:
    """Not the others of their rows, which are paid for."""
    data, server = write_pairs(demo_pairs, 10, tmp_path), ChatServer(by_seed=True)
    server.refuse = lambda body, number: (400, "no") if number in (7, 31, 32, 55) else None
    options: dict[str, Any] = {"votes": 3, "controls": ()}
    with chat_server(server) as url:
        first = bench(url, data, tmp_path / "out", **options)
        assert first.scores.statuses["error"] == 4
        second = bench(url, data, tmp_path / "out", **options)
        assert len(server.bodies) == 64
        whole = bench(url, data, tmp_path / "whole", **options)
    assert (second.failure, second.scores) == ("", whole.scores)
    assert second.seconds_per_vote is not None


def test_seconds_are_of_the_votes_that_took_them(demo_pairs: Any, tmp_path: Path) -> None:
    """Votes asked for again add their own time alone, whether a line that was there already is counted then or before."""
    good, bad = (Completion("", finish, 1) for finish in (FinishReason.STOP, FinishReason.ERROR))
    answered, failed = (Vote(Order.GIVEN, Verdict(None, VerdictStatus.NO_VERDICT), one) for one in (good, bad))
    lines = [([answered, answered, answered, failed], 8.0), ([answered] * 4, 2.0)]
    row = Row(0, demo_pairs[0][0], "a", "b", {})
    for written in (0, 1, 2):  # lines of an earlier run
        with PassLog(tmp_path / str(written), {"a": 1}) as log:
            for votes, seconds in lines[:written]:
                log.write_row("votes", 0, votes, seconds)
        with PassLog(tmp_path / str(written), {"a": 1}) as log:
            one = Pass("votes", [row], [BOTH_ORDERS], log)
            for votes, seconds in lines[written:]:
                one.write(0, votes, seconds)
            assert (one.seconds, one.num_timed) == (10.0, 5)
            assert one.seconds_per_vote == 2.0


def test_the_slowest_answer_holds_nobody_up(demo_pairs: Any, tmp_path: Path) -> None:
    """The first request of 100 pairs is answered when all have come; chunks are asked one into the other."""
    server = ChatServer(hold=(1, 200))
    with chat_server(server) as url:
        report = bench(url, write_pairs(demo_pairs, 100, tmp_path), tmp_path / "out")
    assert (report.scores.invalid_rate, report.failure) == (0.0, "")
    assert server.most <= 8


def test_a_refusing_endpoint_is_asked_few_times(demo_pairs: Any, tmp_path: Path) -> None:
    """Twenty times, and what is in flight then; however many votes a pair has."""
    server = ChatServer(refuse=lambda body, number: (401, "no key"))
    with chat_server(server) as url:
        data = write_pairs(demo_pairs, 100, tmp_path)
        arguments = ["bench", "run", "pairs", "--data", data, "--judge", f"openai:m@{url}", "--out", tmp_path / "out"]
        assert run_main(main, *arguments, "--votes", "20", "concurrency=8").returncode == 3
    assert 20 <= len(server.bodies) <= 20 + 2 * 8


def test_nobody_there_leaves_nothing_behind(demo_pairs: Any, tmp_path: Path) -> None:
    data, out = write_pairs(demo_pairs, 2, tmp_path), tmp_path / "out"
    judge = "openai:m@http://127.0.0.1:9/v1"
    ended = run_main(main, "bench", "run", "pairs", "--data", data, "--judge", judge, "--out", out)
    assert ended.returncode == 3
    assert not out.exists()


KEYS = ("pass", "row", "votes", "order", "choice", "status", "rule", "text", "finish", "num_tokens", "error")


@pytest.mark.parametrize("key", KEYS)
def test_a_damaged_line_is_a_sentence(key: str, demo_pairs: Any, tmp_path: Path) -> None:
    """With file, line and cure; deleting the line is one."""
    data, log = write_pairs(demo_pairs, 3, tmp_path), tmp_path / "out" / VOTES
    with chat_server(ChatServer()) as url:
        bench(url, data, tmp_path / "out")
        lines = log.read_text().splitlines(keepends=True)
        entry = json.loads(lines[2])
        del (entry if key in entry else entry["votes"][0])[key]
        log.write_text("".join([*lines[:2], json.dumps(entry) + "\n", *lines[3:]]))
        with pytest.raises(DataError, match=rf"votes.jsonl, line 3: corrupt \(lacks '{key}'\).*delete the line"):
            bench(url, data, tmp_path / "out")
        log.write_text("".join([*lines[:2], *lines[3:]]))
        bench(url, data, tmp_path / "out")


def test_a_damaged_match_is_a_sentence(tmp_path: Path) -> None:
    judge = GenerativeJudge(ScriptedSampler(lambda prompt, draw: VERDICT), load_template("plain"))
    prompts = [Candidates("p", "q", ("a", "b"), group="g")]
    arguments: dict[str, Any] = {"plan": "round_robin", "budget": None, "num_votes": 1, "seed": 0}
    run_ranking(judge, prompts, tmp_path, **arguments)
    head, line = (tmp_path / "matches.jsonl").read_text().splitlines()
    entry = json.loads(line)
    del entry["nth"]
    (tmp_path / "matches.jsonl").write_text(f"{head}\n{json.dumps(entry)}\n")
    with pytest.raises(DataError, match=r"matches.jsonl, line 2: corrupt \(lacks 'nth'\)"):
        run_ranking(judge, prompts, tmp_path, **arguments)


def test_kill_9(demo_pairs: Any, tmp_path: Path) -> None:
    """A real process, killed while one answer never comes: every answer that came is kept, and none is asked for again."""
    server = ChatServer(by_seed=True, hold=(100, 100_000))
    data = write_pairs(demo_pairs, 60, tmp_path)
    with chat_server(server) as url:
        command = [sys.executable, "-c", "from rewardlab.cli import main; main()", "bench", "run", "pairs", "--votes", "5"]
        command += ["--data", str(data), "--controls", "", "--judge", f"openai:m@{url}", "concurrency=8"]
        command += ["--out", str(tmp_path / "killed")]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while run.poll() is None and server.answers < 300:
            time.sleep(0.01)
        run.send_signal(signal.SIGKILL)
        run.wait()
        kept = len((tmp_path / "killed" / PARTIAL_VOTES).read_text().splitlines()) - 1
        server.hold, asked = None, len(server.bodies)
        assert asked - kept <= 2 * 8
        subprocess.run(command, check=True, capture_output=True)
        assert len(server.bodies) - asked == 600 - kept
        bench(url, data, tmp_path / "whole", votes=5)
    assert stored(tmp_path / "killed") == stored(tmp_path / "whole")
