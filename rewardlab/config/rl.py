"""Reinforcement learning: the declaration of a method, how rollouts are sampled, and what a judge's rollouts are paid.

A :class:`Method` is what the trainer computes and what ``rl/reference.py`` checks. Estimators of advantages are declared in
``rl/estimators.py``.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from rewardlab.config.base import EvaluationConfig, Schema, TrainConfig, nested
from rewardlab.rl.estimators import ESTIMATORS, Advantage, Estimator

Attempts = Literal["", "1", "2", "3", "unsolved"]  # "": no teacher was asked


class ConsistencyConfig(Schema):
    """Who says whether reasoning and verdict agree. ``weight`` 0 switches the reward and its requests off.

    ``reader`` blind is a second judge (Proxy-GRM): it reads the reasoning without the verdict, the image and the responses, and
    names the better response itself.
    """

    base_url: str = Field("http://127.0.0.1:8000/v1", description="URL of an OpenAI-compatible endpoint that serves `model`.")
    model: str = Field("Qwen/Qwen2.5-VL-7B-Instruct", description="Model that judges whether reasoning and verdict agree.")
    api_key_env: str = Field("OPENAI_API_KEY", description="Environment variable that holds the endpoint's key.")
    weight: float = Field(0.5, ge=0, description="Weight of the consistency reward; 0 switches it and its requests off.")
    reader: Literal["informed", "blind"] = Field(
        "informed", description="Whether the model checks the verdict, or reaches its own from the reasoning alone (`blind`)."
    )
    concurrency: int = Field(64, ge=1, description="Requests in flight.")
    deadline_s: float = Field(20.0, gt=0, description="Seconds per request; after that the consistency is 0.")
    max_tokens: int = Field(8, ge=1, description="Maximum tokens per answer.")


class HotTokenConfig(Schema):
    """FIRE (arXiv 2410.21236): one early token is drawn hot, for rollouts that differ; the defaults are verl's.

    Its own distribution is not the policy's, so nothing is learnt from it: it is left out of the loss.
    """

    temperature: float = Field(30.0, gt=0, description="Temperature of the hot token.")
    top_k: int = Field(16, ge=1, description="Number of most probable tokens that the hot token is sampled from.")
    position: int | None = Field(None, ge=0, description="Position of the hot token from 0; null: after an opening <think>.")


class EngineConfig(Schema):
    """Who samples rollouts instead of the trainer's own decoder.

    ``serve``: a ``vllm serve`` of its own on this machine, given new weights through a file after every update. ``colocate``
    and ``server``: TRL's two ways, vLLM within each process (asleep while training), or servers that take weights over NCCL;
    both need GPUs.
    """

    kind: Literal["serve", "colocate", "server"] = Field(
        "serve",
        description="Form of vLLM: a server of this run, inside each process, or servers that receive weights over NCCL.",
    )
    args: str = Field("", description="serve: further options of `vllm serve`.")
    devices: str | None = Field(None, description="serve: its own GPUs, as CUDA_VISIBLE_DEVICES; null: vLLM on a CPU.")
    deadline_s: float = Field(600.0, gt=0, description="serve: seconds for one rollout, its retries included.")
    ahead: int = Field(
        0,
        ge=0,
        le=2,
        description="serve: number of rollout batches to sample ahead of training; the weights are that many batches old.",
    )
    base_url: str | None = Field(None, description="server: address of `vllm serve` with --weight-transfer-config.")
    gpu_memory_utilization: float = Field(0.3, gt=0, le=1, description="colocate: fraction of each GPU's memory for vLLM.")
    tensor_parallel: int = Field(1, ge=1, description="colocate: GPUs per vLLM engine.")

    @model_validator(mode="after")
    def _says_where(self) -> Self:
        if self.kind == "server" and self.base_url is None:
            raise ValueError("kind server needs base_url, where `vllm serve` with --weight-transfer-config listens")
        return self


class ImportanceConfig(Schema):
    """Correction for a sampler that is not quite the policy: an engine, or weights of an earlier batch. Each token's loss is
    multiplied by the ratio p_trainer / p_sampler. Masked tokens leave the loss and the counts that it is divided by. The modes
    are those of TRL's ``vllm_importance_sampling_mode``, and the geometric mean.
    """

    mode: Literal[
        "token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_truncate", "geometric_mask"
    ] = Field(
        "sequence_mask",
        description="Ratio of a token, of its sequence (the product), or its geometric mean; truncated or masked.",
    )
    cap: float | None = Field(3.0, ge=1, description="Upper bound of the ratio; null: none.")
    floor: float | None = Field(None, gt=0, le=1, description="Lower bound of the ratio; null: none.")
    veto: float | None = Field(
        None, gt=0, lt=1, description="Ratio of one token below which its whole rollout is masked (1e-4 is usual); null: none."
    )

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.cap is None and self.floor is None:
            raise ValueError("importance without cap and floor bounds nothing: set one of them")
        return self


class EntropyConfig(Schema):
    """A bonus for entropy: ``coef`` times the mean entropy of tokens is subtracted from the loss. With ``target`` it is
    adaptive (Skywork-OR1, arXiv 2505.22312): after an optimizer step whose entropy is at most ``target`` the weight rises by
    ``step``, after any other it falls by it; it acts only in steps that follow one of the first kind. Defaults are TRL's.
    """

    coef: float = Field(0.0, ge=0, description="Weight of the mean entropy; with target, the weight at first.")
    target: float | None = Field(None, gt=0, description="Entropy to keep, in nats per token; null: a fixed weight.")
    step: float = Field(0.005, gt=0, description="Change of the weight per optimizer step.")
    max: float = Field(1.0, gt=0, description="Maximum weight.")

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if self.coef == 0 and self.target is None:
            raise ValueError("entropy with coef 0 and no target does nothing: set one of them, or entropy to null")
        if self.target is not None and self.coef > self.max:
            raise ValueError(f"entropy.coef {self.coef:g} is more than its maximum with a target, entropy.max {self.max:g}")
        return self


class CovarianceConfig(Schema):
    """A limit on the tokens that take entropy away: those whose log-prob and advantage covary most (arXiv 2505.22617).
    Covariances are over the tokens of a rollout batch, by the log-probs before its update.
    """

    kind: Literal["clip", "kl"] = Field(
        "clip", description="Clip-Cov: chosen tokens have no policy gradient. KL-Cov: they are held by a penalty."
    )
    fraction: float = Field(
        2e-4, gt=0, lt=1, description="Fraction of tokens: of `low` to `high` at random (clip), or of highest covariance (kl)."
    )
    low: float = Field(1.0, description="Minimum covariance of a token without gradient.")
    high: float = Field(5.0, description="Maximum covariance of a token without gradient.")
    coef: float = Field(1.0, gt=0, description="Weight of the penalty, the distance of a token's log-prob from the old one.")

    @model_validator(mode="after")
    def _has_a_range(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"covariance.low {self.low:g} must be below covariance.high {self.high:g}, or no token is chosen")
        return self


ObjectiveName = Literal["ppo_clip", "gspo", "response_clip", "cispo", "sapo", "gmpo"]


class Method(Schema):
    """What tells one method from another. The defaults are StableReinforce's (arXiv 2505.02835, section 4.1)."""

    advantage: Advantage = Field("reinforce_pp", description="Estimator of advantages.")
    group_size: int = Field(1, ge=1, description="Rollouts of each prompt.")
    max_completion_length: int = Field(1024, ge=1, description="Maximum tokens of a rollout, or of each of its turns.")
    whiten_by: Literal["token", "sequence"] = Field("token", description="Unit of the mean and deviation of advantages.")
    outliers: Literal["delete", "clip", "keep"] = Field("delete", description="Treatment of advantages beyond outlier_sigma.")
    outlier_sigma: float = Field(3.0, gt=0, description="Deviations beyond which a whitened advantage is an outlier.")
    clip_low: float = Field(0.2, gt=0, lt=1, description="Clip of the probability ratio below 1.")
    clip_high: float | None = Field(None, gt=0, description="Clip of the ratio above 1 (DAPO's clip-higher); null: clip_low.")
    dual_clip: float | None = Field(None, gt=1, description="Bound c: the loss of a negative advantage A is at most -c A.")
    preclip: tuple[float, float] | None = Field(
        (1e-3, 1e3), description="Bounds of the ratio before exponentiation; null: none."
    )
    objective: ObjectiveName = Field(
        "ppo_clip",
        description="Policy loss: PPO's clip of each token's ratio, of the sequence's geometric mean (`gspo`), or of the "
        "response's product (`response_clip`, RLOO's); `cispo`, `sapo`, `gmpo`.",
    )
    sapo_temperatures: tuple[float, float] = Field(
        (1.0, 1.05), description="SAPO's temperatures of positive and of other advantages."
    )
    average: Literal["sequence", "token", "constant"] = Field(
        "sequence", description="Mean of token losses: by rollout, over all tokens, or the sum over max_completion_length."
    )
    kl: Literal["k1_reward", "k2_loss", "k3_loss", "k3_corrected"] = Field(
        "k1_reward",
        description="KL divergence to the initial policy: k1 in the reward, k2 or k3 in the loss, or k3 times the probability "
        "ratio in the loss (DeepSeek-V3.2).",
    )
    kl_coef: float = Field(0.0, ge=0, description="Weight of the KL divergence; 0: none, and no reference model in memory.")
    positive_nll: float = Field(0.0, ge=0, description="Weight of the likelihood of correct rollouts in the loss.")
    mask_truncated: bool = Field(
        False, description="Leave rollouts that are cut at max_completion_length out of the loss (overlong filtering)."
    )
    top_entropy: float = Field(
        1.0, gt=0, le=1, description="Fraction of tokens, those of highest entropy, with a policy gradient (0.2: 80/20 rule)."
    )
    entropy: EntropyConfig | None = Field(None, description="Bonus for entropy in the loss, fixed or adaptive; null: none.")
    covariance: CovarianceConfig | None = Field(None, description="Clip-Cov or KL-Cov, against loss of entropy; null: none.")
    importance: ImportanceConfig | None = Field(
        None, description="Correction for the sampler's probabilities; null: with an engine the defaults below, otherwise none."
    )
    gae_lambda: float = Field(0.95, ge=0, le=1, description="GAE's lambda of the policy's advantages.")
    gae_lambda_critic: float = Field(1.0, ge=0, le=1, description="GAE's lambda of the critic's targets.")
    length_alpha: float | None = Field(
        None, gt=0, description="GAE's lambda 1 - 1 / (length_alpha x length), at least 0.95 (VAPO); null: gae_lambda."
    )
    value_clip: float = Field(0.2, gt=0, description="Clip of a value's change in an update.")
    value_clip_high: float | None = Field(None, gt=0, description="Clip of a value's rise (T-PPO); null: value_clip.")
    window: int | None = Field(None, ge=1, description="Tokens added to a rollout per step (T-PPO); null: whole rollouts.")
    window_tail: int = Field(0, ge=0, description="Last tokens of an unfinished window that are not trained on (T-PPO).")

    @property
    def estimator(self) -> Estimator:
        """What ``advantage`` computes and needs."""
        return ESTIMATORS[self.advantage]

    @property
    def upper_clip(self) -> float:
        """Clip of the ratio above 1."""
        return self.clip_low if self.clip_high is None else self.clip_high

    @property
    def subtracts_kl(self) -> bool:
        """Whether the KL divergence is subtracted from the reward."""
        return bool(self.kl_coef) and self.kl == "k1_reward"

    @property
    def bootstraps(self) -> bool:
        """Whether a critic's errors reach the policy: with GAE's lambda below 1, or with windows; otherwise the critic is a
        baseline, and its errors only add noise."""
        short = self.gae_lambda < 1 or self.length_alpha is not None or self.window is not None
        return self.estimator.critic and short

    @field_validator("sapo_temperatures")
    @classmethod
    def _above_zero(cls, temperatures: tuple[float, float]) -> tuple[float, float]:
        if min(temperatures) <= 0:
            raise ValueError(f"sapo_temperatures must both be above 0, got {temperatures}")
        return temperatures

    @model_validator(mode="after")
    def _one_action(self) -> Self:
        if self.objective == "response_clip" and self.importance and self.importance.mode.startswith("token"):
            raise ValueError(
                f"objective response_clip has one ratio per response, but importance.mode {self.importance.mode} has one per "
                "token: use sequence_truncate or sequence_mask"
            )
        return self

    @field_validator("preclip")
    @classmethod
    def _around_one(cls, bounds: tuple[float, float] | None) -> tuple[float, float] | None:
        if bounds is not None and not 0 < bounds[0] < 1 < bounds[1]:
            raise ValueError(f"preclip bounds the probability ratio on both sides of 1, got {bounds}")
        return bounds

    @model_validator(mode="after")
    def _tail_in_a_window(self) -> Self:
        if self.window is not None and self.window_tail >= self.window:
            raise ValueError(f"window_tail {self.window_tail} is a part of the window of {self.window}: lower window_tail")
        return self

    @model_validator(mode="after")
    def _has_a_group(self) -> Self:
        if self.estimator.needs_groups and self.group_size < 2:
            raise ValueError(f"advantage {self.advantage} compares a group's rollouts; set group_size to 2 or more")
        if self.subtracts_kl and not self.estimator.kl_in_reward:
            raise ValueError(f"advantage {self.advantage} has no KL divergence in its reward; use kl: k2_loss or k3_loss")
        return self


