"""The log of rewarded groups: a JSON line for each, which a server appends. It is read for signs that a policy exploits the
judge, as `rewardlab policy` reads its rollout batches: in windows of answers, which are compared with the first ones.

=============  ================================================================================================
field          meaning
=============  ================================================================================================
time           when the group was rewarded, ISO 8601
key            name of the key that sent it; "" on a server without keys
judge_hash     of the judge that rewarded it, as in /health
prompt         hash of the question and its media
answers        the responses without their thinking
rewards        one for each answer; null without a verdict
orders_agree   of each comparison: whether all votes of both orders name one response; null if an order has none
comparison     in some lines: one comparison, its images in base64 (URL-safe), and the judge's fraction for response 0
=============  ================================================================================================
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from time import sleep
from typing import IO, ClassVar

from pydantic import ConfigDict, TypeAdapter

from rewardlab.config import SignsConfig
from rewardlab.data.pair_table import pair_facts
from rewardlab.errors import DataError, OutputError, RewardlabError
from rewardlab.judging.group_rewards import GroupRewards
from rewardlab.judging.judge import ModelJudge
from rewardlab.metrics.running import Metric
from rewardlab.prompts import with_criteria
from rewardlab.rewards.pairwise import without_thinking
from rewardlab.rewards.policy_signs import (
    BEGINNING,
    JUDGE_METRICS,
    LAST,
    TRENDS,
    AnswerComparison,
    JudgeChecks,
    PolicySigns,
    answer_metrics,
    known_answers,
    orders_agree,
    share_in_both_orders,
)
from rewardlab.types import Candidates, PreferencePair

LOG = logging.getLogger(__name__)
MOST_BYTES = 8_000_000  # of a line; writing one holds the event loop for 20 ms at most
MOST_WAITING = 64_000_000  # bytes of the groups that wait to be written
VOTE_BYTES = 1000  # of a vote in memory, about
POLL_S = 1.0  # between two looks at a file that may grow
OUTCOMES = ("written", "failed", "skipped")

WINDOW = 512  # answers of a line of metrics
SAMPLE = 16  # comparisons that are repeated with blank images: a mean of fewer would differ by chance
NUM_CANARIES = 32  # with fewer, the same judge would look like another by chance
PAUSE = timedelta(hours=1)  # without a group of a key, after which its next one begins a new run
LIMITS = SignsConfig.model_validate({})


@dataclass(frozen=True)
class RewardedGroup:
    """A line of the log."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    time: datetime
    key: str
    judge_hash: str
    prompt: str
    answers: tuple[str, ...]
    rewards: tuple[float | None, ...]
    orders_agree: tuple[bool | None, ...]
    comparison: AnswerComparison | None = None


_LINE = TypeAdapter(RewardedGroup)


def read_group(line: bytes) -> RewardedGroup:
    """Return the group of a line. Raise ValueError for one that cannot be read."""
    group = _LINE.validate_json(line)
    if len(group.answers) != len(group.rewards) or group.time.tzinfo is None:
        raise ValueError("expected as many rewards as answers, and a time with its zone")
    return group


class RewardLog:
    """Appends a line for each group to ``path``, in a thread of its own. A fraction ``check_rate`` of the groups with images is
    logged with one comparison. ``counts`` are of groups: "written", "failed" if the file could not be written, "skipped" if
    the line would be longer than :data:`MOST_BYTES`, or the disk is too slow. The file is opened for each line, so that it may
    be moved. Raise OutputError if it cannot be written."""

    def __init__(self, path: Path, check_rate: float = 0.0) -> None:
        self._path, self._rate = path, check_rate
        self.counts = dict.fromkeys(OUTCOMES, 0)
        self._thread, self._dice = ThreadPoolExecutor(1), random.Random("reward log")
        self._waiting = 0  # bytes
        self._is_failing = False
        try:
            path.open("ab").close()
        except OSError as error:
            raise OutputError(f"{path}: cannot be written ({error.strerror}); choose a writable --reward-log") from error

    def add(self, group: Candidates, result: GroupRewards, key: str, judge_hash: str) -> None:
        """Log a group and its rewards, without the anchor beyond its responses. Call this within an event loop."""
        is_checked = self._rate > 0 and bool(group.images) and self._dice.random() < self._rate
        size = sum(map(len, (*group.responses, *group.images, *chain.from_iterable(group.response_images))))
        size += VOTE_BYTES * sum(len(match.judgment.votes) for match in result.matches if match.judgment)
        if self._waiting + size > MOST_WAITING and self._waiting:
            self.counts["skipped"] += 1
            return
        self._waiting += size
        write = partial(self._write, group, result, key, judge_hash, datetime.now(UTC), is_checked=is_checked)
        future = asyncio.get_running_loop().run_in_executor(self._thread, write)
        future.add_done_callback(partial(self._count, size))

    def _count(self, size: int, written: asyncio.Future[str]) -> None:
        self._waiting -= size
        self.counts["failed" if written.cancelled() or written.exception() else written.result()] += 1

    def _write(
        self, group: Candidates, result: GroupRewards, key: str, judge_hash: str, now: datetime, *, is_checked: bool
    ) -> str:
        """Write a line; return what to count."""
        try:
            rewarded = rewarded_group(group, result, key, judge_hash, now)
            if is_checked:
                rewarded = replace(rewarded, comparison=self._comparison(group, result))
            line = _LINE.dump_json(rewarded, exclude_defaults=True) + b"\n"
            if len(line) > MOST_BYTES and rewarded.comparison:
                line = _LINE.dump_json(replace(rewarded, comparison=None), exclude_defaults=True) + b"\n"
            if len(line) > MOST_BYTES:
                return "skipped"
            _append(self._path, line)
        except (OSError, ValueError) as error:  # a full disk, half a character
            if not self._is_failing:
                LOG.error("%s: groups are not logged: %s", self._path, error)
            self._is_failing = True
            return "failed"
        self._is_failing = False
        return "written"

    def _comparison(self, group: Candidates, result: GroupRewards) -> AnswerComparison | None:
        """Return a comparison of two texts that differ; a judge refuses others outside of groups. None without one."""
        texts = [response.strip() for response in group.responses]
        known = [
            (match.first, match.second, share)
            for match in result.matches
            if match.judgment and (share := share_in_both_orders(match.judgment)) is not None
            if texts[match.first] and texts[match.second] and texts[match.first] != texts[match.second]
        ]
        if not known:
            return None
        first, second, share = self._dice.choice(known)
        return AnswerComparison(group.pair(first, second), share)

    async def close(self) -> None:
        """Wait until all groups are written."""
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)


