"""Exit statuses are what :mod:`rewardlab.cli.exit_codes` says, of real processes where a signal is sent to one."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from rewardlab.cli import main
from rewardlab.cli.exit_codes import EXIT_CODES, ExitCode, exit_code_of
from rewardlab.cli.judge import end_without_outcome, end_without_votes
from rewardlab.cli.options import app
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError, DataError, EndpointError, HealthError, OutputError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.types import BOTH_ORDERS, Completion, FinishReason, Message, Order, VerdictStatus, Vote
from rewardlab.verdicts.formats import double_brackets
from rewardlab.verdicts.panel import panel_judgment
from rewardlab.verdicts.votes import both_orders_or_none, reduce_votes
from tests.support.judge_servers import ANSWERS, PLAIN, judge_servers
from tests.support.servers import running
from tests.support.shell import ROOT, TERMINAL, run_main


def test_the_table_is_whole() -> None:
    """Every status has a sentence, in the help and in the documentation."""
    page = (ROOT / "docs" / "reference" / "exit_codes.md").read_text()
    shown = " ".join(run_main(main, "--help").stdout.split())
    for code in ExitCode:
        assert f"| {code.value} | {EXIT_CODES[code]} |" in page
        assert f"{code.value}: {EXIT_CODES[code]}".replace("`", "") in shown


@pytest.mark.parametrize(
    ("error", "status"),
    [(ConfigError, 2), (DataError, 2), (OutputError, 2), (EndpointError, 3), (HealthError, 4)],
)
def test_errors_and_their_statuses(error: type, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By kind; the sentence goes to standard error."""
    assert exit_code_of(error("x")) == status

    def fail(*_: object, **__: object) -> None:
        raise error("a sentence")

    monkeypatch.setattr("rewardlab.health.run_page.write_run_page", fail)
    done = run_main(main, "show", "nowhere")
    assert (done.returncode, done.stderr) == (status, "error: a sentence\n")


