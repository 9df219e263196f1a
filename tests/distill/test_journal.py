"""The file of a distillation's requests and answers: what is kept, what is counted, and whose it is."""

from __future__ import annotations

import re
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from rewardlab.distill.journal import Answer, Journal, Usage
from rewardlab.errors import ConfigError, DataError, OutputError
from rewardlab.types import Completion, FinishReason, Order
from tests.support.distillation import calls_of

DONE = Completion("yes", FinishReason.STOP, 20, 100, num_cached_tokens=40)
FAILED = Completion("", FinishReason.ERROR, 50, 100, error="HTTP 503")
IDENTITY = {"model": "m", "seed": 0}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "one" / "journal.sqlite"


def test_a_request_and_its_answer(path: Path) -> None:
    """Written before it is sent, and again when it is answered; a second run reads what the first has written."""
    with Journal(path, IDENTITY) as journal:
        journal.record_request("p", 1, Order.SWAPPED)
        assert calls_of(path)[0]["asked"] == 1
        assert (journal.answers("p"), journal.counts()["open"]) == ([], 1)
        assert journal.record_answer("p", 1, DONE, usd=0.5)
        assert (journal.counts()["open"], journal.longest_prompt()) == (0, 100)
    with Journal(path, IDENTITY) as again:
        (found,) = again.answers("p")
        assert found == Answer(1, Order.SWAPPED, "yes", FinishReason.STOP, 20, 100)
        assert found.completion() == Completion("yes", FinishReason.STOP, 20, 100)
        assert again.usage() == Usage(1, 100, 20, 40, 0.5, 0)
    assert Usage(1, 100, 20, 40, 0.5, 3).tokens == 123  # the cached ones are among those of the prompt


def test_an_answer_is_kept(path: Path) -> None:
    """The first one: what comes later for the same attempt changes nothing, nor does a failure."""
    with Journal(path, IDENTITY) as journal:
        journal.record_request("p", 1, Order.GIVEN)
        assert journal.record_answer("p", 1, DONE, usd=0.5)
        assert not journal.record_answer("p", 1, Completion("no", FinishReason.STOP, 9, 9), usd=9.0)
        assert not journal.record_answer("p", 1, FAILED, usd=0.25)
        assert [a.text for a in journal.answers("p")] == ["yes"]
        assert journal.usage() == Usage(1, 100, 20, 40, 0.75, 150)


def test_a_failure_is_asked_again(path: Path) -> None:
    """It is counted with what it cost and its error, and the attempt stays open, in the order it is asked in last."""
    with Journal(path, IDENTITY) as journal:
        for order in (Order.GIVEN, Order.SWAPPED):
            journal.record_request("p", 1, order)
            assert not journal.record_answer("p", 1, FAILED, usd=0.25)
        journal.record_request("q", 1, Order.GIVEN)
        assert journal.counts() == {"asked": 3, "asked_again": 1, "failures": 2, "open": 2}
        assert journal.usage() == Usage(0, 0, 0, 0, 0.5, 300)
        assert (journal.errors(), journal.longest_prompt()) == ([("HTTP 503", 1)], 0)
        journal.record_answer("p", 1, DONE, usd=0.5)
        assert [a.order for a in journal.answers("p")] == [Order.SWAPPED]


def test_the_most_frequent_errors_come_first(path: Path) -> None:
    """Five kinds at most."""
    with Journal(path, IDENTITY) as journal:
        for number in range(1, 8):
            for pair in range(number):
                journal.record_request(f"{number}/{pair}", 1, Order.GIVEN)
                journal.record_answer(f"{number}/{pair}", 1, Completion("", FinishReason.ERROR, error=f"E{number}"), 0.0)
        assert journal.errors() == [(f"E{number}", number) for number in (7, 6, 5, 4, 3)]


def test_answers_come_by_attempt(path: Path) -> None:
    """Whatever the order in which they came; those open are none."""
    with Journal(path, IDENTITY) as journal:
        for pair, attempt in (("b", 2), ("b", 1), ("a", 1), ("b", 3)):
            journal.record_request(pair, attempt, Order.GIVEN)
            if attempt < 3:
                journal.record_answer(pair, attempt, DONE, 0.0)
        assert [a.attempt for a in journal.answers("b")] == [1, 2]
        assert journal.answers("c") == []


