"""Signs that the policies which a server pays please its judge rather than get better, read from the answers that they send.

The answers of each key are read :data:`WINDOW` at a time, as `rewardlab policy` reads its rollout batches, and compared with
those at the beginning: of the server, or after a pause of an hour. Of every so many comparisons one is asked again with a blank
picture, and a labelled pair is asked beside it. What is found is told for an hour; it changes no reward.
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
from rewardlab.rewards.policy_signs.answers import KnownWordPairs, answer_metrics, known_answers
from rewardlab.rewards.policy_signs.checks import drawn_canaries, orders_agree, share_in_both_orders
from rewardlab.rewards.policy_signs.trends import BEGINNING, TRENDS, PolicySigns
from rewardlab.serving.errors import DeadlineExceededError, OverloadedError
from rewardlab.serving.judge_versions import JudgeVersion, JudgeVersions
from rewardlab.serving.request_context import CHECKS, TENANT
from rewardlab.serving.request_log import record_signs
from rewardlab.serving.voting import VoteCollector, VotingOptions
from rewardlab.types import Candidates, Judgment, PreferencePair
from rewardlab.verdicts.votes import VALID

LOG = logging.getLogger(__name__)
WINDOW = 512  # answers that are read at a time
LEAST_WINDOW = 128  # a mean of fewer would differ from others by chance
MOST_CHARS = 8_000_000  # of answers that are held for that, of all keys: then those of the key that has most are read early
MOST_READING = 8  # windows of a key that wait to be read
PAUSE_S = 3600.0  # without an answer of a key: what comes then is another run; and for so long a sign is told
NUM_CANARIES = 32  # all of them are asked before their mean is read: a few would look like another judge
LEAST_GAPS = 16  # of a mean
JUDGE_MEASURES = ("judge/order_agreement", "judge/blank_gap", "judge/canaries")
Row = tuple[str, str, float | None]


@dataclass(frozen=True)
class SignRules:
    """``known`` are the word pairs of answers that are no news, ``canaries`` labelled pairs that are asked now and then; of the
    comparisons of groups a share of ``rate`` (0 to 1) is asked again with blank pictures. ``limits`` say what is a sign."""

    known: KnownWordPairs | None = None
    canaries: Sequence[PreferencePair] = ()
    rate: float = 0.0
    limits: SignsConfig = field(default_factory=lambda: SignsConfig.model_validate({}))

    @classmethod
    def of(cls, pairs: Sequence[PreferencePair] | None, rate: float) -> SignRules:
        """Return rules by labelled pairs like those that policies are trained on; without pairs nothing is known to be no news,
        and there are no canaries. Raise DataError for pairs of which none is labelled, where canaries are to be asked."""
        if pairs is None:
            return cls(rate=rate)
        if rate and all(facts.preferred is None for facts in pair_facts(pairs)):
            raise DataError("the pairs of --signs-data have no label, and a share of --check-rate is asked of labelled ones")
        return cls(known_answers(pairs, seed=0), drawn_canaries(pairs, NUM_CANARIES, seed=0) if rate else (), rate)


@dataclass
class WatchedAnswers:
    """The answers of one key since the last line, and what was read of the lines before. Times are those of time.monotonic;
    ``version`` is the number of the judge that the measures of the judge are of."""

    trends: PolicySigns
    seen_at: float
    version: int
    rows: list[Row] = field(default_factory=list)
    num_chars: int = 0
    num_groups: int = 0
    agreements: list[bool] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    next_canary: int = 0
    canaries: list[bool] = field(default_factory=list)  # votes on those that were asked since the first one
    first: dict[str, list[float]] = field(default_factory=dict)  # of each measure its first values
    last: dict[str, float] = field(default_factory=dict)
    signs: dict[str, tuple[str, float]] = field(default_factory=dict)  # sentence, and when it was seen last
    due: float = 0.0  # checks
    is_checking: bool = False
    num_reading: int = 0  # windows that were taken and are not read yet

    def drop(self) -> None:
        """Leave out the answers since the last line; what the judge said stays."""
        self.rows, self.num_chars = [], 0

    def take(self, num_canaries: int) -> tuple[list[Row], dict[str, float]]:
        """Return the answers since the last line, and what the judge said of them and of checks, as far as there is enough of
        each; the next line begins."""
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
        """Add a line; return the sentences of signs that are new."""
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
        """Begin anew what is measured of the judge: it is another one."""
        self.version, self.next_canary = version, 0
        self.agreements, self.gaps, self.canaries = [], [], []
        self.trends.forget(JUDGE_MEASURES)
        for name in JUDGE_MEASURES:
            self.first.pop(name, None)
            self.last.pop(name, None)
        self.signs = {name: sign for name, sign in self.signs.items() if TRENDS[name].metric not in JUDGE_MEASURES}


class AnswerSigns:
    """Watches the groups of all keys. ``num_checks`` counts what was asked besides: "answered", "failed" where the judge gave
    nothing to read, and "skipped" where requests left no room. ``num_lines`` counts windows of answers: "read", "failed", and
    "skipped" where too many before were still to be read, or the answers are so long that too few are held."""

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
        """Return what is known of a key that has sent answers within the last hour."""
        watched = self._watched.get(tenant)
        return watched if watched and time.monotonic() - watched.seen_at <= PAUSE_S else None

    def present(self, tenant: str) -> dict[str, str]:
        """Return the signs of a key's last lines, with a sentence each."""
        watched, now = self._of(tenant), time.monotonic()
        signs = watched.signs if watched else {}
        return {name: sentence for name, (sentence, seen_at) in signs.items() if now - seen_at <= PAUSE_S}

    def measures(self, tenant: str) -> dict[str, tuple[float, float]]:
        """Return of each measure of a key's answers the mean at the beginning, and the last value."""
        watched = self._of(tenant)
        first = watched.first if watched else {}
        return {name: (_mean(values), watched.last[name]) for name, values in first.items()} if watched else {}

    @property
    def tenants(self) -> list[str]:
        return [tenant for tenant in self._watched if self._of(tenant)]

    def add(self, group: Candidates, result: GroupRewards, options: VotingOptions) -> None:
        """Take in a group of the key that asks, and what its responses earned; an anchor beyond them is left out."""
        tenant, version = TENANT.get(), self._versions.current
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
        record_signs(self.present(tenant))

    def _begin_watching(self, tenant: str, version: JudgeVersion) -> WatchedAnswers:
        """Begin with a key."""
        self._forget_silent()
        watched = WatchedAnswers(PolicySigns(self._rules.limits), time.monotonic(), version.number)
        self._watched[tenant] = watched
        return watched

    def _forget_silent(self) -> None:
        """Forget the keys of which nothing was heard for long."""
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
        """Begin work that nobody waits for, in a context of its own: it is on no request's account."""
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
        """Read a window; ``means`` are of that ``version`` of the judge."""
        outcome = "failed"
        try:
            async with self._one_reader:  # who comes first is first: lines keep their order
                line = await run_in_threadpool(answer_metrics, rows, self._rules.known)
            line |= means if version == watched.version else {}
            for sentence in watched.remember(line, time.monotonic()):
                LOG.warning("the answers of key %r: %s", tenant, sentence)
            outcome = "read"
        except Exception:  # the boundary: what cannot be read costs no request anything, and is counted
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
        """Begin a check where one is due, there is something to ask, and none is under way."""
        if not judged or not (group.images or self._canaries):
            return
        watched.due = min(2.0, watched.due + self._rules.rate * len(judged))
        if watched.due < 1 or watched.is_checking:
            return
        watched.due, watched.is_checking = watched.due - 1, True
        match = self._dice.choice(judged)
        kept = ExitStack()
        kept.enter_context(self._versions.held(version))  # until the check has begun
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
        """Ask the judge of a comparison with blank pictures, and of the next canary; after all that requests ask."""
        TENANT.set(CHECKS)
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
        except Exception as error:  # the boundary: a check that fails costs no request anything, and is counted
            LOG.debug("a check of the signs failed: %s", error)
        finally:
            if outcome:  # something was asked
                self.num_checks[outcome] += 1
            watched.is_checking = False

    async def _blank_gap(self, pair: PreferencePair, judgment: Judgment, options: VotingOptions) -> list[float] | None:
        """Return how far off the judge's share is without the picture; nothing where there is no picture, or was no verdict,
        and None where there is none now."""
        before = share_in_both_orders(judgment)
        if not pair.images or before is None:
            return []
        (without,) = await run_in_threadpool(with_blank_images, [pair])
        now = share_in_both_orders(await self._collector.collect(without, options))
        return None if now is None else [abs(before - now)]

    async def _next_canary(self, watched: WatchedAnswers, options: VotingOptions, version: JudgeVersion) -> list[bool] | None:
        """Return which votes on the next canary are right, and keep them; none where there are no more until the next line, and
        None where an order has no vote that can be read: without a verdict a judge is not wrong, but failing. One that was not
        asked is the next one still; one that the judge cannot be asked, such as one that is too long for it, is left out from
        then on."""
        if version.number != watched.version or watched.next_canary >= len(self._canaries):
            return []
        canary = self._canaries[watched.next_canary]
        try:
            answer = await self._collector.collect(replace(canary, preferred=None), options)
        except InputError as error:
            if canary in self._canaries:  # else another key's check has left it out meanwhile
                self._canaries.remove(canary)
                LOG.warning("pair %r of the signs' data is not asked any more: %s", canary.pair_id, error)
            return []
        if version.number != watched.version:  # another judge serves: its own begin with the first one
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
