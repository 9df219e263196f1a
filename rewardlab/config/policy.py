"""A policy that is trained on a judge's word: what pays it, and what is watched meanwhile."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rewardlab.config.base import Schema, nested
from rewardlab.config.rl import MethodConfig


class SignsConfig(Schema):
    """Metrics that show whether a policy exploits its judge. A sign is a mean of three rollout batches beyond its limit from
    the mean of the first five; the response is ``health.policy``. Novelty, repetition, the most common answer and the length of
    winners are always measured.
    """

    sample: int = Field(16, ge=0, description="Comparisons per batch that are repeated with blank images and by second_judge.")
    canaries: int = Field(8, ge=0, description="Labelled pairs of the set that are judged with each batch, per process.")
    second_judge: str | None = Field(None, description="Second judge for these comparisons, in the form of --judge.")
    truth: Literal["none", "exact", "rules"] = Field(
        "none", description="Right answers: unknown, the preferred one, or by rule."
    )
    max_novelty: float | None = Field(0.03, gt=0, description="Rise of the fraction of new bigrams in answers; null: off.")
    max_new_winners: float | None = Field(0.022, gt=0, description="Rise of novel answers with high rewards; null: off.")
    max_overpaid: float | None = Field(0.13, gt=0, description="Rise of mean reward minus correctness; null: off.")
    max_repetition: float | None = Field(0.05, gt=0, description="Rise of the fraction of repeated trigrams; null: off.")
    max_most_common: float | None = Field(0.15, gt=0, description="Rise of prompts with the most common answer.")
    max_winners_length: float | None = Field(0.3, gt=0, description="Rise of the winners' relative length; null: off.")
    max_disagreement: float | None = Field(0.25, gt=0, description="Fall of the fraction of comparisons with agreeing orders.")
    max_blank_fall: float | None = Field(0.22, gt=0, description="Fall of the effect of a blank image on probabilities.")
    max_second_gap: float | None = Field(0.17, gt=0, description="Rise of the distance to the second judge; null: off.")
    max_canary_fall: float | None = Field(0.15, gt=0, description="Fall of the judge's accuracy on labelled pairs; null: off.")


class PolicyConfig(MethodConfig):
    """A policy trained with a judge: Pairwise-RL (arXiv 2504.04950) with the rates of Seed1.5-VL (arXiv 2505.07062). The reward
    of a response is the probability, over both orders, that it beats an anchor. The method's keys and defaults are those of
    judges (``configs/rl/``); Pairwise-RL's own PPO is ``configs/policy/pairwise_rl.yaml``.
    """

    template: str = Field("answer", description="Prompt template of a question to the policy.")
    learning_rate: float = Field(6e-7, gt=0, description="Peak learning rate of AdamW (Seed1.5-VL).")
    value_learning_rate: float | None = Field(7.5e-7, gt=0, description="Peak learning rate of the critic (Seed1.5-VL).")
    judge: str | None = Field(
        "prob:runs/rl/final",
        description="The judge, as in `rewardlab bench run` (hf:, prob:, openai:), or rm:FOLDER, a scalar head; "
        "null: rules pay for all pairs (`verified`).",
    )
    other_judges: list[str] = Field([], description="More judges; the reward is the lowest of all judges' (arXiv 2310.02743).")
    judge_votes: int = Field(1, ge=1, description="Rationales (or votes) in each order of a comparison.")
    judge_max_tokens: int = Field(1024, ge=1, description="Maximum tokens per judgment.")
    judge_batch_size: int = Field(64, ge=1, description="Sequences that the judge samples at a time.")
    anchor: Literal["preferred", "start", "best", "group"] = Field(
        "preferred",
        description="Opponent: the preferred response, the initial policy's greedy or best one, or the group's others.",
    )
    anchor_samples: int = Field(4, ge=2, description="Samples of the initial policy for anchor `best`.")
    phi: Literal["probability", "centered", "logit", "binary"] = Field(
        "probability", description="Reward as a function of the winning probability p."
    )
    verified: bool = Field(False, description="Reward pairs of a checkable category (math, number, code, ...) by rule.")
    verified_kl_coef: float | None = Field(None, ge=0, description="kl_coef of pairs rewarded by rule; null: kl_coef.")
    contract: Literal["boxed", "box", "answer"] = Field(
        "boxed", description="Format of a checkable answer: \\boxed{}, box or tags."
    )
    thinking: bool = Field(True, description="Responses to checkable questions must open with <think>...</think>.")
    signs: SignsConfig = nested(SignsConfig, "Metrics beside the reward.")

    @property
    def loaded_judges(self) -> tuple[str, ...]:
        """Names of all judges that a run opens: those that pay, and the second judge of the signs."""
        second = [self.signs.second_judge] if self.signs.second_judge else []
        return tuple(name for name in (self.judge, *self.other_judges, *second) if name is not None)

    @model_validator(mode="after")
    def _one_scale(self) -> Self:
        if self.judge is None and not self.verified:
            raise ValueError("judge is null, so nothing pays: name a judge, or set verified to true")
        if self.verified and (self.phi != "probability" or (self.judge or "").startswith("rm:")):
            raise ValueError("verified mixes rules that pay 0 to 1 with the judge: it needs phi probability and no scalar head")
        return self

    @model_validator(mode="after")
    def _compares_with_all(self) -> Self:
        scalar = [name for name in (self.judge, *self.other_judges) if name and name.startswith("rm:")]
        if self.other_judges and scalar:
            raise ValueError(
                f"other_judges must be pairwise judges, which share one scale; {scalar[0]} is a scalar head: leave it out"
            )
        if len({self.judge, *self.other_judges}) <= len(self.other_judges):
            raise ValueError("other_judges name a judge twice; name each judge once")
        return self

    @model_validator(mode="after")
    def _whole_answers(self) -> Self:
        if self.window:
            raise ValueError(
                "window lets rollouts grow over several steps, but the judge needs complete answers: set it to null"
            )
        return self

    @model_validator(mode="after")
    def _anchor_has_a_group(self) -> Self:
        if self.anchor == "group" and self.group_size < 2:
            raise ValueError("anchor group compares a group's rollouts; set group_size to 2 or more")
        return self