def test_an_empty_journal(path: Path) -> None:
    """Zeros, of their own types."""
    with Journal(path, IDENTITY) as journal:
        assert journal.usage() == Usage(0, 0, 0, 0, 0.0, 0)
        assert journal.counts() == {"asked": 0, "asked_again": 0, "failures": 0, "open": 0}
        assert (journal.errors(), journal.longest_prompt(), journal.open_batches()) == ([], 0, [])


def test_batches(path: Path) -> None:
    """Recorded with their calls before they are sent; names differ; one that was collected is no longer open."""
    calls = [("p", 1, Order.GIVEN), ("q", 1, Order.SWAPPED)]
    with Journal(path, IDENTITY) as journal:
        first = journal.record_batch(calls)
        assert journal.counts()["asked"] == 2
        assert journal.open_batches() == [(first, None, [("p", 1), ("q", 1)])]
        journal.mark_batch(first, "sent", "batch_7")
        second = journal.record_batch([("r", 1, Order.GIVEN)])
        assert re.fullmatch(r"[0-9a-f]{16}-000000", first)
        assert second == first.replace("-000000", "-000001")
    with Journal(path, IDENTITY) as again:
        assert again.open_batches() == [(first, "batch_7", [("p", 1), ("q", 1)]), (second, None, [("r", 1)])]
        again.mark_batch(first, "collected")
        assert [name for name, _, _ in again.open_batches()] == [second]
        third = again.record_batch(calls)
        assert third not in (first, second)
        assert third.rpartition("-")[0] == first.rpartition("-")[0]  # a run that goes on names its batches alike


def test_a_batch_is_recorded_whole_or_not_at_all(path: Path) -> None:
    """A request among it that cannot be written leaves none of the others behind, and the journal goes on."""
    with Journal(path, IDENTITY) as journal:
        with pytest.raises(AttributeError):
            journal.record_batch([("p", 1, Order.GIVEN), ("q", 1, "sideways")])  # type: ignore[list-item]
        assert (journal.counts()["asked"], journal.open_batches()) == (0, [])
        journal.record_batch([("p", 1, Order.GIVEN)])
        assert journal.counts()["asked"] == 1


def test_another_runs_journal(path: Path) -> None:
    """Settings that differ are named once there is an answer; before, nothing is lost and the journal is theirs."""
    with Journal(path, IDENTITY) as journal:
        journal.record_request("p", 1, Order.GIVEN)
    with Journal(path, IDENTITY | {"seed": 1}) as other:
        assert other.counts()["asked"] == 0
        other.record_request("p", 1, Order.GIVEN)
        other.record_answer("p", 1, DONE, 0.0)
    with pytest.raises(ConfigError) as refusal:
        Journal(path, {"model": "n", "seed": 0, "votes": 2})
    belongs = f"{path}: belongs to a run that differs in model, seed, votes"
    assert str(refusal.value) == f"{belongs}; use another --out, or the same settings"
    with Journal(path, IDENTITY | {"seed": 1}) as same:  # the refusal has let go of the file
        assert same.usage().answers == 1


@pytest.mark.parametrize("paid", ["tokens", "usd", "batch"])
def test_what_was_paid_is_not_given_up(paid: str, path: Path) -> None:
    """Failures that cost something and batches that are away hold a journal for their settings, as answers do."""
    with Journal(path, IDENTITY) as journal:
        if paid == "batch":
            journal.record_batch([("p", 1, Order.GIVEN)])
        else:
            journal.record_request("p", 1, Order.GIVEN)
            tokens = 50 if paid == "tokens" else 0
            journal.record_answer("p", 1, Completion("", FinishReason.ERROR, tokens), 0.1 if paid == "usd" else 0.0)
    with pytest.raises(ConfigError, match="differs in seed"):
        Journal(path, IDENTITY | {"seed": 1})


