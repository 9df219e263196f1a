"""Programs against their tests, in the real processes: right and wrong ones, and those that try to leave or to cheat."""

from __future__ import annotations

import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rewardlab.rewards.verifiable.code import CodeVerifier, equal_values, parse_tests
from rewardlab.rewards.verifiable.extraction import AnswerStatus, Contract, Extraction, fenced
from rewardlab.rewards.verifiable.rules import Domain, Problem

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="needs seccomp"
)
DOUBLE = Problem(Domain.CODE, "Double it.", "assert double(3) == 6\nassert double('ab') == 'abab'", Contract.ANSWER)
ECHO = Problem(Domain.CODE, "Add one.", '[["4", "5\\n"], ["-1", "0"]]', Contract.ANSWER)

NONE = Problem(Domain.CODE, "Find it.", "assert find(2) == None", Contract.ANSWER)
LENGTH = Problem(Domain.CODE, "Find it.", "assert len(find(2)) == 4", Contract.ANSWER)
ACCENTS = Problem(Domain.CODE, "Find it.", f"assert find() == {'é' * 6000!r}", Contract.ANSWER)


@pytest.fixture(scope="module")
def verifier() -> Iterator[CodeVerifier]:
    made = CodeVerifier(timeout_s=1.0)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("problem", "program", "score", "status"),
    [
        (DOUBLE, "def double(x): return x * 2", 1, "ok"),
        (DOUBLE, "def double(x): return x ** 2 if x == 2 else x + 3", 0, "ok"),
        (DOUBLE, "def double(x): raise ValueError", 0, "ok"),
        (DOUBLE, "def double(x: return", 0, "unreadable"),
        (DOUBLE, "double = 7", 0, "ok"),
        (NONE, "raise SystemExit", 0, "ok"),
        (NONE, "def find(x): raise SystemExit", 0, "ok"),
        (NONE, "def find(x): pass", 1, "ok"),
        (DOUBLE, "def double(x: List[int]): return x + x", 0, "ok"),
        (DOUBLE, "def double(x): return x + x\nif __name__ == '__main__':\n    print(input())", 1, "ok"),
        (LENGTH, "def find(x): return 'abc'\nlen = lambda x: 4", 0, "ok"),
        (ACCENTS, "def find(): return 'é' * 6000", 1, "ok"),
        (ECHO, "import sys\nsys.stdout.buffer.write(b'%d' % (int(sys.stdin.buffer.read()) + 1))", 1, "ok"),
        (ECHO, "import sys\nsys.stdout.close()", 0, "error"),
        (ECHO, 'import os\nos.write(1, b\'{"status": "unconfined"}\')\nos._exit(0)', 0, "error"),
        (ECHO, "import time\ntime.sleep(0.6)\nprint(int(input()) + 1)", 1, "ok"),
        (ECHO, "print(int(input()) + 1)", 1, "ok"),
        (ECHO, "import math\nprint(int(input()) + math.floor(1.5), end='   \\n\\n')", 1, "ok"),
        (ECHO, "print(5)", 0, "ok"),
        (ECHO, "while True: pass", 0, "timeout"),
        (ECHO, "x = [0] * 10**10", 0, "error"),
    ],
)
def test_programs(verifier: CodeVerifier, problem: Problem, program: str, score: float, status: str) -> None:
    result = verifier.compare(problem, program)
    assert (result.score, result.status) == (score, AnswerStatus(status))


CHEATS = {
    "an object that equals everything": "class E:\n    def __eq__(self, other): return True\ndef double(x): return E()",
    "an early exit": "import os\nos._exit(0)",
    "a clean exit": "raise SystemExit(0)",
    "the runner's own words": 'import os\nos.write(1, b\'{"status": "ok", "value": true}\')\nos._exit(0)',
    "a patched json": "import json\njson.dumps = lambda *a, **k: '6'\ndef double(x): return 0",
    "a patched eval": "import builtins\nbuiltins.eval = lambda *a: 6\ndef double(x): return 0",
    "true for one": "def double(x): return True",
}


@pytest.mark.parametrize("program", CHEATS.values(), ids=CHEATS)
def test_what_does_not_compute_the_answer_earns_nothing(verifier: CodeVerifier, program: str) -> None:
    assert verifier.compare(DOUBLE, program).score == 0
    assert verifier.compare(Problem(Domain.CODE, "", "assert double(1) == 1", Contract.ANSWER), program).score == 0


def test_a_program_reaches_nothing(verifier: CodeVerifier, tmp_path: Path) -> None:
    """Each attempt prints "out" if it succeeds: files, sockets, processes, signals, other modules' doors, and this process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        attempts = {
            "reads a file": "open('/etc/passwd').read()",
            "writes a file": f"open({str(tmp_path / 'written')!r}, 'w').write('x')",
            "makes a folder": f"__import__('os').mkdir({str(tmp_path / 'made')!r})",
            "lists a folder": "__import__('os').listdir('/')",
            "reads the parent's memory": "open('/proc/%d/maps' % __import__('os').getppid()).read()",
            "forks": "__import__('os').fork()",
            "starts a program": "__import__('os').execv('/bin/true', ['true'])",
            "starts a thread": "__import__('_thread').start_new_thread(print, ())",
            "kills": f"__import__('os').kill({os.getpid()}, 0)",
            "connects": f"__import__('_socket').socket().connect(('127.0.0.1', {port}))",
            "raises its limits": "__import__('resource').setrlimit(0, (-1, -1))",
            "traces": "assert __import__('ctypes').CDLL(None).ptrace(16, 1, 0, 0) == 0",
            "reads the jobs of others": "assert __import__('os').read(0, 10)",
        }
        for name, attempt in attempts.items():
            case = Problem(Domain.CODE, "", '[["", "out"]]', Contract.ANSWER)
            assert verifier.compare(case, f"{attempt}\nprint('out')").score == 0, name
    assert list(tmp_path.iterdir()) == []
    assert verifier.compare(Problem(Domain.CODE, "", '[["", "out"]]', Contract.ANSWER), "print('out')").score == 1


@pytest.mark.nightly
def test_the_time_is_for_all_tests_together(verifier: CodeVerifier) -> None:
    """Many slow cases take no longer than one: a program cannot hold a run for a hundred times its limit."""
    slow = Problem(Domain.CODE, "", "[" + ", ".join(['["", "1"]'] * 50) + "]", Contract.ANSWER)
    started = time.monotonic()
    result = verifier.compare(slow, "import time\ntime.sleep(0.3)\nprint(1)")
    assert (result.score, result.status) == (0, AnswerStatus.TIMEOUT)
    assert time.monotonic() - started < 5
    own = """import os, time
