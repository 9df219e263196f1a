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
from rewardlab.types import Completion, FinishReason, Judgment, Message, Order, PreferencePair, Verdict, VerdictStatus, Vote
from rewardlab.verdicts.lists import LIST_FORMATS, SCALES, SCORES, ListReading, compared, list_reading
from rewardlab.verdicts.votes import reduce_votes


def scores_in(pair: PreferencePair, vote: Vote, list_format: str) -> tuple[ListReading, ...]:
    """Return what a vote's completion says of each of the pair's ``listed`` responses, in their order: their own scores, or the
    status that they have none by."""
    num = 2 + len(pair.others)
    if vote.completion.turns or list_format in SCALES:
        texts = vote.completion.turns
        if len(texts) != num:  # it failed or was cut off
            return (list_reading(vote.completion, list_format, 1),) * num
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


def _vote_on(pair: PreferencePair, vote: Vote, list_format: str, match: tuple[int, int]) -> Vote:
    """Return what a vote says of two of the pair's responses: index 0 is the first of the match."""
    readings = scores_in(pair, vote, list_format)
    first, second = (readings[n] for n in (match if vote.order is Order.GIVEN else match[::-1]))
    of_head = list_format == SCORES and first.scores is not None and second.scores is not None
    margin = first.scores[0] - second.scores[0] if of_head and first.scores and second.scores else None
    return replace(vote, verdict=_verdict(first, second), margin=margin)


def matches_of(pair: PreferencePair, judged: Judgment, list_format: str) -> list[tuple[tuple[int, int], Judgment]]:
    """Return a judgment of every two of the pair's responses. Tokens are counted in the first of them alone. Raise ConfigError
    for the format of a judge that compares two."""
    if list_format not in LIST_FORMATS:
        known = ", ".join(LIST_FORMATS)
        raise ConfigError(f"whole lists need a judge with one of the templates {known}; this one compares two responses")
    matches: list[tuple[tuple[int, int], Judgment]] = []
    for match in combinations(range(2 + len(pair.others)), 2):
        votes = [_vote_on(pair, vote, list_format, match) for vote in judged.votes]
        if matches:
            votes = [replace(vote, completion=_without_costs(vote.completion)) for vote in votes]
        matches.append((match, reduce_votes(pair.pair_id, votes)))
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
        return _vote_on(pair, unread, self.template.verdict_format, (0, 1))

    def compare_many(
        self, pairs: Sequence[PreferencePair], *, orders: Sequence[tuple[Order, ...]], num_votes: int, seed: int
    ) -> list[Judgment]:
        """Return the judgments; a rating judge draws ``num_votes`` ratings of every response for each order."""
        if not self.rates:
            made = super().compare_many(pairs, orders=orders, num_votes=num_votes, seed=seed)
            return [reduce_votes(judged.pair_id, judged.votes) for judged in made]
        prompts = [self._alone(pair, n) for pair in pairs for n in range(2 + len(pair.others))]
        most = max(map(len, orders), default=0) * num_votes
        drawn = iter(self.sampler.sample(prompts, self.params(most, seed)) if most else ())
        judgments = []
        for pair, pair_orders in zip(pairs, orders, strict=True):
            ratings = [next(drawn) for _ in range(2 + len(pair.others))]
            votes = [
                self.vote(pair, order, _together([of[n * num_votes + draw] for of in ratings]))
                for n, order in enumerate(pair_orders)
                for draw in range(num_votes)
            ]
            judgments.append(reduce_votes(pair.pair_id, votes))
        return judgments

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
