"""What was asked, what came back, what it cost: the single truth of a distillation.

Every request is written before it is sent and again when it is answered. The next run asks only what has no answer: what
was in flight at a kill, and what had failed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from rewardlab.data.append_log import AppendLog
from rewardlab.errors import DataError
from rewardlab.types import Completion, FinishReason


@dataclass(frozen=True)
class Answer:
    """The part of a completion that the journal keeps."""

    text: str
    finish: str
    num_tokens: int
    num_prompt_tokens: int
    error: str

    @staticmethod
    def of(completion: Completion) -> Answer:
        c = completion
        return Answer(c.text, c.finish.value, c.num_tokens, c.num_prompt_tokens, c.error)

    def completion(self) -> Completion:
        return Completion(self.text, FinishReason(self.finish), self.num_tokens, self.num_prompt_tokens, error=self.error)

    @property
    def failed(self) -> bool:
        return self.finish in (FinishReason.ERROR, FinishReason.TIMEOUT)


class Journal:
    """The journal at ``path`` of the run that ``identity`` describes; raises what :class:`AppendLog` raises."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path = path
        self.answers: dict[str, Answer] = {}
        self.asked: Counter[str] = Counter()
        self.failures = 0
        self._log = AppendLog(path, identity)
        for row in self._log.rows:
            self._replay(row)

    def _replay(self, row: dict[str, Any]) -> None:
        try:
            if row["event"] == "ask":
                self.asked[row["key"]] += 1
            else:
                self._record(row["key"], Answer(**row["answer"]))
        except (KeyError, TypeError) as error:
            self.close()
            raise DataError(f"{self.path}: not a journal of a distillation ({error!r})") from error

    def _record(self, key: str, answer: Answer) -> None:
        if answer.failed:
            self.failures += 1
        else:
            self.answers[key] = answer

    def ask(self, key: str) -> None:
        """Record that ``key`` is about to be asked."""
        self.asked[key] += 1
        self._log.append({"event": "ask", "key": key})

    def answer(self, key: str, completion: Completion) -> Answer:
        """Record what came back; a failed request is recorded as such and will be asked again by the next run."""
        answer = Answer.of(completion)
        self._record(key, answer)
        self._log.append({"event": "answer", "key": key, "answer": asdict(answer)})
        return answer

    @property
    def asked_again(self) -> int:
        """Requests sent more than once: those in flight at a kill, and those that had failed."""
        return sum(count - 1 for count in self.asked.values())

    def close(self) -> None:
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
