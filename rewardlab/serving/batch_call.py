"""One batch on an engine: a call that fails is tried again in halves, so that one bad request fails alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rewardlab.errors import InputError
from rewardlab.judging.judge import Judge
from rewardlab.serving.jobs import Job, JudgeEngine


class BatchCall:
    """The calls of an engine for one batch, from a thread of their own. Set ``is_abandoned`` when nobody waits for the results
    any more: a call that runs cannot be stopped, but no other one follows it."""

    def __init__(self, judge: JudgeEngine, probability_judge: Judge) -> None:
        self._judge, self._probability_judge = judge, probability_judge
        self.is_abandoned = False

    def run(self, jobs: Sequence[Job]) -> list[Any]:
        """Return a result or an exception for each job, tried in halves until what the engine fails at is alone; not where
        there is no engine to try it with."""
        try:
            return jobs[0].run(jobs, self._judge, self._probability_judge)
        except Exception as error:  # the boundary: an engine may fail in any way, and each request gets the error
            if len(jobs) == 1 or self.is_abandoned or not (isinstance(error, InputError) or self._is_there()):
                return [error] * len(jobs)
            reason = error
        half, results = len(jobs) // 2, list[Any]()
        for part in (jobs[:half], jobs[half:]):
            results += [reason] * len(part) if self.is_abandoned else self.run(part)
        return results

    def _is_there(self) -> bool:
        try:
            self._judge.check()
        except Exception:  # the boundary: it may be down in any way
            return False
        return True
