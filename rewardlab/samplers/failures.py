"""When to stop asking an endpoint: requests that fail one after another say that it is down, or refuses them all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from rewardlab.errors import EndpointError
from rewardlab.types import Completion

GIVE_UP_AFTER = 20  # failed requests in a row, each already retried where that could help
# A refusal with one of these statuses may be for what is in the request, which says nothing of the next one.
OF_CONTENT = (400, 403, 413, 415, 422)
WITHOUT_TEXT = "no text in the answer"  # as a content filter leaves it
MAX_FAILED = 0.02  # share of the requests of a run that may fail before its figures say nothing
GIVE_UP_AFTER_REFUSALS = 50  # of that kind in a row, before anything was answered
_OF_CONTENT = re.compile(rf"HTTP ({'|'.join(map(str, OF_CONTENT))})\b|{WITHOUT_TEXT}")


# What can be done about a refusal by an address that a flag names, by its status.
_CURES = {
    ("HTTP 401", "HTTP 403"): "the key is read from OPENAI_API_KEY, or from the variable that api_key_env names",
    ("HTTP 404",): "model and address are those of --judge openai:MODEL@URL, and most addresses end in /v1",
    ("HTTP 400", "HTTP 422"): "reasoning_effort, body and max_tokens_field set fields of a request",
}


class FailureStreak:
    """Counts failed requests in a row; an answer begins the count anew.

    ``name`` is who is asked, for the sentence; ``what`` says which requests they are, where there are others, and ``cure`` what
    else may be done. ``answered``: whether it has answered before, in an earlier part of the run.
    """

    def __init__(self, name: str, *, answered: bool = False, what: str = "", cure: str = "") -> None:
        self._name, self._answered, self._what, self._cure = name, answered, what, cure
        self._number = self._of_content = 0

    def take(self, completion: Completion) -> None:
        """Count a completion. Raise EndpointError, with the last error in it, at :data:`GIVE_UP_AFTER` failures in a row.

        A request that is refused for what may be in it counts only before anything was answered, and
        :data:`GIVE_UP_AFTER_REFUSALS` of those are needed: a set may begin with what a provider will not judge.
        """
        if not completion.failed:
            self.note_answer()
            return
        if _OF_CONTENT.match(completion.error) is None:
            self._number += 1
        elif not self._answered:
            self._of_content += 1
        if self._number >= GIVE_UP_AFTER or self._of_content >= GIVE_UP_AFTER_REFUSALS:
            number, cure = self._number + self._of_content, refusal_cure(self._name, completion.error)
            raise EndpointError(
                f"{self._name}: {number} requests{self._what} in a row failed, the last with {completion.error!r}{cure}; "
                f"nothing is lost: fix the cause and run the same command again{self._cure}"
            )

    def note_answer(self) -> None:
        """Begin the count anew: there is an answer, of this run or an earlier part of it."""
        self._answered, self._number, self._of_content = True, 0, 0


def refusal_cure(judge: str, error: str) -> str:
    """Return, in brackets, which flag or variable a refusal of a judge ``openai:...`` is about; "" where none is known."""
    if not judge.startswith("openai:"):
        return ""
    return next((f" ({cure})" for statuses, cure in _CURES.items() if error.startswith(statuses)), "")


def errors_in_words(completions: Iterable[Completion], most: int = 3) -> str:
    """Return the commonest errors of the failed completions in the server's words, with counts; "" where none failed."""
    counts = Counter(completion.error or completion.finish.value for completion in completions if completion.failed)
    named = [f"{error!r} ({number:,})" for error, number in counts.most_common(most)]
    return ", ".join([*named, *([f"{len(counts) - most:,} other errors"] if len(counts) > most else [])])


def failure_sentence(completions: Sequence[Completion], most: float, what: str = "votes") -> str:
    """Return why a run failed, where more than the share ``most`` (0..1) of its completions did; "" where it did not."""
    failed = sum(completion.failed for completion in completions)
    if failed <= most * len(completions):
        return ""
    share = f"{100 * failed / len(completions):.1f} %, more than the {100 * most:g} % of --max-failed"
    return f"{failed:,} of {len(completions):,} {what} failed at the endpoint ({share}): {errors_in_words(completions)}"