def rewarded_group(group: Candidates, result: GroupRewards, key: str, judge_hash: str, now: datetime) -> RewardedGroup:
    prompt = hashlib.sha256(with_criteria(group.question, group.criteria).encode("utf-8", "surrogatepass"))
    for image in group.images:
        prompt.update(hashlib.sha256(image).digest())
    return RewardedGroup(
        now,
        key,
        judge_hash,
        prompt.hexdigest()[:16],
        tuple(map(without_thinking, group.responses[: len(result.rewards)])),
        tuple(result.rewards),
        tuple(orders_agree(match.judgment) for match in result.matches if match.judgment),
    )


def _append(path: Path, line: bytes) -> None:
    """Append a line in one write, on a new line if the last one is incomplete. Raise OSError."""
    with path.open("a+b", buffering=0) as file:
        if (size := os.fstat(file.fileno()).st_size) and os.pread(file.fileno(), 1, size - 1) != b"\n":
            line = b"\n" + line
        if file.write(line) < len(line):
            raise OSError("the disk is full")


def log_lines(path: Path, *, follow: bool = False) -> Iterator[bytes]:
    """Yield the lines of a log, without holding more than one. With ``follow`` wait for more, also in the file that takes the
    place of one that was moved or emptied; without it an incomplete last line is yielded too. A line beyond
    :data:`MOST_BYTES` is yielded in pieces. Raise DataError if the file cannot be read."""
    with ExitStack() as opened:
        file = opened.enter_context(_opened(path))
        is_old = not follow  # nothing more will be written to it
        while True:
            line = file.readline(MOST_BYTES)
            if line.endswith(b"\n") or len(line) == MOST_BYTES:
                yield line
            elif not is_old:
                file.seek(-len(line), os.SEEK_CUR)
                is_old = _is_replaced(file, path)
                sleep(0 if is_old else POLL_S)
            else:
                if line:
                    yield line
                if not follow:
                    return
                opened.close()
                file, is_old = opened.enter_context(_opened(path)), False


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); expected the FILE of --reward-log") from error


def _is_replaced(file: IO[bytes], path: Path) -> bool:
    """Return whether another file has the place of one that was moved, or it was emptied."""
    try:
        now = path.stat()
    except OSError:  # not there yet
        return False
    return now.st_ino != os.fstat(file.fileno()).st_ino or now.st_size < file.tell()


