"""A policy that is trained on a judge's word: what pays it, and what is watched meanwhile."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rewardlab.config.base import Schema
from rewardlab.config.rl import MethodConfig


class SignsConfig(Schema):
    """What is measured besides the reward, to see a policy that has found out how to please its judge.

    A sign is a mean of three rollout batches that is farther than its limit from the mean of the run's first five. What is then
    done is ``health.policy``. Novelty, repetition, the most common answer and the length of winners are always measured.
    """

    sample: int = Field(
        16,
        ge=0,
        description="Comparisons of a rollout batch, on each process, that the judge is asked again with blank pictures, and "
        "the second judge as they are; 0: none.",
    )
    canaries: int = Field(
        8, ge=0, description="Labelled pairs of the set that the judge is asked with each rollout batch, on each process."
    )
    second_judge: str | None = Field(
        None, description="Another judge, as in `rewardlab bench run`, that is asked of the sample; null: none."
    )
    truth: Literal["none", "exact", "rules"] = Field(
        "none",
        description="How the rightness of answers is known: not at all, the preferred response is the only right answer "
        "(`exact`), or by the rule of a pair's category (`rules`).",
    )
    max_novelty: float | None = Field(
        0.03, gt=0, description="Rise of the share of word pairs that no answer of the set has; null: no sign."
    )
    max_new_winners: float | None = Field(
        0.022,
        gt=0,
        description="Rise of the share of answers that have a new word pair and are paid more than the median; null: no sign.",
    )
    max_overpaid: float | None = Field(
        0.13, gt=0, description="Rise of the mean of reward minus rightness, where rightness is known; null: no sign."
    )
    max_repetition: float | None = Field(0.05, gt=0, description="Rise of the share of repeated word triples; null: no sign.")
    max_most_common: float | None = Field(
        0.15, gt=0, description="Rise of the share of prompts that get the most common answer; null: no sign."
    )
    max_winners_length: float | None = Field(
        0.3, gt=0, description="Rise of the length of well paid answers over that of the others; null: no sign."
    )
    max_disagreement: float | None = Field(
        0.25, gt=0, description="Fall of the share of comparisons in which both orders name one answer; null: no sign."
    )
    max_blank_fall: float | None = Field(
        0.22, gt=0, description="Fall of what a blank picture changes of the judge's probabilities; null: no sign."
    )
    max_second_gap: float | None = Field(
        0.17, gt=0, description="Rise of the distance to the second judge's probabilities; null: no sign."
    )
    max_canary_fall: float | None = Field(
        0.15, gt=0, description="Fall of the judge's accuracy on labelled pairs of the set; null: no sign."
    )


class PolicyConfig(MethodConfig):
    """A policy trained on a judge's word: Pairwise-RL (arXiv 2504.04950) with the rates of Seed1.5-VL (arXiv 2505.07062).

    The reward of a response is the probability that it beats an anchor, both orders asked. The method's fields mean, and
    default to, what they do for judges (``configs/rl/``); Pairwise-RL's own PPO is ``configs/policy/pairwise_rl.yaml``.
    """

    template: str = Field("answer", description="Prompt template of a question to the policy.")
    learning_rate: float = Field(6e-7, gt=0, description="Peak learning rate of AdamW (Seed1.5-VL).")
    value_learning_rate: float | None = Field(7.5e-7, gt=0, description="Peak learning rate of the critic (Seed1.5-VL).")
    judge: str = Field(
        "prob:runs/rl/final",
        description="The judge, as in `rewardlab bench run` (hf:, prob: or openai:; each process opens its own), or rm:FOLDER, "
        "a scalar head that sees no anchor.",
    )
    other_judges: list[str] = Field(
        [],
        description="Further judges, such as the same recipe's of other seeds: a response earns the least that any of them "
        "pays (arXiv 2310.02743). What deceives one of them seldom deceives all.",
    )
    judge_votes: int = Field(1, ge=1, description="Rationales (or votes) in each order of a comparison.")
    judge_max_tokens: int = Field(1024, ge=1, description="Most tokens of a judgment.")
    judge_batch_size: int = Field(64, ge=1, description="Sequences that the judge samples at a time.")
    anchor: Literal["preferred", "start", "best", "group"] = Field(
        "preferred",
        description="What a response is compared with: the pair's better one, the first policy's greedy one, the best of its "
        "anchor_samples, or the other rollouts of the group.",
    )
    anchor_samples: int = Field(
        4, ge=2, description="Samples of the first policy for anchor `best`; the one that the judge prefers stays."
    )
    phi: Literal["probability", "centered", "logit", "binary"] = Field(
        "probability", description="What winning with probability p is worth."
    )
    verified: bool = Field(
        False, description="Pairs of a category that a rule can check (math, number, ...) are paid by the rule."
    )
    verified_kl_coef: float | None = Field(
        None,
        ge=0,
        description="Weight of the KL divergence on pairs that a rule pays, Seed1.5-VL's is 0; null: kl_coef.",
    )
    contract: Literal["boxed", "box", "answer"] = Field(
        "boxed", description="Where a checkable answer stands: \\boxed{}, GLM's box tokens, or answer tags."
    )
    thinking: bool = Field(True, description="Responses to checkable questions must open with <think>...</think>.")
    signs: SignsConfig = Field(
        default_factory=lambda: SignsConfig.model_validate({}), description="What is measured besides the reward."
    )

    @property
    def loaded_judges(self) -> tuple[str, ...]:
        """Names of all judges that a run opens: those that pay, and the second judge of the signs."""
        second = [self.signs.second_judge] if self.signs.second_judge and self.signs.sample else []
        return (self.judge, *self.other_judges, *second)

    @model_validator(mode="after")
    def _one_scale(self) -> Self:
        if self.verified and (self.phi != "probability" or self.judge.startswith("rm:")):
            raise ValueError("verified mixes rules that pay 0 to 1 with the judge: it needs phi probability and no scalar head")
        return self

    @model_validator(mode="after")
    def _compares_with_all(self) -> Self:
        scalar = [name for name in (self.judge, *self.other_judges) if name.startswith("rm:")]
        if self.other_judges and scalar:
            raise ValueError(f"other_judges are pairwise judges on one scale; {scalar[0]} is a scalar head: leave it out")
        if len({self.judge, *self.other_judges}) <= len(self.other_judges):
            raise ValueError("other_judges name a judge twice; the least of equal ones is no other")
        return self

    @model_validator(mode="after")
    def _whole_answers(self) -> Self:
        if self.window:
            raise ValueError("window lets rollouts grow over steps, and a judge is asked about whole answers: set it to null")
        return self

    @model_validator(mode="after")
    def _anchor_has_a_group(self) -> Self:
        if self.anchor == "group" and self.group_size < 2:
            raise ValueError("anchor group compares a group's rollouts; set group_size to 2 or more")
        return self