class MethodConfig(TrainConfig, Method):
    """A method, which rollouts it is trained on, and how they are sampled."""

    learning_rate: float = Field(1e-6, gt=0, description="Peak learning rate of AdamW (paper, section 5).")
    epochs: float = Field(
        5.0, gt=0, description="Passes over the prompts; max_steps overrides it. With `window`, prompts x group_size windows."
    )
    rollout_batch_size: int = Field(256, ge=2, description="Rollouts per sampling, of all processes together.")
    batch_size: int = Field(128, ge=2, description="Rollouts of an optimizer step, of all processes together.")
    micro_batch_size: int = Field(2, ge=1, description="Rollouts per forward pass of a process; changes memory, not results.")
    iterations: int = Field(1, ge=1, description="Passes over each rollout batch.")
    sampling_batch_size: int | None = Field(None, ge=1, description="Rollouts decoded at a time; null: all of the process.")
    temperature: float = Field(1.0, gt=0, description="Sampling temperature of rollouts.")
    hot_token: HotTokenConfig | None = Field(None, description="Sample one early token hot (FIRE); null: none.")
    engine: EngineConfig | None = Field(None, description="Engine that samples rollouts; null: the built-in sampler.")
    dynamic_sampling: Literal["off", "refill", "oversample"] = Field(
        "off", description="Train on groups with right and wrong rollouts: sample until enough (`refill`) or in excess."
    )
    max_sampling_rounds: int = Field(
        10, ge=1, description="Maximum sampling rounds of a batch; then mixed groups are repeated."
    )
    difficulty_weighted: bool = Field(False, description="Prefer prompts of medium pass rate (RLCS); `attempts` is the prior.")
    value_learning_rate: float | None = Field(
        None, gt=0, description="Peak learning rate of the critic; null: twice the policy's."
    )
    value_pretrain_steps: int = Field(0, ge=0, description="Maximum steps of the critic alone, first; not part of max_steps.")
    value_pretrain_batch_size: int | None = Field(None, ge=1, description="Rollouts of a pretraining step; null: batch_size.")
    value_patience: int = Field(10, ge=1, description="Rollout batches without improvement that end its pretraining.")
    value_init: str | None = Field(None, description="Checkpoint or value model to start the critic from; null: the policy's.")

    @model_validator(mode="before")
    @classmethod
    def _corrects_for_the_engine(cls, values: Any) -> Any:
        """An engine samples slightly differently from the trainer, so it always has a correction."""
        with_engine = isinstance(values, dict) and values.get("engine") is not None
        return {**values, "importance": {}} if with_engine and values.get("importance") is None else values

    @property
    def steps_of_rollouts(self) -> int:
        return self.rollout_batch_size // self.batch_size * self.iterations

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.batch_size % self.micro_batch_size or self.rollout_batch_size % self.batch_size:
            raise ValueError(
                f"rollout_batch_size {self.rollout_batch_size} must be a multiple of batch_size {self.batch_size}, and that "
                f"of micro_batch_size {self.micro_batch_size}"
            )
        if self.rollout_batch_size % self.group_size:
            raise ValueError("rollout_batch_size must be a multiple of group_size")
        if (size := self.value_pretrain_batch_size) and self.rollout_batch_size % size:
            raise ValueError(f"value_pretrain_batch_size {size} must divide rollout_batch_size {self.rollout_batch_size}")
        period = self.steps_of_rollouts
        if self.save_steps % period:
            raise ValueError(
                f"save_steps {self.save_steps} must be a multiple of {period}, the optimizer steps per rollout batch: a "
                "checkpoint in the middle of a rollout batch could not be resumed exactly"
            )
        return self

    @model_validator(mode="after")
    def _without_dropout(self) -> Self:
        if self.lora and self.lora.dropout:
            raise ValueError(
                f"lora.dropout {self.lora.dropout:g}: with dropout every forward pass uses a different policy from the "
                "one that sampled, so the probability ratio is noisy even before the first update; set lora.dropout to 0"
            )
        return self

    @model_validator(mode="after")
    def _hot_token_in_a_rollout(self) -> Self:
        if self.hot_token and (self.hot_token.position or 0) >= self.max_completion_length:
            raise ValueError(
                f"hot_token.position {self.hot_token.position} is beyond the longest rollout, {self.max_completion_length} "
                "tokens: lower it"
            )
        return self

    @model_validator(mode="after")
    def _fits_the_advantage(self) -> Self:
        if self.estimator.critic and self.lora:
            raise ValueError("advantage gae trains a critic of the policy's full size; set lora: null")
        return self

    @model_validator(mode="after")
    def _fits_the_engine(self) -> Self:
        engine = self.engine
        if engine is None:
            return self
        if self.window:
            raise ValueError(
                "an engine takes text and completes whole turns, but a window continues from tokens: set window to null"
            )
        if engine.ahead and self.dynamic_sampling != "off":
            raise ValueError("dynamic_sampling chooses prompts by earlier rollouts: set engine.ahead to 0, or it to off")
        if engine.kind == "serve":
            if self.lora:
                raise ValueError("engine serve needs all weights; use colocate, server or the trainer's own decoder with lora")
            return self
        if self.lora and self.lora.quantize:
            raise ValueError(
                "vLLM is sent full-precision weights, which lora.quantize does not keep: set engine or lora.quantize to null"
            )
        if self.health.policy == "roll_back":
            raise ValueError("TRL's vLLM modes cannot be started twice in a process: set health.policy to stop or warn")
        if self.estimator.critic:
            raise ValueError("TRL's vLLM modes would receive the critic's weights with the policy's: use kind: serve with gae")
        return self

    @model_validator(mode="after")
    def _fits_the_sampling(self) -> Self:
        if self.dynamic_sampling != "off" and self.group_size < 2:
            raise ValueError("dynamic_sampling compares the rollouts of a prompt; set group_size to 2 or more")
        if not self.window:
            return self
        if self.dynamic_sampling != "off":
            raise ValueError("dynamic_sampling needs to know which rollouts are correct, and a window leaves them unfinished")
        if not self.estimator.critic or self.max_completion_length % self.window:
            raise ValueError(
                f"window {self.window} needs advantage gae and a max_completion_length that is a multiple of it; here they are "
                f"{self.advantage} and {self.max_completion_length}"
            )
        if self.subtracts_kl:
            raise ValueError(
                "window continues rollouts that older policies began, whose KL is not known: use kl: k2_loss or k3_loss, or "
                "kl_coef 0"
            )
        if self.hot_token:
            raise ValueError(
                "hot_token is one token of a whole rollout, but a window starts again at every step; set one to null"
            )
        if self.group_size > 1:
            raise ValueError("window samples prompts one by one, because the critic needs no groups: set group_size to 1")
        return self