os.write(1, b'{"status": "ok", "printed": "1", "seconds": -9}')
time.sleep(0.3)
os._exit(0)"""
    assert verifier.compare(slow, own).status is AnswerStatus.TIMEOUT


def test_the_seconds_of_all_tests_are_added(verifier: CodeVerifier) -> None:
    """Each case alone is within the limit."""
    busy = Problem(Domain.CODE, "", "[" + ", ".join(['["", "1"]'] * 3) + "]", Contract.ANSWER)
    result = verifier.compare(busy, "import time\nwhile time.process_time() < 0.6: pass\nprint(1)")
    assert (result.score, result.status) == (0, AnswerStatus.TIMEOUT)


def test_by_many_threads(verifier: CodeVerifier) -> None:
    """Endless programs and right ones side by side: each gets its own verdict, and nobody waits longer than the limits say."""
    started = time.monotonic()
    programs = ["while True: pass" if n % 8 == 0 else f"print(int(input()) + {1 + n % 2})" for n in range(32)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda program: verifier.compare(ECHO, program), programs))
    expected = [AnswerStatus.TIMEOUT if n % 8 == 0 else AnswerStatus.OK for n in range(32)]
    assert [result.status for result in results] == expected
    assert [result.score for result in results] == [float(n % 2 == 0 and n % 8 != 0) for n in range(32)]
    assert time.monotonic() - started < 30
    assert threading.active_count() < 20


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "0 tests"),
        ("[]", "0 tests"),
        ("[[1, 2]]", "two strings each"),
        ("assert f(2) > 1", "a test reads"),
        ("import os", "a test reads"),
        ("assert f(2) == g(3)", "a value that JSON has"),
        ("assert 4 == f(2)", "a value that JSON has"),
        ("assert (f(2) == 4) == True", "must not compare"),
        ("assert (abs(f(2) - 4) < 1) == True", "must not compare"),
        ('[["1", ""], ["2", " "]]', "expect no output"),
        ("assert f() == '" + "a" * 40_000 + "'", "more than 30,000 bytes"),
        pytest.param("-" * 20_000 + "1", "no JSON and no Python", id="signs"),
        ("assert f() == {1, 2}", "not JSON serializable"),
        pytest.param("[" * 100_000, "nested too deep", id="deep"),
        ("def", "no JSON and no Python"),
        ("[" + ", ".join(['["", "1"]'] * 101) + "]", "101 tests; expected 1 to 100"),
    ],
)
def test_tests_that_cannot_be_read(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_tests(text)


def test_values() -> None:
    assert equal_values([1, {"a": 2.0}], [1.0, {"a": 2}])
    assert not equal_values(True, 1)
    assert not equal_values([1], [1, 2])
    assert not equal_values({"a": 1}, {"b": 1})


@pytest.mark.parametrize(
    ("solution", "status", "program"),
    [
        ("Like this:\n```py\nx = 1\n```\nIt sets x.", "ok", "x = 1"),
        ("````python title=a\nx = '```'\n````", "ok", "x = '```'"),
        ("~~~\r\nx = 1\r\ny = 2\r\n~~~", "ok", "x = 1\ny = 2"),
        ("x = 1", "missing", ""),
        ("```\nx = 1", "unclosed", ""),
        ("```print(1)```", "unclosed", ""),
        ("```\nx = 1\n```\n```\nx = 2\n```", "several", ""),
        ("```\n\n```", "empty", ""),
        ("- so:\n  ```python\n  x = 1\n  ```", "ok", "x = 1"),
        ("\ufeff```\nP = 'a\u2028b'\n```", "ok", "P = 'a\u2028b'"),
        ("```\nx = 1\n~~~", "unclosed", ""),
        ("```\nx = 1\n~~~\ny = 2\n```", "ok", "x = 1\n~~~\ny = 2"),
        ("```\n" + "x = 1\n" * 20_000 + "```", "too_long", ""),
    ],
)
def test_the_place_of_a_program(solution: str, status: str, program: str) -> None:
    assert fenced(solution) == Extraction(program, AnswerStatus(status))


def test_where_no_program_can_be_confined(verifier: CodeVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "_run", lambda *_: {"status": "unconfined"})
    with pytest.raises(ValueError, match="leave out the pairs of category code"):
        verifier.compare(ECHO, "print(1)")


def test_no_process_is_left() -> None:
    """Those of a verifier that is dropped end without being asked."""
    made = CodeVerifier(num_workers=1)
    assert made.compare(ECHO, "print(int(input()) + 1)").score == 1
    worker = made._workers._free.queue[0]
    assert worker is not None
    del made
    assert worker._process.poll() is not None
