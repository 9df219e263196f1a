"""Signs that the policies that a server rewards game its judge, read from their answers.

The answers of each key are read in windows of :data:`WINDOW`, as `rewardlab policy` reads its rollout batches, and compared
with the first windows: since the server started, or since a pause of an hour. A fraction of the comparisons is repeated with a
blank image, each beside a labelled pair. Signs are reported for an hour; they change no reward.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi.concurrency import run_in_threadpool

from rewardlab.config import SignsConfig
from rewardlab.data.pair_table import pair_facts
from rewardlab.data.rows import with_blank_images
from rewardlab.errors import DataError, InputError
from rewardlab.judging.group_rewards import GroupRewards, JudgedMatch
from rewardlab.rewards.pairwise import without_thinking
from rewardlab.rewards.policy_signs import (
    BEGINNING,
    TRENDS,
    KnownWordPairs,
    PolicySigns,
    answer_metrics,
    drawn_canaries,
    known_answers,
    orders_agree,
    share_in_both_orders,
)
from rewardlab.serving.errors import DeadlineExceededError, OverloadedError
from rewardlab.serving.judge_versions import JudgeVersion, JudgeVersions
from rewardlab.serving.request_record import CHECKS, REQUEST, RequestRecord, current_request, tenant_of_request
from rewardlab.serving.voting import VoteCollector, VotingOptions
from rewardlab.types import Candidates, Judgment, PreferencePair
from rewardlab.verdicts.votes import VALID

LOG = logging.getLogger(__name__)
WINDOW = 512  # answers that are read at a time
LEAST_WINDOW = 128  # answers; a mean of fewer would differ by chance
MOST_CHARS = 8_000_000  # of unread answers of all keys; beyond it the largest window is read early
MOST_READING = 8  # unread windows of a key
PAUSE_S = 3600.0  # without an answer of a key, after which a new run begins; also how long a sign is reported
NUM_CANARIES = 32  # all are judged before their mean is read: a few would look like another judge
LEAST_GAPS = 16  # blank-image gaps in a mean
JUDGE_MEASURES = ("judge/order_agreement", "judge/blank_gap", "judge/canaries")
Row = tuple[str, str, float | None]


@dataclass(frozen=True)
class SignRules:
    """``known`` are the bigrams of the training answers, others count as novel; ``canaries`` are labelled pairs that are judged
    now and then; a fraction ``rate`` of the comparisons of groups is repeated with blank images. ``limits`` define signs."""

    known: KnownWordPairs | None = None
    canaries: Sequence[PreferencePair] = ()
    rate: float = 0.0
    limits: SignsConfig = field(default_factory=lambda: SignsConfig.model_validate({}))

    @classmethod
    def of(cls, pairs: Sequence[PreferencePair] | None, rate: float) -> SignRules:
        """Return rules by labelled pairs like those that policies are trained on, without pairs rules without known bigrams and
        canaries. Raise DataError for a ``rate`` with pairs that have no label."""
        if pairs is None:
            return cls(rate=rate)
        if rate and all(facts.preferred is None for facts in pair_facts(pairs)):
            raise DataError("the pairs of --signs-data have no label; --limit check_rate needs labelled pairs")
        return cls(known_answers(pairs, seed=0), drawn_canaries(pairs, NUM_CANARIES, seed=0) if rate else (), rate)


@dataclass
class WatchedAnswers:
    """The answers of one key since its last window, and the measures of earlier windows. Times are those of time.monotonic;
    the measures of the judge are of its ``version``."""

    trends: PolicySigns
    seen_at: float
    version: int
    rows: list[Row] = field(default_factory=list)
    num_chars: int = 0
    num_groups: int = 0
    agreements: list[bool] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    next_canary: int = 0
    canaries: list[bool] = field(default_factory=list)  # correctness of the votes since the first canary
    first: dict[str, list[float]] = field(default_factory=dict)  # measure -> its first values
    last: dict[str, float] = field(default_factory=dict)
    signs: dict[str, tuple[str, float]] = field(default_factory=dict)  # name -> sentence, and when it was seen last
    due: float = 0.0  # number of checks to make
    is_checking: bool = False
    num_reading: int = 0  # windows taken but not read yet

    def drop(self) -> None:
        self.rows, self.num_chars = [], 0

    def take(self, num_canaries: int) -> tuple[list[Row], dict[str, float]]:
        """Return the answers since the last window, and the means of measures with enough values; begin a window."""
        means = {}
        if self.agreements:
            means["judge/order_agreement"] = _mean(self.agreements)
            self.agreements = []
        if len(self.gaps) >= LEAST_GAPS:
            means["judge/blank_gap"] = _mean(self.gaps)
            self.gaps = []
        if self.next_canary >= num_canaries:
            if len(self.canaries) >= num_canaries > 0:  # half of all votes at least
                means["judge/canaries"] = _mean(self.canaries)
            self.next_canary, self.canaries = 0, []
        rows = self.rows
        self.drop()
        return rows, means

    def remember(self, line: dict[str, float], now: float) -> list[str]:
        """Add the measures of a window; return the sentences of new signs."""
        self.signs = {name: sign for name, sign in self.signs.items() if now - sign[1] <= PAUSE_S}
        self.last |= line
        for name, value in line.items():
            if len(values := self.first.setdefault(name, [])) < BEGINNING:
                values.append(value)
        new = []
        for name, sentence in self.trends.of(line).items():
            if sentence and name not in self.signs:
                new.append(f"{name}: {sentence}")
            if sentence:
                self.signs[name] = (sentence, now)
            else:
                self.signs.pop(name, None)
        return new

    def begin_judge(self, version: int) -> None:
        """Restart the measures of the judge for another version."""
        self.version, self.next_canary = version, 0
        self.agreements, self.gaps, self.canaries = [], [], []
        self.trends.forget(JUDGE_MEASURES)
        for name in JUDGE_MEASURES:
            self.first.pop(name, None)
            self.last.pop(name, None)
        self.signs = {name: sign for name, sign in self.signs.items() if TRENDS[name].metric not in JUDGE_MEASURES}


class AnswerSigns:
    """Watches the groups of all keys. ``num_checks`` counts repeated comparisons: "answered", "failed" without a verdict, and
    "skipped" if requests left no room. ``num_lines`` counts windows: "read", "failed", and "skipped" if too many waited to be
    read, or held too few answers because these are long."""

    def __init__(self, rules: SignRules, collector: VoteCollector, versions: JudgeVersions) -> None:
        self._rules, self._collector, self._versions = rules, collector, versions
        self._watched: dict[str, WatchedAnswers] = {}
        self._tasks = set[asyncio.Task[None]]()
        self._dice = random.Random("signs")
        self._canaries = list(rules.canaries)
        self._one_reader = asyncio.Lock()  # reading is work for a core; media need the others
        self._num_chars, self._chars_reading = 0, 0  # that are held, and that wait to be read
        self.num_checks, self.num_lines = Counter[str](), Counter[str]()

    def _of(self, tenant: str) -> WatchedAnswers | None:
        """Return the record of a key that has sent answers within the last hour."""
        watched = self._watched.get(tenant)
        return watched if watched and time.monotonic() - watched.seen_at <= PAUSE_S else None

    def present(self, tenant: str) -> dict[str, str]:
        """Return the current signs of a key, with a sentence each."""
        watched, now = self._of(tenant), time.monotonic()
        signs = watched.signs if watched else {}
        return {name: sentence for name, (sentence, seen_at) in signs.items() if now - seen_at <= PAUSE_S}

    def measures(self, tenant: str) -> dict[str, tuple[float, float]]:
        """Return (mean of the first windows, last value) of each measure of a key's answers."""
        watched = self._of(tenant)
        first = watched.first if watched else {}
        return {name: (_mean(values), watched.last[name]) for name, values in first.items()} if watched else {}

    @property
    def tenants(self) -> list[str]:
        return [tenant for tenant in self._watched if self._of(tenant)]

    def add(self, group: Candidates, result: GroupRewards, options: VotingOptions) -> None:
        """Add a group of the current key and its rewards, without the anchor beyond its responses."""
        tenant, version = tenant_of_request(), self._versions.current
        watched = self._of(tenant) or self._begin_watching(tenant, version)
        watched.seen_at = time.monotonic()
        watched.num_groups += 1
        if version.number > watched.version:
            watched.begin_judge(version.number)
        self._hold(watched, group, result)
        judged = [match for match in result.matches if match.judgment is not None]
        if version.number == watched.version:
            watched.agreements += [same for match in judged if (same := orders_agree(_judgment(match))) is not None]
        if len(watched.rows) >= WINDOW:
            self._read_window(tenant)
        if self._num_chars >= MOST_CHARS:
            self._forget_silent()
        if self._num_chars >= MOST_CHARS:
            self._read_window(max(self._watched, key=lambda name: self._watched[name].num_chars))
        if version.number == watched.version:
            self._check_some(watched, group, judged, options, version)
        current_request().signs.update(self.present(tenant))

    def _begin_watching(self, tenant: str, version: JudgeVersion) -> WatchedAnswers:
        self._forget_silent()
        watched = WatchedAnswers(PolicySigns(self._rules.limits), time.monotonic(), version.number)
        self._watched[tenant] = watched
        return watched

    def _forget_silent(self) -> None:
        for name in [name for name in self._watched if self._of(name) is None]:
            self._num_chars -= self._watched.pop(name).num_chars

    def _hold(self, watched: WatchedAnswers, group: Candidates, result: GroupRewards) -> None:
        answers = [without_thinking(response) for response in group.responses[: len(result.rewards)]]
        prompt = str(watched.num_groups)  # a question may be asked of many pictures
        watched.rows += [(prompt, answer, reward) for answer, reward in zip(answers, result.rewards, strict=True)]
        num_chars = sum(map(len, answers))
        watched.num_chars += num_chars
        self._num_chars += num_chars

    def _read_window(self, tenant: str) -> None:
        watched = self._watched[tenant]
        num_chars = watched.num_chars
        self._num_chars -= num_chars
        # They come faster than they are read, or are too few.
        is_late = watched.num_reading >= MOST_READING or self._chars_reading >= MOST_CHARS
        if is_late or len(watched.rows) < LEAST_WINDOW:
            watched.drop()
            self.num_lines["skipped"] += 1
            return
        self._chars_reading += num_chars
        rows, means = watched.take(len(self._canaries))
        watched.num_reading += 1
        self._begin(self._read(tenant, watched, rows, means, watched.version, num_chars))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start background work, in a context of its own so that no request is charged for it."""
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(
        self,
        tenant: str,
        watched: WatchedAnswers,
        rows: list[Row],
        means: dict[str, float],
        version: int,
        num_chars: int,
    ) -> None:
        outcome = "failed"
        try:
            async with self._one_reader:  # windows keep their order
                line = await run_in_threadpool(answer_metrics, rows, self._rules.known)
            line |= means if version == watched.version else {}
            for sentence in watched.remember(line, time.monotonic()):
                LOG.warning("the answers of key %r: %s", tenant, sentence)
            outcome = "read"
        except Exception:  # the boundary: an unreadable window affects no request, and is counted
            LOG.exception("answers of key %r could not be read for signs", tenant)
        finally:
            self._chars_reading -= num_chars
            self.num_lines[outcome] += 1
            watched.num_reading -= 1

    def _check_some(
        self,
        watched: WatchedAnswers,
        group: Candidates,
        judged: Sequence[JudgedMatch],
        options: VotingOptions,
        version: JudgeVersion,
    ) -> None:
        """Start a check if one is due and possible, and none is running."""
        if not judged or not (group.images or self._canaries):
            return
        watched.due = min(2.0, watched.due + self._rules.rate * len(judged))
        if watched.due < 1 or watched.is_checking:
            return
        watched.due, watched.is_checking = watched.due - 1, True
        match = self._dice.choice(judged)
        kept = ExitStack()
        kept.enter_context(self._versions.held(version))  # until the check starts
        options = replace(options, deadline=None, waits_for_room=False, is_new_draw=True)
        pair = group.pair(match.first, match.second)
        self._begin(self._check(watched, pair, _judgment(match), options, version, kept))

    async def _check(
        self,
        watched: WatchedAnswers,
        pair: PreferencePair,
        judgment: Judgment,
        options: VotingOptions,
        version: JudgeVersion,
        kept: ExitStack,
    ) -> None:
        """Repeat a comparison with blank images, and judge the next canary, after all requests."""
        REQUEST.set(RequestRecord(tenant=CHECKS))
        outcome = "failed"
        try:
            with kept, self._versions.bound(version):
                gap = await self._blank_gap(pair, judgment, options)
                if version.number == watched.version:
                    watched.gaps += gap or []
                votes = await self._next_canary(watched, options, version)
            if gap is not None and votes is not None:
                outcome = "answered" if gap or votes else ""
        except (OverloadedError, DeadlineExceededError):
            outcome = "skipped"
        except Exception as error:  # the boundary: a failed check affects no request, and is counted
            LOG.debug("a check of the signs failed: %s", error)
        finally:
            if outcome:  # something was judged
                self.num_checks[outcome] += 1
            watched.is_checking = False

    async def _blank_gap(self, pair: PreferencePair, judgment: Judgment, options: VotingOptions) -> list[float] | None:
        """Return the change of the judge's share without the image: [] without an image or a former verdict, None without a new
        one."""
        before = share_in_both_orders(judgment)
        if not pair.images or before is None:
            return []
        (without,) = await run_in_threadpool(with_blank_images, [pair])
        now = share_in_both_orders(await self._collector.collect(without, options))
        return None if now is None else [abs(before - now)]

    async def _next_canary(self, watched: WatchedAnswers, options: VotingOptions, version: JudgeVersion) -> list[bool] | None:
        """Return which votes on the next canary are right, and keep them: [] without a canary left in this window, None if an
        order has no valid vote, which is a failure and not an error of the judge. A canary that the judge refuses, such as one
        that is too long, is dropped."""
        if version.number != watched.version or watched.next_canary >= len(self._canaries):
            return []
        canary = self._canaries[watched.next_canary]
        try:
            answer = await self._collector.collect(replace(canary, preferred=None), options)
        except InputError as error:
            if canary in self._canaries:  # another key's check may have dropped it meanwhile
                self._canaries.remove(canary)
                LOG.warning("labelled pair %r is dropped from the checks: %s", canary.pair_id, error)
            return []
        if version.number != watched.version:  # a new judge starts with the first canary
            return []
        watched.next_canary += 1
        if share_in_both_orders(answer) is None:
            return None
        votes = [vote.winner == canary.preferred for vote in answer.votes if vote.verdict.status in VALID]
        watched.canaries += votes
        return votes


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _judgment(match: JudgedMatch) -> Judgment:
    assert match.judgment is not None
    return match.judgment