class RLConfig(MethodConfig):
    """StableReinforce: lr 1e-6, no KL term, one sample per prompt, rollouts of 256 trained in batches of 128 (section 5).

    Every other method is a few differences from it: see ``configs/rl/``.
    """

    self_verify: bool = Field(False, description="Rollouts judge, verify the judgment, and revise it if found wrong (PAG).")
    revision_bonus: float = Field(1.0, ge=0, description="Bonus per unit that a revision gains on the judgment (PAG's alpha).")
    format_weight: float = Field(0.5, ge=0, description="Reward of a rollout in the template's format.")
    follows_weight: float = Field(
        0.0, ge=0, description="Reward of a verdict that follows from the checks of its checklist (template checklist)."
    )
    look_cost: float = Field(0.0, ge=0, description="Cost of each look at a part of an image (template look).")
    forced_answer_length: int | None = Field(
        None,
        ge=1,
        description="Tokens for the answer of a rollout that is cut while it thinks: its thinking is closed for it "
        "(GLM-4.1V-Thinking); null: it gets no answer.",
    )
    overlong_margin: int | None = Field(
        None, ge=1, description="Last tokens, over which the length penalty grows to 1; null: none."
    )
    reward_terms: list[str] = Field([], description="Your own terms: files with a REWARD_TERM, or installed entry points.")
    swap_weight: float = Field(0.0, ge=0, description="Reward for naming the winner that the other order's rollouts name.")
    process_reward: str | None = Field(None, description="Process reward model (`rewardlab prm`); null: none.")
    process_wrong_weight: float = Field(0.25, ge=0, description="Weight of its mean score if the verdict is wrong.")
    process_correct_weight: float = Field(0.025, ge=0, description="Weight of its mean score if it is correct.")
    consistency: ConsistencyConfig = nested(ConsistencyConfig, "The check that reasoning and verdict agree.")
    attempts: list[Attempts] = Field(
        ["2", "3", "unsolved"], description='Difficulty tags to train on; "": untagged. Without any tags the whole set is used.'
    )
    both_orders: bool = Field(True, description="Show each pair in both orders, instead of in the teacher's.")
    easy_ratio: float = Field(0.0, ge=0, description="Easy pairs (attempts 1) added for each hard one.")
    evaluation: EvaluationConfig = nested(EvaluationConfig, "Held-out pairs judged during the run.")

    @model_validator(mode="after")
    def _fits_the_reward(self) -> Self:
        if self.swap_weight and (not self.both_orders or self.rollout_batch_size % (2 * self.group_size)):
            raise ValueError(
                "swap_weight compares the two orders of a pair: set both_orders, and make rollout_batch_size a multiple of "
                "twice group_size"
            )
        if self.swap_weight and (self.dynamic_sampling != "off" or self.window):
            raise ValueError("dynamic_sampling and window sample single prompts, but swap_weight needs both orders of a pair")
        if self.process_reward and (not self.estimator.by_token or self.window):
            raise ValueError(
                "process_reward rewards single tokens of whole rollouts: it needs "
                "advantage reinforce_pp, reinforce_pp_baseline "
                "or gae, and no window"
            )
        if self.overlong_margin and self.overlong_margin > self.max_completion_length:
            raise ValueError("overlong_margin must not be longer than max_completion_length")
        if self.self_verify:
            self._check_dialogue()
        if self.forced_answer_length:
            self._check_forced_answers()
        return self

    @property
    def parts_of_one_turn(self) -> list[str]:
        """The keys that are set and do not go with tokens inside a rollout that the policy did not choose."""
        parts = {
            "advantage gae": self.estimator.critic,
            "self_verify": self.self_verify,
            "engine": self.engine is not None,
            "hot_token": self.hot_token is not None,
            "process_reward": self.process_reward is not None,
        }
        return [name for name, is_set in parts.items() if is_set]

    def _check_forced_answers(self) -> None:
        if others := self.parts_of_one_turn:
            raise ValueError(
                "forced_answer_length continues cut rollouts after tokens that the policy did not choose, which "
                f"{', '.join(others)} cannot: set it to null, or use another method"
            )

    def _check_dialogue(self) -> None:
        """Raise ValueError for what does not go with rollouts of several turns, each with a reward of its own."""
        if not self.estimator.critic or self.window:
            raise ValueError("self_verify gives each turn an advantage of its own: it needs advantage gae, and no window")
        if self.engine:
            raise ValueError("self_verify continues the tokens of earlier turns, but an engine takes text: set engine to null")
        if self.hot_token:
            raise ValueError(
                "hot_token is one token of a rollout, and self_verify samples several turns: set hot_token to null"
            )
        if self.swap_weight or self.process_reward:
            raise ValueError(
                "self_verify rewards turns, but swap_weight and process_reward reward whole rollouts: set them to 0 and null"
            )
        if self.mask_truncated:
            raise ValueError(
                "mask_truncated looks at a rollout's last token, and self_verify samples several turns: set it to false"
            )
        if self.positive_nll:
            raise ValueError(
                "positive_nll raises the likelihood of correct rollouts, but with self_verify a correct rollout "
                "may contain a wrong turn: set it to 0"
            )