def test_a_fault_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that nobody foresaw has its traceback, and not the status of a check that found something."""

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("rewardlab.health.run_page.write_run_page", fail)
    done = run_main(main, "show", "nowhere")
    assert done.returncode == ExitCode.FAULT
    assert "ZeroDivisionError: a fault" in done.stderr


def test_a_teacher_that_is_down(demo_pairs: Any, tmp_path: Path) -> None:
    """Status 3; what is there begins anew with another teacher, for not one answer is lost."""
    write_parquet(demo_pairs[0][:4], tmp_path / "pairs.parquet")
    command = ["distill", "--data", tmp_path / "pairs.parquet", "--out", tmp_path / "out", "retries=0"]
    for model in ("one", "other"):
        done = run_main(main, *command, f"model={model}", "base_url=http://127.0.0.1:9/v1")
        assert done.returncode == ExitCode.ENDPOINT, done.stderr
        assert done.stderr.strip().splitlines()[-1].startswith("error:")
        assert "Traceback" not in done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} <= {"journal.sqlite", "journal.lock"}


class Silent(http.server.BaseHTTPRequestHandler):
    """Takes requests and never answers."""

    requests = threading.Event()

    def do_POST(self) -> None:
        Silent.requests.set()
        time.sleep(60)


@pytest.fixture
def silent_teacher() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Silent.requests.clear()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)])
def test_a_stopped_command_says_that_it_goes_on(
    number: signal.Signals, status: ExitCode, silent_teacher: str, demo_pairs: Any, tmp_path: Path
) -> None:
    """A real process in the middle of its requests: one sentence, no traceback."""
    write_parquet(demo_pairs[0][:4], tmp_path / "pairs.parquet")
    arguments = ["distill", "--data", tmp_path / "pairs.parquet", "--out", tmp_path / "out", f"base_url={silent_teacher}"]
    command = [sys.executable, "-m", "rewardlab.cli", *map(str, arguments)]
    environment = {**os.environ, **TERMINAL}
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background of a shell ignores it
    ) as child:
        assert Silent.requests.wait(120)
        child.send_signal(number)
        _, err = child.communicate(timeout=60)
    assert child.returncode == status, err
    assert err.strip().splitlines()[-1] == "stopped; finished work is kept: run the same command again to resume"
    assert "Traceback" not in err


@pytest.mark.slow
def test_version_and_log_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """`version` and `--version` agree; the level is the option's, or the environment's, and -q hides progress."""
    import logging

    from rewardlab.reporting.progress import is_quiet

    logger = logging.getLogger("rewardlab")
    monkeypatch.setattr(logger, "level", logger.level)  # put back after the test
    assert run_main(main, "version").stdout == run_main(main, "--version").stdout
    for arguments, level in [(["-q"], "ERROR"), (["--log-level", "debug"], "DEBUG"), ([], "WARNING")]:
        run_main(main, *arguments, "version")
        assert logging.getLevelName(logger.level) == level
        assert is_quiet() == (level == "ERROR")
    monkeypatch.setenv("REWARDLAB_LOG", "info")
    run_main(main, "version")
    assert logger.level == logging.INFO
    assert run_main(main, "--log-level", "loud", "version").returncode == ExitCode.INPUT
    assert app.info.epilog is not None


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        ([VerdictStatus.OK, VerdictStatus.ERROR], None),
        ([], None),
        ([VerdictStatus.ERROR, VerdictStatus.TIMEOUT], ExitCode.ENDPOINT),
        ([VerdictStatus.NO_VERDICT, VerdictStatus.ERROR], ExitCode.FINDING),
        ([VerdictStatus.TIE], ExitCode.FINDING),
    ],
)
def test_no_valid_vote_is_no_success(statuses: list[VerdictStatus], status: ExitCode | None) -> None:
    """Whether the endpoint failed or the judge: one valid vote suffices."""
    if status is None:
        end_without_votes(set(statuses))
        return
    with pytest.raises(typer.Exit) as end:
        end_without_votes(set(statuses))
    assert end.value.exit_code == status


@pytest.mark.slow
@pytest.mark.parametrize(("other", "status"), [("down", ExitCode.ENDPOINT), ("mute", ExitCode.FINDING), ("first", ExitCode.OK)])
def test_one_order_alone_names_no_winner(other: str, status: ExitCode, tmp_path: Path) -> None:
    """Of a judge that names what is shown first where it answers; `judge` and `rank`."""

    def answer(prompt: tuple[Message, ...], draw: int) -> str | Completion:
        return ANSWERS["first" if "Response 1: a" in prompt[0].text else other](prompt, draw)

    with running(create_app(GenerativeJudge(ScriptedSampler(answer), PLAIN))) as url:
        done = run_main(main, "judge", "--judge", url, "--question", "Which?", "--first", "a", "--second", "b")
        assert done.returncode == status, done.stderr
        assert "the first response is better" not in done.stdout
        assert ("no vote of an order names a response" in done.stdout) == (other != "first")
        (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "Which?", "responses": ["a", "b"]}))
        ranked = ("rank", tmp_path / "rows.jsonl", "--judge", url, "--out", tmp_path / "out", "--plan", "round_robin")
        assert run_main(main, *ranked).returncode == status
    [row] = map(json.loads, (tmp_path / "out" / "rankings.jsonl").read_text().splitlines())
    assert (row["best"], row["undecided"]) == (None, 1)


@pytest.mark.parametrize(
    ("given", "swapped", "sentence"),
    [
        ("[[C]]", "[[C]]", "no vote names a response"),
        ("[[A]]", "[[C]]", "no vote of an order names a response; more votes= may"),
        ("no", "no", "no vote names a response; does template= fit the judge, and max_tokens= its judgments?"),
    ],
)
def test_votes_for_a_tie_are_read(given: str, swapped: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A tie is a valid verdict that names no response: the sentence does not call it invalid."""
    texts = {Order.GIVEN: given, Order.SWAPPED: swapped}
    votes = [Vote(order, double_brackets(text), Completion(text, FinishReason.STOP)) for order, text in texts.items()]
    with pytest.raises(typer.Exit) as end:
        end_without_outcome(both_orders_or_none(reduce_votes("p", votes)))
    assert end.value.exit_code == ExitCode.FINDING
    assert capsys.readouterr().err.splitlines()[-1] == sentence


