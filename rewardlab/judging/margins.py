"""Judges that weigh the probabilities of verdicts instead of counting verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from rewardlab.judging.judge import GenerativeJudge
from rewardlab.models.checkpoints import VERDICT_TEMPERATURE
from rewardlab.prompts import build_messages
from rewardlab.samplers.base import Sampler
from rewardlab.types import (
    Choice,
    Completion,
    FinishReason,
    Judgment,
    Message,
    Order,
    PreferencePair,
    Verdict,
    VerdictStatus,
    Vote,
)
from rewardlab.verdicts.checklist import OTHER_CRITERIA
from rewardlab.verdicts.parse import CHECKLIST, until_verdict
from rewardlab.verdicts.votes import judgment_by_probability

READ_BY_PROBABILITY = ("bare", "think_answer", CHECKLIST)
_UNREAD = Verdict(None, VerdictStatus.NO_VERDICT)
_NOTHING_WRITTEN = Completion("", FinishReason.STOP)


@runtime_checkable
class ProbabilitySampler(Sampler, Protocol):
    """A sampler that can also tell how likely either verdict is at the place where the verdict of an answer stands."""

    def verdict_margins(self, prompts: Sequence[tuple[Message, ...]], beginnings: Sequence[str]) -> Any:
        """Return two tensors [N]: log-odds of the response shown first, and the probability of a verdict at all (0..1)."""
        ...


class ProbabilityJudge(GenerativeJudge):
    """Weighs the probability of verdicts instead of counting them (Pairwise-RL, arXiv 2504.04950).

    Where the template asks for reasoning, ``num_votes`` rationales are sampled and the probability is read after each; where it
    asks for the verdict alone there is nothing to sample and one vote per order. A vote names the likelier response;
    ``share_0`` is the probability of response 0. An answer without a verdict, and a model about to write something else than
    one, is an invalid vote; where all votes of an order are invalid there is neither probability nor outcome. Margins are
    divided by ``verdict_temperature``: which response a single vote names is not changed by it.
    """

    sampler: ProbabilitySampler
    decides = "by probability"

    @property
    def identity(self) -> dict[str, str | float]:
        if self.verdict_temperature == 1:
            return super().identity
        return {**super().identity, VERDICT_TEMPERATURE: self.verdict_temperature}

    @property
    def is_streaming(self) -> bool:
        return False  # its votes are read of the model's probabilities, not of single draws

    def num_draws(self, num_votes: int) -> int:
        return 1 if self.template.verdict_format == "bare" else num_votes

    def compare_many(
        self, pairs: Sequence[PreferencePair], *, orders: Sequence[tuple[Order, ...]], num_votes: int, seed: int
    ) -> list[Judgment]:
        if self.template.verdict_format == "bare":
            votes = [[Vote(order, _UNREAD, _NOTHING_WRITTEN) for order in pair_orders] for pair_orders in orders]
        else:
            sampled = super().compare_many(pairs, orders=orders, num_votes=num_votes, seed=seed)
            votes = [list(judgment.votes) for judgment in sampled]
        beginnings = {
            (n, k): beginning
            for n, pair_votes in enumerate(votes)
            for k, vote in enumerate(pair_votes)
            if vote.completion.finish is FinishReason.STOP
            and vote.verdict.rule != OTHER_CRITERIA
            and (beginning := until_verdict(vote.completion.text, self.template.verdict_format)) is not None
        }
        prompts = [build_messages(pairs[n], order=votes[n][k].order, template=self.template) for n, k in beginnings]
        margins, coverages = self.sampler.verdict_margins(prompts, list(beginnings.values()))
        for (n, k), margin, coverage in zip(beginnings, margins.tolist(), coverages.tolist(), strict=True):
            verdict = likelier_verdict(margin, coverage)
            if self.template.verdict_format == CHECKLIST and verdict.choice not in (None, votes[n][k].verdict.choice):
                verdict = Verdict(None, VerdictStatus.CONTRADICTED, "checks_probability")
            is_read = verdict.status in (VerdictStatus.OK, VerdictStatus.TIE)
            votes[n][k] = replace(votes[n][k], verdict=verdict, margin=margin / self.verdict_temperature if is_read else None)
        return [judgment_by_probability(pair.pair_id, pair_votes) for pair, pair_votes in zip(pairs, votes, strict=True)]


def probability_judge_of(judge: GenerativeJudge) -> ProbabilityJudge | None:
    """Return the same judge weighing probabilities; None if its sampler or its verdict format has none to tell."""
    if isinstance(judge, ProbabilityJudge):
        return judge
    if not isinstance(judge.sampler, ProbabilitySampler) or judge.verdict_format not in READ_BY_PROBABILITY:
        return None
    return ProbabilityJudge(judge.sampler, judge.template, judge.config, verdict_temperature=judge.verdict_temperature)


def likelier_verdict(margin: float, coverage: float) -> Verdict:
    """Return the verdict of the greater probability; none if a verdict was not what the model was about to write."""
    from rewardlab.verdicts.margins import LEAST_COVERAGE  # torch; this module is loaded without

    if coverage < LEAST_COVERAGE:
        return Verdict(None, VerdictStatus.NO_VERDICT, "low_coverage")
    if margin == 0:
        return Verdict(None, VerdictStatus.TIE, "probability")
    return Verdict(Choice.FIRST if margin > 0 else Choice.SECOND, VerdictStatus.OK, "probability")
