"""Judges that rate responses one by one, or put a whole list in order (:mod:`rewardlab.verdicts.lists`).

Their answer about N responses is N scores, and a comparison of two is what their scores come to. So one judgment of a list
holds a vote on every pair of it (:func:`matches_of`), and whatever is made of votes on pairs, such as rewards, tiers and
intervals, is made of these too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from rewardlab.errors import ConfigError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import build_messages
from rewardlab.types import (
    Completion,
    FinishReason,
    Judgment,
    Message,
    Order,
    Outcome,
    PreferencePair,
    Verdict,
    VerdictStatus,
    Vote,
)
from rewardlab.verdicts.lists import LIST_FORMATS, MAX_LISTED, SCALES, SCORES, ListReading, compared, list_reading
from rewardlab.verdicts.votes import VALID, both_orders_or_none, enough_valid, outcome_of, reduce_votes

SWAPPED_SEEDS = 1 << 24  # the draws of the other order are further ones, beyond those of any round of votes


def scores_in(pair: PreferencePair, vote: Vote, list_format: str) -> tuple[ListReading, ...]:
    """Return what a vote's completion says of each of the pair's ``listed`` responses, in their order: their own scores, or the
    status that they have none by."""
    num = 2 + len(pair.others)
    if vote.completion.turns or list_format in SCALES:
        texts = vote.completion.turns
        if len(texts) != num:  # it failed or was cut off
            failed = list_reading(vote.completion, list_format, 1)
            return (ListReading(None, failed.status, failed.rule),) * num
        return tuple(list_reading(Completion(text, FinishReason.STOP), list_format, 1) for text in texts)
    reading = list_reading(vote.completion, list_format, num)
    if reading.scores is None:
        return (reading,) * num
    by_index = dict(zip(pair.places(vote.order), reading.scores, strict=True))
    return tuple(replace(reading, scores=(by_index[n],)) for n in range(num))


def _verdict(first: ListReading, second: ListReading) -> Verdict:
    """Return the verdict of two readings, of the response shown first and of the second."""
    if first.scores is None or second.scores is None:
        unread = first if first.scores is None else second
        return Verdict(None, unread.status, unread.rule)
    return compared(first.scores[0], second.scores[0], first.rule)


def _vote_on(vote: Vote, readings: Sequence[ListReading], list_format: str, match: tuple[int, int]) -> Vote:
    """Return what a vote says of two of the pair's responses, by its :func:`scores_in`: index 0 is the first of the match."""
    first, second = (readings[n] for n in (match if vote.order is Order.GIVEN else match[::-1]))
    of_head = list_format == SCORES and first.scores and second.scores
    margin = first.scores[0] - second.scores[0] if of_head and first.scores and second.scores else None
    return replace(vote, verdict=_verdict(first, second), margin=margin)


def require_lists(list_format: str, num: int) -> None:
    """Raise ConfigError for the format of a judge that compares two responses, and for more than a list can show."""
    if list_format not in LIST_FORMATS:
        known = ", ".join(name for name in LIST_FORMATS if name != SCORES)
        raise ConfigError(
            f"whole lists need a judge of its own with one of the templates {known}, or a head of lists; judges of pairs, "
            "panels and served judges (http://) compare two responses"
        )
    if list_format not in SCALES and num > MAX_LISTED:
        raise ConfigError(f"{num} responses in one list; expected at most {MAX_LISTED}, or a judge of the template rating")


def reduce_scores(pair_id: str, votes: Sequence[Vote]) -> Judgment:
    """Reduce the votes on two responses of lists: by probabilities where they carry any, else by the majority, where a tie is
    half a vote for each. Without a vote of every order that can be read there is no outcome."""
    if any(vote.margin is not None for vote in votes):
        return both_orders_or_none(reduce_votes(pair_id, votes))
    orders = dict.fromkeys(vote.order for vote in votes)
    by_order = {order: [vote for vote in votes if vote.order is order] for order in orders}
    valid = {order: [vote for vote in drawn if vote.verdict.status in VALID] for order, drawn in by_order.items()}
    if not votes or not all(valid.values()):
        return Judgment(pair_id, tuple(votes), Outcome.NO_VALID_VOTE, None)
    shares = [sum(map(_points, readable)) / len(readable) for readable in valid.values()]
    points = sum(_points(vote) for readable in valid.values() for vote in readable)
    num_valid = sum(map(len, valid.values()))
    outcome = outcome_of(points, num_valid - points, len(votes))
    return Judgment(pair_id, tuple(votes), outcome, sum(shares) / len(shares) if enough_valid(votes) else None)


