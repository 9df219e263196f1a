"""Judges of which most answers have no verdict: one rule for comparisons, ranks and rewards, in Python and over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from rewardlab.data.judgments import PreferenceRules, judge_of_votes
from rewardlab.judging.api import SyncJudge
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.panel import PanelJudge
from rewardlab.prompts import load_template
from rewardlab.rewards.audit.rows import pair_judge
from rewardlab.rewards.pairwise import PairwiseReward
from rewardlab.rewards.verifiable.extraction import AnswerStatus
from rewardlab.rewards.verifiable.hybrid import Prompt
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.types import Message, Outcome, PreferencePair
from tests.support.servers import running

PLAIN, QUESTION, RESPONSES = load_template("plain"), "Which?", ("it is red", "it is blue")
NUM_VOTES = 5


def judge_with(num_valid: int, num_valid_swapped: int | None = None, name: str = "scripted") -> GenerativeJudge:
    """Prefers red in the first ``num_valid`` votes of an order (the other one, where red is shown second), and says no more."""

    def say(prompt: tuple[Message, ...], draw: int) -> str:
        text = prompt[0].text
        is_first = text.find("red") < text.find("blue")
        num = num_valid if is_first or num_valid_swapped is None else num_valid_swapped
        return f"<think>x</think><answer>{1 if is_first else 2}</answer>" if draw < num else "I would rather not say."

    return GenerativeJudge(ScriptedSampler(say, name), PLAIN)


@pytest.mark.parametrize(
    ("num_valid", "swapped", "outcome", "share"),
    [
        (5, 5, Outcome.RESPONSE_0, 1.0),
        (3, 3, Outcome.RESPONSE_0, 1.0),  # 6 of 10
        (4, 1, Outcome.NO_MAJORITY, 1.0),  # 5 of 10: half are valid, and half are not more than half
        (2, 2, Outcome.NO_MAJORITY, None),  # 4 of 10
        (5, 0, Outcome.NO_VALID_VOTE, None),  # the votes of one order alone
        (0, 0, Outcome.NO_VALID_VOTE, None),
    ],
)
def test_one_rule_everywhere(num_valid: int, swapped: int, outcome: Outcome, share: float | None) -> None:
    """A winner has more than half of the votes asked; with fewer than half valid there is neither share nor reward."""
    judge = judge_with(num_valid, swapped)
    python = SyncJudge(judge)
    result = python.compare(QUESTION, list(RESPONSES), votes=NUM_VOTES)
    assert (result.outcome, result.share_0, result.winner) == (outcome, share, outcome.winner)
    assert python.rank(QUESTION, list(RESPONSES), votes=NUM_VOTES, plan="round_robin").best == outcome.winner
    rewards = [None, None] if share is None else [1.0, -1.0]
    assert python.rewards(QUESTION, list(RESPONSES), votes=NUM_VOTES) == rewards
    fitted = python.rewards(QUESTION, list(RESPONSES), votes=NUM_VOTES, strategy="bradley_terry")
    assert (fitted == [None, None]) == (share is None)

    pair = PreferencePair("p", QUESTION, RESPONSES, None)
    anchored, metrics = PairwiseReward(judge, num_votes=NUM_VOTES)([pair], ["it is red"], [("it is blue",)], 0)
    assert (anchored[0] is None) == (share is None)
    assert metrics["judge/unreadable_frac"].value == float(share is None)  # type: ignore[union-attr]
    audited = pair_judge(judge, num_votes=NUM_VOTES)(Prompt("p", "poem", QUESTION, truth=""), *RESPONSES)
    assert (audited.status is AnswerStatus.UNREADABLE) == (share is None)
    reason = PreferenceRules(keep_inconsistent=True).reason_against(judge_of_votes(pair, result.judgment.votes))
    no_winner = "no majority of the votes asked" if share is not None else "too few valid votes"
    no_winner = "no vote of an order names a response" if outcome is Outcome.NO_VALID_VOTE else no_winner
    assert reason == (None if outcome.winner == 0 else no_winner)

    body: dict[str, Any] = {"question": QUESTION, "responses": list(RESPONSES), "votes": NUM_VOTES}
    with running(create_app(judge)) as url:
        judged = httpx.post(f"{url}/v1/judge", json=body, timeout=30).json()
        group = httpx.post(f"{url}/v1/rewards", json=body, timeout=30).json()
    assert (judged["outcome"], judged["p_first_better"]) == (outcome.value, share)
    assert judged["num_valid"] == num_valid + swapped
    assert (group["rewards"], group["num_failed"]) == (rewards, int(share is None))


def test_members_with_few_valid_votes_abstain() -> None:
    """A panel counts its members as votes are counted: one that abstains is asked, and names nobody."""
    for nums, expected in {
        (5, 3, 2): (Outcome.RESPONSE_0, 1.0),
        (5, 2): (Outcome.NO_MAJORITY, 1.0),
        (5, 2, 2): (Outcome.NO_MAJORITY, None),
        (2, 2): (Outcome.NO_MAJORITY, None),
        (0, 0): (Outcome.NO_VALID_VOTE, None),
    }.items():
        panel = SyncJudge(PanelJudge([judge_with(num, name=f"m{n}") for n, num in enumerate(nums)]))
        result = panel.compare(QUESTION, list(RESPONSES), votes=NUM_VOTES)
        assert (result.outcome, result.share_0) == expected, nums
