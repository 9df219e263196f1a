"""Signs that the policies which a server pays please its judge rather than get better, read from the answers that they send.

The answers of each key are read :data:`WINDOW` at a time, as `rewardlab policy` reads its rollout batches, and compared with
those at the beginning: of the server, or after a pause of an hour. Of every so many comparisons one is asked again with a blank
picture, and a labelled pair is asked beside it. What is found is told; it changes no reward.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi.concurrency import run_in_threadpool

from rewardlab.config import SignsConfig
from rewardlab.data.other_images import with_blank_images
from rewardlab.data.pair_table import pair_facts
from rewardlab.errors import DataError
from rewardlab.judging.group_rewards import GroupRewards, JudgedMatch
from rewardlab.rewards.pairwise import without_thinking
from rewardlab.rewards.policy_signs.answers import KnownWordPairs, answer_metrics, known_answers
from rewardlab.rewards.policy_signs.checks import drawn_canaries, orders_agree, share_in_both_orders
from rewardlab.rewards.policy_signs.trends import BEGINNING, PolicySigns
from rewardlab.serving.judge_versions import JudgeVersion, JudgeVersions
from rewardlab.serving.request_context import REQUEST, TENANT
from rewardlab.serving.voting import VoteCollector, VotingOptions
from rewardlab.types import Candidates, Judgment, PreferencePair

LOG = logging.getLogger(__name__)
WINDOW = 512  # answers that are read at a time
MOST_CHARS = 8_000_000  # of answers that are held until then
PAUSE_S = 3600.0  # without an answer of a key: what comes then is another run
CHECKS = "(checks)"  # the tenant of what the server itself asks; no key has such a name
LAST_PRIORITY = 1000
NUM_CANARIES = 32
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
    """The answers of one key: those since the last line, and what was read of the lines before."""

    trends: PolicySigns
    seen_at: float
    rows: list[Row] = field(default_factory=list)
    num_chars: int = 0
    num_groups: int = 0
    agreements: list[bool] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    canaries: list[bool] = field(default_factory=list)
    first: dict[str, list[float]] = field(default_factory=dict)  # of each measure its first values
    last: dict[str, float] = field(default_factory=dict)
    present: dict[str, str] = field(default_factory=dict)
    due: float = 0.0
    is_checking: bool = False

    def take(self) -> tuple[list[Row], dict[str, float]]:
        """Return the answers since the last line, and what the judge said of them; the next line begins."""
        means = {
            name: sum(values) / len(values)
            for name, values in (
                ("judge/order_agreement", self.agreements),
                ("judge/blank_gap", self.gaps),
                ("judge/canaries", self.canaries),
            )
            if values
        }
        rows, self.rows, self.num_chars, self.agreements, self.gaps, self.canaries = self.rows, [], 0, [], [], []
        return rows, means

    def remember(self, line: dict[str, float]) -> None:
        self.last |= line
        for name, value in line.items():
            if len(values := self.first.setdefault(name, [])) < BEGINNING:
                values.append(value)

    def measures(self) -> dict[str, tuple[float, float]]:
        """Return the mean of each measure at the beginning, and its last value."""
        return {name: (sum(values) / len(values), self.last[name]) for name, values in self.first.items()}


class AnswerSigns:
    """Watches the groups of all keys. ``num_checks`` counts what was asked besides: "answered", and "failed" where the queue
    was full or the judge gave nothing to read."""

    def __init__(self, rules: SignRules, collector: VoteCollector, versions: JudgeVersions) -> None:
        self._rules, self._collector, self._versions = rules, collector, versions
        self._watched: dict[str, WatchedAnswers] = {}
        self._tasks = set[asyncio.Task[None]]()
        self._dice = random.Random("signs")
        self._next_canary = 0
        self.num_checks = Counter[str]()

    def present(self, tenant: str) -> dict[str, str]:
        """Return the signs of a key's last lines, with a sentence each."""
        watched = self._watched.get(tenant)
        return dict(watched.present) if watched else {}

    def measures(self, tenant: str) -> dict[str, tuple[float, float]]:
        """Return each measure of a key's answers at the beginning and now."""
        watched = self._watched.get(tenant)
        return watched.measures() if watched else {}

    @property
    def tenants(self) -> list[str]:
        return list(self._watched)

    def add(self, group: Candidates, result: GroupRewards, options: VotingOptions) -> None:
        """Take in a group of the key that asks, and what its responses earned; an anchor beyond them is left out."""
        now, tenant = asyncio.get_running_loop().time(), TENANT.get()
        watched = self._watched.get(tenant)
        if watched is None or now - watched.seen_at > PAUSE_S:
            watched = self._watched[tenant] = WatchedAnswers(PolicySigns(self._rules.limits), now)
        watched.seen_at = now
        watched.num_groups += 1
        answers = [without_thinking(response) for response in group.responses[: len(result.rewards)]]
        prompt = str(watched.num_groups)  # a question may be asked of many pictures
        watched.rows += [(prompt, answer, reward) for answer, reward in zip(answers, result.rewards, strict=True)]
        watched.num_chars += sum(map(len, answers))
        judged = [match for match in result.matches if match.judgment is not None]
        watched.agreements += [same for match in judged if (same := orders_agree(_judgment(match))) is not None]
        watched.due = min(1.0, watched.due + self._rules.rate * len(judged))
        if watched.due >= 1 and judged and not watched.is_checking:
            watched.due, watched.is_checking = 0.0, True
            match = self._dice.choice(judged)
            self._begin_check(watched, group.pair(match.first, match.second), _judgment(match), options)
        if len(watched.rows) >= WINDOW or watched.num_chars >= MOST_CHARS:
            self._begin(self._read(tenant, watched, *watched.take()))
        if (account := REQUEST.get()) is not None:
            account.signs |= watched.present.keys()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin work that nobody waits for, in a context of its own: it is on no request's account."""
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, tenant: str, watched: WatchedAnswers, rows: list[Row], means: dict[str, float]) -> None:
        line = await run_in_threadpool(answer_metrics, rows, self._rules.known) | means
        watched.remember(line)
        present = {name: sentence for name, sentence in (watched.present | watched.trends.of(line)).items() if sentence}
        for name in present.keys() - watched.present.keys():
            LOG.warning("the answers of key %r: %s: %s", tenant, name, present[name])
        watched.present = present

    def _begin_check(self, watched: WatchedAnswers, pair: PreferencePair, judgment: Judgment, options: VotingOptions) -> None:
        kept, version = ExitStack(), self._versions.current
        kept.enter_context(self._versions.held(version))  # until the check has begun
        options = replace(options, priority=LAST_PRIORITY, deadline=None, waits_for_room=False)
        self._begin(self._check(watched, pair, judgment, options, version, kept))

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
        outcome = "answered"
        try:
            with kept, self._versions.bound(version):
                before = share_in_both_orders(judgment)
                if pair.images and before is not None:
                    (without,) = await run_in_threadpool(with_blank_images, [pair])
                    blank = await self._collector.collect(without, options)
                    if (now := share_in_both_orders(blank)) is None:
                        outcome = "failed"
                    else:
                        watched.gaps.append(abs(before - now))
                if self._rules.canaries:
                    canary = self._rules.canaries[self._next_canary % len(self._rules.canaries)]
                    self._next_canary += 1
                    answer = await self._collector.collect(replace(canary, preferred=None), options)
                    watched.canaries += [vote.winner == canary.preferred for vote in answer.votes]
        except Exception as error:  # the boundary: a check that fails costs no request anything, and is counted
            outcome = "failed"
            LOG.debug("a check of the signs failed: %s", error)
        finally:
            self.num_checks[outcome] += 1
            watched.is_checking = False


def _judgment(match: JudgedMatch) -> Judgment:
    assert match.judgment is not None
    return match.judgment