def test_one_process_writes_at_a_time(path: Path) -> None:
    """The second is refused while the first is open, and not after."""
    with Journal(path, IDENTITY), pytest.raises(OutputError, match="another process is writing it"):
        Journal(path, IDENTITY)
    assert (path.parent / "journal.lock").exists()
    Journal(path, IDENTITY).close()


def test_what_is_no_journal(tmp_path: Path) -> None:
    """A sentence with the path and the cure."""
    (tmp_path / "text.sqlite").write_text("not a database, but long enough to look like one\n" * 20)
    with pytest.raises(DataError, match=r"not a journal of a distillation.*restore it or start over"):
        Journal(tmp_path / "text.sqlite", IDENTITY)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="choose a writable --out"):
        Journal(tmp_path / "file" / "journal.sqlite", IDENTITY)


def test_a_full_disk(path: Path) -> None:
    """What cannot be written is said with the cure, and what was written before is there."""
    with Journal(path, IDENTITY) as journal:
        journal.record_request("p", 1, Order.GIVEN)
        journal.record_answer("p", 1, DONE, 0.0)
    with Journal(path, IDENTITY) as journal:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, limits[1]))
        try:
            with pytest.raises(OutputError, match="nothing is lost: make room and run the same command again"):
                journal.record_request("q" * 1_000_000, 1, Order.GIVEN)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert [a.text for a in journal.answers("p")] == ["yes"]


@contextmanager
def no_room() -> Iterator[None]:
    """Let no file grow, as a full disk does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_batch_on_a_full_disk(path: Path) -> None:
    """The disk is what is said, not the transaction that SQLite has ended by itself, and the journal goes on."""
    with Journal(path, IDENTITY) as journal:
        journal._db.execute("PRAGMA max_page_count=20")
        calls = [(f"{number}" * 200, 1, Order.GIVEN) for number in range(1000)]
        with pytest.raises(OutputError, match=r"cannot be written \(.*full\); nothing is lost: make room"):
            journal.record_batch(calls)
        assert (journal.counts()["asked"], journal.open_batches()) == (0, [])
        journal.record_batch(calls[:1])
        assert journal.counts()["asked"] == 1


def test_a_journal_that_is_opened_on_a_full_disk(path: Path) -> None:
    """It is healthy, and nobody is told to start anew."""
    with Journal(path, IDENTITY) as journal:
        journal.record_request("p", 1, Order.GIVEN)
        journal.record_answer("p", 1, DONE, 0.0)
    with no_room(), pytest.raises(OutputError, match="nothing is lost: make room and run the same command again"):
        Journal(path, IDENTITY)
    with Journal(path, IDENTITY) as journal:  # the lock is free
        assert journal.usage().answers == 1


def test_a_folder_in_the_journals_place(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(OutputError, match="see that it is a file that may be written"):
        Journal(path, IDENTITY)
    path.rmdir()
    Journal(path, IDENTITY).close()


def test_tables_of_another_program(path: Path) -> None:
    """A database that is none of ours is no journal, and no fault of the disk."""
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE run (speed REAL)")
    with pytest.raises(DataError, match="not a journal of a distillation"):
        Journal(path, IDENTITY)


def test_a_transaction_is_whole_or_nothing(path: Path) -> None:
    """Failures are added up, so that half of a batch's, collected again, would count twice."""
    with Journal(path, IDENTITY) as journal:
        journal.record_request("p", 1, Order.GIVEN)
        for error in (KeyboardInterrupt, None):
            with suppress(KeyboardInterrupt), journal.transaction():
                journal.record_answer("p", 1, FAILED, usd=0.25)
                if error:
                    raise error
        assert (journal.counts()["failures"], journal.usage().usd) == (1, 0.25)


def test_fields_that_the_teacher_refuses(path: Path) -> None:
    """Of all parts of a run, each once; of another run's none."""
    with Journal(path, IDENTITY) as journal:
        journal.record_left_out(["seed"])
    with Journal(path, IDENTITY) as journal:
        journal.record_left_out(["temperature", "seed"])
        assert journal.left_out() == ["seed", "temperature"]
    with Journal(path, IDENTITY | {"seed": 1}) as journal:
        assert journal.left_out() == []
