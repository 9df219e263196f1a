"""What a judge makes of two responses, for a program or a person to read: who won, by how much, every vote with its reasons."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape

from rewardlab.data.images import thumbnail, to_data_url
from rewardlab.errors import EndpointError, MediaError
from rewardlab.types import BOTH_ORDERS, IMAGE_MARK, VIDEO_MARK, Judgment, Order, Outcome, PreferencePair, VerdictStatus, Vote
from rewardlab.verdicts.panel import votes_with_voice
from rewardlab.verdicts.votes import FAILED, VALID, both_orders_or_none, in_order, majority


@dataclass(frozen=True, repr=False)
class Ballot:
    """One vote of a judge.

    ``order`` is how it saw the responses: ``given`` with response 0 first, ``swapped`` with response 1 first. ``winner`` is the
    index of the response it is for, None without a valid verdict; ``status`` says what became of its verdict and ``error`` why
    it has no text. ``text`` is all that the judge wrote. ``probability``: of response 0 (0..1), of a judge that tells it.
    ``member``: of a panel, who cast it.
    """

    order: Order
    winner: int | None
    status: VerdictStatus
    text: str
    error: str = ""
    num_tokens: int = 0
    probability: float | None = None
    member: str = ""

    @staticmethod
    def of(vote: Vote) -> Ballot:
        probability = None
        if vote.margin is not None:
            margin = vote.margin if vote.order is Order.GIVEN else -vote.margin
            probability = 0.5 + math.tanh(margin / 2) / 2
        completion = vote.completion
        return Ballot(
            order=vote.order,
            winner=vote.winner,
            status=vote.verdict.status,
            text=completion.text,
            error=completion.error,
            num_tokens=completion.num_tokens,
            probability=probability,
            member=vote.member,
        )

    @property
    def reasoning(self) -> str:
        """Return what the judge wrote between ``<think>`` and ``</think>``, to the end if that is missing; without such tags
        all of its text."""
        _, opened, rest = self.text.partition("<think>")
        return rest.rpartition("</think>")[0].strip() or rest.strip() if opened else self.text.strip()

    def __repr__(self) -> str:
        verdict = f"for {self.winner}" if self.winner is not None else self.status.value
        text = self.error if self.status in FAILED else self.reasoning
        return f"Ballot({self.order.value}, {verdict}{f', {self.member}' if self.member else ''}: {_short(text)!r})"


@dataclass(frozen=True, repr=False)
class ComparisonResult:
    """The pair and its judgment.

    Where no vote of an order names a response there is no outcome (NO_VALID_VOTE), as of a served judge: the votes of the other
    order alone would carry its position bias.
    """

    pair: PreferencePair
    judgment: Judgment

    @staticmethod
    def of(pair: PreferencePair, judged: Judgment) -> ComparisonResult:
        return ComparisonResult(pair, both_orders_or_none(judged))

    @property
    def winner(self) -> int | None:
        """Return the index of the better response; None if neither has more than half of the votes asked: ``outcome`` says
        why."""
        return self.judgment.outcome.winner

    @property
    def outcome(self) -> Outcome:
        return self.judgment.outcome

    @property
    def share_0(self) -> float | None:
        """Return the share of valid votes for response 0 (0..1), either order weighing the same; of a judge that tells
        probabilities the probability of response 0. None if no vote of an order names a response, or fewer than half of the
        votes are valid."""
        return self.judgment.share_0

    @property
    def share(self) -> float | None:
        """Return the winner's share (0..1), as ``share_0`` is counted; None without a winner. It is above one half,
        except for a panel, whose majority of members can differ from the mean of their shares."""
        if self.winner is None or self.share_0 is None:
            return None
        return self.share_0 if self.winner == 0 else 1 - self.share_0

    @cached_property
    def votes(self) -> tuple[Ballot, ...]:
        return tuple(map(Ballot.of, self.judgment.votes))

    @property
    def swap_consistent(self) -> bool | None:
        """Return whether the majorities of both orders name the same response; one that is even names none. None where
        no vote of an order names one. Of a panel the votes of members that abstain do not count."""
        votes = votes_with_voice(self.judgment.votes)
        if not all(any(vote.winner is not None for vote in in_order(votes, order)) for order in BOTH_ORDERS):
            return None
        first, second = (majority(in_order(votes, order)).winner for order in BOTH_ORDERS)
        return first is not None and first == second

    @property
    def invalid(self) -> Mapping[str, int]:
        """Return how many votes have no readable verdict, by status; empty where all have one."""
        return dict(Counter(vote.status.value for vote in self.votes if vote.status not in VALID))

    @property
    def failed(self) -> bool:
        """Return whether every vote failed for want of an answer: this says nothing of the responses."""
        return all(vote.status in FAILED for vote in self.votes)

    def summary(self) -> str:
        """Return the outcome in a line."""
        if self.failed:
            return f"failed: every vote; {self.votes[0].error if self.votes else 'there is none'}"
        counts = ", ".join(f"{number} {status}" for status, number in self.invalid.items())
        bad = f"; without a verdict: {counts} of {len(self.votes)} votes" if counts else f"; {len(self.votes)} votes"
        consistent = {True: "; both orders agree", False: "; the orders do not agree", None: ""}[self.swap_consistent]
        if self.winner is None or self.share is None:
            return f"{self.outcome.words}{bad}{consistent}"
        return f"response {self.winner} wins with {self.share:.0%}{bad}{consistent}"

    def __repr__(self) -> str:
        lines = [f"ComparisonResult: {self.summary()}", f"  question: {_short(self.pair.question)!r}"]
        lines += [f"  response {n}: {_short(response)!r}" for n, response in enumerate(self.pair.responses)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:

        return comparison_html(self)


def _short(text: str, length: int = 80) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"


def check_answers(judgments: Sequence[Judgment], judge: str) -> None:
    """Raise EndpointError where every vote failed for want of an answer, in the words of the first failure."""
    votes = [vote for judged in judgments for vote in judged.votes]
    if votes and all(vote.verdict.status in FAILED for vote in votes):
        raise EndpointError(f"{judge}: no vote was answered: {votes[0].completion.error or votes[0].verdict.status.value}")


_ORDER_NAMES = {Order.GIVEN: "response 0 shown first", Order.SWAPPED: "response 1 shown first"}
_BOX = "border:1px solid #8886;border-radius:6px;padding:.5em .7em;margin:.3em 0;white-space:pre-wrap;overflow-wrap:anywhere"


def comparison_html(result: ComparisonResult) -> str:
    """Return the comparison as a fragment of HTML that refers to nothing outside itself."""
    pair = result.pair
    parts = [f"<b>{_text(result.summary())}</b>", _images(pair.images), f"<div style='{_BOX}'>{_text(pair.question)}</div>"]
    for n, response in enumerate(pair.responses):
        mark = "outline:2px solid #2a7;" if result.winner == n else ""
        parts.append(
            f"<div style='{mark}{_BOX}'><b>response {n}</b>{' · wins' if result.winner == n else ''}\n{_text(response)}"
            f"{_images(pair.response_images[n])}</div>"
        )
    for order in BOTH_ORDERS:
        if votes := [vote for vote in result.votes if vote.order is order]:
            parts.append(f"<b>{_ORDER_NAMES[order]}</b>{''.join(map(_vote, votes))}")
    return f"<div style='max-width:60em;font-family:sans-serif'>{''.join(parts)}</div>"


def _text(text: str) -> str:
    return escape(text.replace(IMAGE_MARK, "[image]").replace(VIDEO_MARK, "[video]"))


def _images(images: tuple[bytes, ...]) -> str:
    return "".join(f"<div>{_image(data)}</div>" for data in images)


def _image(data: bytes) -> str:
    try:
        return f"<img alt='' style='max-width:360px' src='{escape(to_data_url(thumbnail(data)))}'>"
    except (MediaError, OSError):  # a pair that was made by hand may hold anything
        return "[an image that cannot be read]"


def _vote(vote: Ballot) -> str:
    verdict = f"for response {vote.winner}" if vote.winner is not None else f"no verdict: {vote.status.value}"
    who = f" · {_text(vote.member)}" if vote.member else ""
    reasoning = _text(vote.reasoning or vote.error) or "(nothing)"
    body = f"<summary>{_text(verdict)}{who}</summary><div style='{_BOX}'>{reasoning}</div>"
    return f"<details style='margin:.3em 0'>{body}</details>"