@dataclass
class AnswerWindow:
    """The answers of a key since its last window, of which there were ``num_windows``, and the signs after that one, with a
    sentence each."""

    signs: PolicySigns
    run: int = 1
    num_windows: int = 0
    present: dict[str, str] = field(default_factory=dict)
    last: datetime | None = None  # time of a group
    judge_hash: str = ""
    rows: list[tuple[str, str, float | None]] = field(default_factory=list)
    agreements: list[bool] = field(default_factory=list)
    comparisons: list[AnswerComparison] = field(default_factory=list)

    def add(self, group: RewardedGroup) -> None:
        if group.judge_hash != self.judge_hash:  # another judge's metrics are not compared with this one's
            self.judge_hash, self.agreements, self.comparisons = group.judge_hash, [], []
            self.signs.forget(JUDGE_METRICS)
            self.present = {name: text for name, text in self.present.items() if TRENDS[name].metric not in JUDGE_METRICS}
        self.last = group.time
        self.rows += [(group.prompt, *row) for row in zip(group.answers, group.rewards, strict=True)]
        self.agreements += [same for same in group.orders_agree if same is not None]
        if group.comparison is not None and len(self.comparisons) < SAMPLE:
            self.comparisons.append(group.comparison)

    def take(self) -> tuple[list[tuple[str, str, float | None]], dict[str, float], list[AnswerComparison]]:
        """Begin a window; return the rows of the last one, the agreement of orders in it, and the comparisons to repeat."""
        rows, agreements, comparisons = self.rows, self.agreements, self.comparisons
        self.num_windows, self.rows, self.agreements = self.num_windows + 1, [], []
        if len(comparisons) < SAMPLE:
            comparisons = []
        else:
            self.comparisons = []
        return rows, {"judge/order_agreement": sum(agreements) / len(agreements)} if agreements else {}, comparisons


@dataclass(frozen=True)
class WindowMetrics:
    """The metrics of window ``step`` of a ``run`` of ``key`` (the first is 1), and its new signs with a sentence each."""

    key: str
    run: int
    step: int
    judge_hash: str
    metrics: Mapping[str, float]
    signs: Mapping[str, str]


class LogSigns:
    """Reads the lines of a log and keeps windows for each key, or for one ``key`` alone.

    ``pairs`` are like those that the policy is trained on: other bigrams than their answers' are novel, and ``judge``, the one
    that is served, is queried on some of them. It is also queried on logged comparisons with blank images. ``num_unreadable``
    counts lines, ``num_failed`` windows in which the judge could not be queried.
    """

    def __init__(self, pairs: Sequence[PreferencePair] = (), judge: ModelJudge | None = None, key: str | None = None) -> None:
        self._key, self._known = key, known_answers(pairs, seed=0) if pairs else None
        self._checks = None
        if judge is not None:
            num_votes = judge.config.votes or 1
            num_labelled = sum(facts.preferred is not None for facts in pair_facts(pairs))
            if 0 < num_labelled < NUM_CANARIES:
                LOG.warning(
                    "%d labelled pairs are too few for the indicator canaries, which is left out; give %d or more",
                    num_labelled,
                    NUM_CANARIES,
                )
            canaries = pairs if num_labelled >= NUM_CANARIES else ()
            self._checks = JudgeChecks(judge, sample=SAMPLE, canaries=canaries, num_canaries=NUM_CANARIES, num_votes=num_votes)
        self.windows: dict[str, AnswerWindow] = {}
        self.num_groups = self.num_unreadable = self.num_failed = self.num_signs = 0

    @property
    def summary(self) -> str:
        windows = ", ".join(f"{window.num_windows} of key {key!r}" for key, window in self.windows.items()) or "none"
        return (
            f"{self.num_groups:,} groups read, {self.num_unreadable:,} lines unreadable; windows of {WINDOW} answers: "
            f"{windows} (a sign needs {BEGINNING + LAST}), {self.num_failed} without the judge; {self.num_signs} signs"
        )

    def add(self, line: bytes) -> WindowMetrics | None:
        """Read a line; return the metrics of the window that it fills, if any."""
        if not line.strip():
            return None
        try:
            group = read_group(line)
        except ValueError as error:
            if not self.num_unreadable:
                LOG.warning("a line of the log cannot be read, and is left out: %.200s", " ".join(str(error).split()))
            self.num_unreadable += 1
            return None
        if self._key is not None and group.key != self._key:
            return None
        self.num_groups += 1
        window = self.windows.get(group.key)
        if window is None or (window.last and group.time - window.last > PAUSE):
            window = self.windows[group.key] = AnswerWindow(PolicySigns(LIMITS), window.run + 1 if window else 1)
        window.add(group)
        return self._read(group.key, window) if len(window.rows) >= WINDOW else None

    def _read(self, key: str, window: AnswerWindow) -> WindowMetrics:
        rows, agreement, comparisons = window.take()
        metrics = answer_metrics(rows, self._known) | agreement
        if self._checks is not None:
            try:
                checked = self._checks(comparisons, window.num_windows)
                metrics |= {name: metric.value for name, metric in checked.items() if isinstance(metric, Metric)}
            except RewardlabError as error:  # the answers are read without it
                self.num_failed += 1
                LOG.warning("window %d of key %r: the judge cannot be queried: %s", window.num_windows, key, error)
        seen = {**window.present, **window.signs.of(metrics)}
        new = {name: text for name, text in seen.items() if text and name not in window.present}
        window.present = {name: text for name, text in seen.items() if text}
        self.num_signs += len(new)
        return WindowMetrics(key, window.run, window.num_windows, window.judge_hash, metrics, new)
