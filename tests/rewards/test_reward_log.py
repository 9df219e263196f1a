"""Signs of a policy in a server's log of rewarded groups: on the way from requests to the page, and line by line."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from rewardlab.cli import app as cli
from rewardlab.data.files import read_complete_lines
from rewardlab.data.images import to_data_url
from rewardlab.errors import ConfigError, DataError, OutputError
from rewardlab.health.run_page import write_run_page
from rewardlab.rewards import reward_log
from rewardlab.rewards.policy_signs import bounds_of_signs
from rewardlab.rewards.reward_log import PAUSE, LogSigns, RewardLog, WindowMetrics, log_lines, read_group
from rewardlab.serving.service import GroupRules
from rewardlab.types import Message, PreferencePair
from tests.support.images import png
from tests.support.servers import running
from tests.support.serving import app_of, in_process, judge_of

USUAL, NOVEL = ["It is red.", "It is blue.", "It is red.", "It is blue."], ["Ned rud.", "Blu blam.", "Ned rud.", "Blu blam."]
PAIRS = [PreferencePair(f"p{n}", "Which?", ("It is red.", "It is blue."), 0, (png(),)) for n in range(4)]
START = datetime(2026, 1, 1, tzinfo=UTC)


def answer(prompt: tuple[Message, ...], draw: int) -> str:
    """Name the redder response; without a picture to see, the first."""
    first, second = prompt[0].text.split("Response 1:")[1].split("Response 2:")
    is_blank = any(image != png() for image in prompt[0].images)
    choice = 1 if is_blank or "red" in first or "red" not in second else 2
    return f"<think>x</think><answer>{choice}</answer>"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_log, "WINDOW", 8)
    monkeypatch.setattr(reward_log, "SAMPLE", 2)
    monkeypatch.setattr(reward_log, "NUM_CANARIES", 4)
    monkeypatch.setattr(reward_log, "POLL_S", 0.01)


def send(http: Any, answers: list[str], groups: int, **more: Any) -> None:
    for _ in range(groups):
        body = {"question": "Which?", "responses": answers, **more}
        assert None not in http.post("/v1/rewards", json=body).raise_for_status().json()["rewards"]


def line_of(answers: list[str], minute: float = 0, **more: Any) -> bytes:
    row = {"time": (START + timedelta(minutes=minute)).isoformat(), "key": "", "judge_hash": "a", "prompt": str(minute)}
    rewards = [float(n) for n in range(len(answers))]
    return json.dumps(row | {"answers": answers, "rewards": rewards, "orders_agree": [True]} | more).encode() + b"\n"


@pytest.mark.parametrize(("later", "code"), [(NOVEL, 1), (USUAL, 0)])
def test_from_requests_to_the_page(later: list[str], code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A policy that drifts gets the sign, one that does not gets none; the served judge is queried besides."""
    log, out, data = tmp_path / "rewards.jsonl", tmp_path / "out", tmp_path / "pairs.jsonl"
    (tmp_path / "red.png").write_bytes(png())
    row = {"question": "Which?", "images": ["red.png"], "responses": ["It is red.", "It is blue."], "preferred": 0}
    data.write_text("".join(json.dumps(row | {"pair_id": f"p{n}"}) + "\n" for n in range(4)))
    app = app_of(answer, reward_log=RewardLog(log, 1.0))
    with running(app) as url, httpx.Client(base_url=url) as http:
        send(http, USUAL, 10, images=[to_data_url(png())])
        send(http, later, 6, images=[to_data_url(png())])
        while app.state.service.reward_log.counts["written"] < 16:
            time.sleep(0.01)
        assert 'rewardlab_reward_log_groups_total{outcome="written"} 16.0' in http.get("/metrics").text
        done = CliRunner().invoke(cli, ["signs", str(log), "--data", str(data), "--judge", url, "--out", str(out)])
    assert done.exit_code == code, done.output
    assert ("novel_answers: 100.0% of the word pairs in answers occur in no answer of the set, 0.0%" in done.stdout) == bool(
        code
    )
    comparisons = [comparison for line in log_lines(log) if (comparison := read_group(line).comparison)]
    assert len(comparisons) == 16
    assert {frozenset(comparison.pair.responses) for comparison in comparisons[:10]} == {frozenset(USUAL)}, "texts that differ"
    rows = read_complete_lines(out / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert {row["judge/canaries"] for row in rows} == {1.0}
    assert {row["judge/blank_gap"] for row in rows[:5]} == {0.5}, "of two orders a blank picture turns one"
    page = write_run_page(out).read_text()
    assert "8 windows of answers" in page
    assert "Dashed: the watchdog reports a sign" in page
    assert ("occur in no answer of the set" in page) == bool(code)


def test_lines_of_a_server(tmp_path: Path) -> None:
    """Thinking and the anchor are no answers of the policy; a group that comes one response at a time is logged as well. The
    file may be moved away."""
    log = tmp_path / "rewards.jsonl"
    app = app_of(answer, rules=GroupRules(group_size=2), reward_log=RewardLog(log))
    with in_process(app) as http, ThreadPoolExecutor(2) as pool:
        send(http, ["<think>x</think>It is red.", "It is blue."], 1, strategy="anchor", anchor="Words of another.")
        while app.state.service.reward_log.counts["written"] < 1:
            time.sleep(0.01)
        log.rename(tmp_path / "old.jsonl")

        def single(text: str) -> None:
            body = {"prompt": "Which?", "response": text, "label": {"question": "Which?"}}
            http.post("/slime", json=body).raise_for_status()

        list(pool.map(single, USUAL[:2]))
        hash_now = http.get("/health").json()["judge_hash"]
    (old,), (new,) = (list(map(read_group, log_lines(path))) for path in (tmp_path / "old.jsonl", log))
    assert (old.answers, old.rewards, old.orders_agree) == (("It is red.", "It is blue."), (1.0, 0.0), (True, False))
    assert (sorted(new.answers), sorted(new.rewards), new.orders_agree) == (sorted(USUAL[:2]), [-1.0, 1.0], (True,))  # type: ignore[type-var]
    assert (old.key, old.judge_hash, old.comparison) == ("", hash_now, None)
    assert old.prompt == new.prompt
    assert datetime.now(UTC) - old.time < timedelta(minutes=1)


def test_a_full_disk_fails_no_request(caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, and counted."""
    app = app_of(answer, reward_log=RewardLog(Path("/dev/full")))
    with in_process(app) as http:
        send(http, USUAL, 3)
        while app.state.service.reward_log.counts["failed"] < 3:
            time.sleep(0.01)
        assert 'rewardlab_reward_log_groups_total{outcome="failed"} 3.0' in http.get("/metrics").text
    assert caplog.text.count("/dev/full: groups are not logged") == 1


def test_a_line_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is left out first, then the group; and so is one for which a slow disk has no room."""
    log = tmp_path / "rewards.jsonl"
    log.write_text('{"torn')
    app = app_of(answer, reward_log=RewardLog(log, 1.0))
    written = app.state.service.reward_log
    monkeypatch.setattr(reward_log, "MOST_BYTES", 450)
    with in_process(app) as http:
        send(http, USUAL, 1, images=[to_data_url(png())])
        send(http, ["long " * 99, "longer " * 99], 1)
        while sum(written.counts.values()) < 2:
            time.sleep(0.01)
        monkeypatch.setattr(reward_log, "MOST_WAITING", 10)
        written._waiting = 1
        send(http, USUAL, 1)
    assert written.counts == {"written": 1, "failed": 0, "skipped": 2}
    torn, line = log_lines(log)
    assert (torn, read_group(line).comparison) == (b'{"torn\n', None)


def windows_of(signs: LogSigns, lines: Iterable[bytes]) -> list[WindowMetrics]:
    return [window for line in lines if (window := signs.add(line)) is not None]


def test_keys_apart(tmp_path: Path) -> None:
    """One key's answers say nothing of another's, and each has its folder; after a long pause another run begins."""
    log, later = tmp_path / "log", 16 + PAUSE / timedelta(minutes=1)
    lines = [line_of(USUAL if n < 10 else NOVEL, n, key="one") for n in range(16)]
    lines += [line_of(NOVEL, n, key="two") for n in range(16)]
    signs = LogSigns(PAIRS)
    assert [window.signs.keys() for window in windows_of(signs, lines) if window.signs] == [{"novel_answers", "new_winners"}]
    assert {key: window.present.keys() for key, window in signs.windows.items()} == {
        "one": {"novel_answers", "new_winners"},
        "two": set(),
    }
    lines += [line_of(NOVEL, later + n, key="one") for n in range(2)]
    log.write_bytes(b"".join(lines))
    assert CliRunner().invoke(cli, ["signs", str(log), "--out", str(tmp_path / "out")]).exit_code == 0
    folders = [tmp_path / "out" / name for name in ("key=one", "key=one/run=2", "key=two")]
    assert [len(read_complete_lines(folder / "metrics.jsonl")) for folder in folders] == [8, 1, 8]
    (tmp_path / "out" / "key=two" / "run.json").write_text('{"config": {"model": "m"}}')
    with pytest.raises(ConfigError, match="holds a training run"):
        CliRunner().invoke(cli, ["signs", str(log), "--out", str(tmp_path / "out")], catch_exceptions=False)
    alone = LogSigns(key="two")
    assert (len(windows_of(alone, lines)), alone.windows.keys()) == (8, {"two"})


@pytest.mark.parametrize("num_labelled", [3, 4])
def test_few_labelled_pairs_say_nothing_of_the_judge(num_labelled: int, caplog: pytest.LogCaptureFixture) -> None:
    signs = LogSigns(PAIRS[:num_labelled], judge_of(answer))
    [window] = windows_of(signs, [line_of(USUAL, n) for n in range(2)])
    assert ("judge/canaries" in window.metrics) == (num_labelled == 4)
    assert ("3 labelled pairs are too few" in caplog.text) == (num_labelled == 3)


def test_another_judge_begins_anew() -> None:
    """Its metrics are compared with none of the judge before; those of the answers go on. The page's limits are its own."""
    signs = LogSigns()
    lines = [line_of(USUAL, n, judge_hash="a" if n < 16 else "b", orders_agree=[n < 16 or n >= 32]) for n in range(48)]
    lines += [line_of(USUAL, n, judge_hash="b", orders_agree=[False]) for n in range(48, 64)]
    windows = windows_of(signs, lines)
    rows = [{"judge_hash": window.judge_hash, **window.metrics} for window in windows]
    assert [row["judge/order_agreement"] for row in rows] == [1.0] * 8 + [0.0] * 8 + [1.0] * 8 + [0.0] * 8
    assert not any(window.signs for window in windows), "it agrees no less than it did at first"
    limits = {"max_disagreement": 0.25, "max_repetition": 0.05}
    assert bounds_of_signs(rows, limits) == {"judge/order_agreement": -0.25, "answers/repetition": 0.05}
    assert bounds_of_signs(rows[:8], limits)["judge/order_agreement"] == 0.75
    lines = [line_of(USUAL, n, judge_hash="c", orders_agree=[n < 74]) for n in range(64, 80)]
    assert [window.signs.keys() for window in windows_of(signs, lines)][-1] == {"orders_disagree"}
    assert signs.add(line_of(USUAL, 81, judge_hash="d")) is None
    assert signs.windows[""].present == {}


def test_lines_that_cannot_be_read(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """They are counted and said, and the others are read."""
    log = tmp_path / "rewards.jsonl"
    uneven = line_of(USUAL).replace(b"[0.0, ", b"[")
    log.write_bytes(line_of(USUAL) + b"\n[1]\n\xff\n" + uneven + line_of(NOVEL) + line_of(USUAL)[:-9])
    signs = LogSigns()
    with caplog.at_level(logging.WARNING):
        assert len(windows_of(signs, log_lines(log))) == 1
    assert (signs.num_groups, signs.num_unreadable) == (2, 4)
    assert caplog.text.count("cannot be read, and is left out") == 1
    assert "2 groups read, 4 lines unreadable" in signs.summary


def test_a_judge_that_fails_is_no_sign(caplog: pytest.LogCaptureFixture) -> None:
    """The answers are read without it, which is counted."""
    signs = LogSigns()

    def refuses(*args: Any) -> Any:
        raise DataError("refused")

    signs._checks = refuses  # type: ignore[assignment]
    assert len(windows_of(signs, [line_of(USUAL)] * 2)) == signs.num_failed == 1
    assert "the judge cannot be queried: refused" in caplog.text


def test_a_log_that_cannot_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While there is no file in its place, it is waited for; another thing there is said."""
    log, turns = tmp_path / "log", iter("lf")
    log.write_bytes(b"one\n")

    def replaced(seconds: float) -> None:
        if seconds:
            log.unlink()
            log.symlink_to(log) if next(turns) == "l" else log.mkdir()

    monkeypatch.setattr("rewardlab.rewards.reward_log.sleep", replaced)
    lines = log_lines(log, follow=True)
    assert next(lines) == b"one\n"
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\); expected the FILE of --reward-log"):
        next(lines)


def test_a_log_is_followed_to_its_next_file(tmp_path: Path) -> None:
    """Lines come as they are written, whole, in the file that was moved too, and in the one that was emptied."""
    log, seen = tmp_path / "log", list[bytes]()
    log.write_bytes(b"1\n2")
    lines = log_lines(log, follow=True)
    reader = threading.Thread(target=lambda: [seen.append(next(lines)) for _ in range(5)], daemon=True)
    reader.start()

    def wait_for(number: int) -> None:
        end = time.monotonic() + 10
        while len(seen) < number:
            assert time.monotonic() < end
            time.sleep(0.01)

    wait_for(1)
    with log.open("ab", buffering=0) as file:
        file.write(b"2\n")
        wait_for(2)
        log.rename(tmp_path / "log.1")
        file.write(b"3\n")
    log.write_bytes(b"4 is longer\n")
    wait_for(4)
    log.write_bytes(b"5\n")
    wait_for(5)
    assert seen == [b"1\n", b"22\n", b"3\n", b"4 is longer\n", b"5\n"]


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="choose a writable --reward-log"):
        RewardLog(tmp_path)
    with pytest.raises(DataError, match="expected the FILE of --reward-log"):
        next(log_lines(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="check_rate is for --reward-log"):
        CliRunner().invoke(cli, ["serve", "--judge", "demo", "--limit", "check_rate=1"], catch_exceptions=False)