def _points(vote: Vote) -> float:
    return 0.5 if vote.winner is None else 1.0 - vote.winner


def matches_of(pair: PreferencePair, judged: Judgment, list_format: str) -> list[tuple[tuple[int, int], Judgment]]:
    """Return a judgment of every two of the pair's responses, in which equal scores are half a win each. Tokens are counted in
    the first of them alone. Raise ConfigError as :func:`require_lists` does."""
    require_lists(list_format, 2 + len(pair.others))
    read = [(vote, scores_in(pair, vote, list_format)) for vote in judged.votes]
    matches: list[tuple[tuple[int, int], Judgment]] = []
    for match in combinations(range(2 + len(pair.others)), 2):
        votes = [_vote_on(vote, readings, list_format, match) for vote, readings in read]
        if matches:
            votes = [replace(vote, completion=_without_costs(vote.completion)) for vote in votes]
        matches.append((match, reduce_scores(pair.pair_id, votes)))
    return matches


def _without_costs(completion: Completion) -> Completion:
    return replace(completion, num_tokens=0, num_prompt_tokens=0, num_cached_tokens=0)


class ListJudge(GenerativeJudge):
    """A generative judge whose template shows one response, or a list. Its judgment of a pair with ``others`` is of the whole
    list; the votes are on the two."""

    @property
    def rates(self) -> bool:
        """Return whether it sees one response at a time."""
        return self.template.shows_one

    @property
    def temperature(self) -> float:
        """Return the sampling temperature; a head has none, its draws are equal."""
        return 0.0 if self.template.verdict_format == SCORES else super().temperature

    @property
    def is_streaming(self) -> bool:
        return not self.rates and super().is_streaming  # a vote of ratings is several completions

    def vote(self, pair: PreferencePair, order: Order, completion: Completion) -> Vote:
        unread = Vote(order, Verdict(None, VerdictStatus.NO_VERDICT), completion)
        list_format = self.template.verdict_format
        return _vote_on(unread, scores_in(pair, unread, list_format), list_format, (0, 1))

    def compare_many(
        self, pairs: Sequence[PreferencePair], *, orders: Sequence[tuple[Order, ...]], num_votes: int, seed: int
    ) -> list[Judgment]:
        """Return the judgments; a rating judge draws ``num_votes`` ratings of every response for each order."""
        if not self.rates:
            made = super().compare_many(pairs, orders=orders, num_votes=num_votes, seed=seed)
            return [reduce_votes(judged.pair_id, judged.votes) for judged in made]
        votes: list[list[Vote]] = [[] for _ in pairs]
        for order in dict.fromkeys(order for pair_orders in orders for order in pair_orders):  # both orders have one prompt
            rows = [n for n, pair_orders in enumerate(orders) if order in pair_orders]
            prompts = [self._alone(pairs[n], place) for n in rows for place in range(2 + len(pairs[n].others))]
            params = self.params(num_votes, seed if order is Order.GIVEN else seed + SWAPPED_SEEDS)
            drawn = iter(self.sampler.sample(prompts, params))
            for n in rows:
                ratings = [next(drawn) for _ in range(2 + len(pairs[n].others))]
                votes[n] += [self.vote(pairs[n], order, _together(draw)) for draw in zip(*ratings, strict=True)]
        return [reduce_votes(pair.pair_id, pair_votes) for pair, pair_votes in zip(pairs, votes, strict=True)]

    def _alone(self, pair: PreferencePair, n: int) -> tuple[Message, ...]:
        text, images = pair.listed[n]
        alone = replace(pair, responses=(text, text), response_images=(images, images), others=(), other_images=())
        return build_messages(alone, order=Order.GIVEN, template=self.template)


def _together(completions: Sequence[Completion]) -> Completion:
    """Return ratings of several responses as one completion, their texts as its turns; one that failed fails them all."""
    bad = next((completion for completion in completions if completion.finish is not FinishReason.STOP), None)
    return Completion(
        "\n\n".join(f"Response {n}: {completion.text}" for n, completion in enumerate(completions)),
        FinishReason.STOP if bad is None else bad.finish,
        num_tokens=sum(completion.num_tokens for completion in completions),
        num_prompt_tokens=sum(completion.num_prompt_tokens for completion in completions),
        num_cached_tokens=sum(completion.num_cached_tokens for completion in completions),
        error="" if bad is None else bad.error,
        from_cache=all(completion.from_cache for completion in completions),
        turns=() if bad else tuple(completion.text for completion in completions),
    )