def test_a_panel_counts_its_members(capsys: pytest.CaptureFixture[str]) -> None:
    """One member of two names a response, and the other contradicts itself: that is said of members, not of votes."""
    text = Completion("", FinishReason.STOP)
    choices = {"a": "[[A]] [[B]]", "b": "[[A]] [[A]]"}
    votes = [
        Vote(order, double_brackets(said), text, member=member)
        for member, both in choices.items()
        for order, said in zip(BOTH_ORDERS, both.split(), strict=True)
    ]
    with pytest.raises(typer.Exit):
        end_without_outcome(panel_judgment("p", votes))
    sentence = "neither response has more than half of the members; more votes= may decide"
    assert capsys.readouterr().err.splitlines() == [sentence]


def test_an_empty_key_is_none(demo_server: Callable[..., str], demo_pairs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is set and empty, as of a CI job without its secret, is no key; the endpoint may need none."""
    monkeypatch.setenv("OPENAI_API_KEY", "")
    pair = demo_pairs[0][0]
    texts = ("--question", pair.question, "--first", pair.responses[0], "--second", pair.responses[1], "template=plain")
    done = run_main(main, "judge", "--judge", f"openai:demo-teacher@{demo_server()}", *texts)
    assert done.returncode in (ExitCode.OK, ExitCode.FINDING, ExitCode.ENDPOINT), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)])
def test_a_stopped_group(number: signal.Signals, status: ExitCode, monkeypatch: pytest.MonkeyPatch) -> None:
    """`demo` is a group of commands that does something itself."""
    monkeypatch.setattr("rewardlab.demo.examples.judge_examples", lambda: os.kill(os.getpid(), number) or time.sleep(10))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, where the tests are a shell's background job
    try:
        done = run_main(main, "demo", "--no-open")
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.returncode == status
    assert done.stderr.strip().splitlines()[-1] == "stopped"


@pytest.mark.slow
def test_an_output_of_another_encoding(tmp_path: Path) -> None:
    """A character that it lacks is a question mark, and no fault; a real process."""
    environment = {**os.environ, **TERMINAL, "PYTHONIOENCODING": "cp1252"}
    with judge_servers("first") as [url]:
        arguments = ["judge", "--judge", url, "--question", "Which?", "--first", "a", "--second", "b"]
        command = [sys.executable, "-m", "rewardlab.cli", *arguments]
        done = subprocess.run(command, capture_output=True, cwd=ROOT, env=environment)
    assert done.returncode == ExitCode.OK, done.stderr
    assert b"? for the first response" in done.stdout


LOSES = {
    "fork": "os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGINT))\n"
    "def lose():\n    if os.fork() == 0: os._exit(0)\n",
    "destructor": "class Open:\n    def __del__(self): signal.raise_signal(signal.SIGINT)\ndef lose(): Open()\n",
}


@pytest.mark.parametrize("where", LOSES)
def test_an_interrupt_is_not_lost(where: str) -> None:
    """Ctrl-C while a data loader forks its workers: Python prints it, ignores it, and would go on for good."""
    code = (
        "import os, signal, time\nfrom rewardlab.cli.applications import interrupts_kept\n"
        f"{LOSES[where]}"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with interrupts_kept():\n"
        "    try:\n        lose(); time.sleep(20); print('lost')\n"
        "    except KeyboardInterrupt:\n        print('stopped')\n"
    )
    quiet = "ignore::DeprecationWarning"  # Python 3.13 sees the timer that sends it again as a thread at the fork
    done = subprocess.run([sys.executable, "-W", quiet, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.stdout, done.stderr) == ("stopped\n", "")
