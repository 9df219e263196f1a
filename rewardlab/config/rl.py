"""Reinforcement learning: what tells one method from another, what a judge is paid for, and what a policy under a judge."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from rewardlab.config.base import Schema, TrainConfig

Attempts = Literal["", "1", "2", "3", "unsolved"]  # "": no teacher was asked


class ConsistencyConfig(Schema):
    """Who says whether reasoning and verdict agree. ``weight`` 0 switches the reward and its requests off."""

    base_url: str = "http://127.0.0.1:8000/v1"
    model: str = "Qwen/Qwen2.5-VL-7B-Instruct"
    api_key_env: str = "OPENAI_API_KEY"
    weight: float = Field(0.5, ge=0)
    concurrency: int = Field(64, ge=1)
    deadline_s: float = Field(20.0, gt=0, description="after it the consistency is 0 and counted as failed")
    max_tokens: int = Field(8, ge=1)


class HotTokenConfig(Schema):
    """FIRE (arXiv 2410.21236): one early token is drawn hot, for rollouts that differ; the defaults are verl's.

    Its own distribution is not the policy's, so nothing is learnt from it: it is left out of the loss.
    """

    temperature: float = Field(30.0, gt=0)
    top_k: int = Field(16, ge=1)
    position: int | None = Field(
        None, ge=0, description="0 is the first token; null: the first after an opening <think>, however many that is"
    )


class EngineConfig(Schema):
    """Who samples rollouts instead of the trainer's own decoder.

    ``serve``: a ``vllm serve`` of its own on this machine, given new weights through a file after every update. ``colocate``
    and ``server``: TRL's two ways, vLLM within each process (asleep while training), or servers that take weights over NCCL;
    both need GPUs.
    """

    kind: Literal["serve", "colocate", "server"] = "serve"
    args: str = Field("", description="serve: further options of `vllm serve`")
    devices: str | None = Field(None, description="serve: its own cards, as CUDA_VISIBLE_DEVICES has them; null: a CPU's vLLM")
    deadline_s: float = Field(600.0, gt=0, description="serve: for one rollout, its retries included")
    base_url: str | None = Field(None, description="server: where `vllm serve` with --weight-transfer-config listens")
    gpu_memory_utilization: float = Field(0.3, gt=0, le=1, description="colocate: vLLM's share of each card")
    tensor_parallel: int = Field(1, ge=1, description="colocate: cards that share one vLLM")

    @model_validator(mode="after")
    def _says_where(self) -> Self:
        if self.kind == "server" and self.base_url is None:
            raise ValueError("kind server needs base_url, where `vllm serve` with --weight-transfer-config listens")
        return self


class MethodConfig(TrainConfig):
    """How rollouts become a loss: the fields of :class:`rewardlab.rl.reference.Method`, and which rollouts are drawn."""

    learning_rate: float = Field(1e-6, gt=0)
    epochs: float = Field(5.0, gt=0)
    rollout_batch_size: int = Field(256, ge=2, description="rollouts between two samplings, of all processes")
    batch_size: int = Field(128, ge=2, description="rollouts per optimizer step")
    micro_batch_size: int = Field(2, ge=1)
    group_size: int = Field(1, ge=1)
    iterations: int = Field(1, ge=1, description="passes over each rollout batch")
    max_completion_length: int = Field(1024, ge=1)
    rollouts_at_once: int | None = Field(
        None, ge=1, description="that a process's own decoder has in memory side by side; null: all of its rollout batch"
    )
    temperature: float = Field(1.0, gt=0)
    hot_token: HotTokenConfig | None = None
    engine: EngineConfig | None = Field(None, description="who samples rollouts; null: the trainer's own decoder")
    importance_cap: float | None = Field(None, gt=0, description="bound on p_trainer / p_sampler, multiplied in; null: trusted")
    dynamic_sampling: Literal["off", "refill", "oversample"] = Field(
        "off", description="train on groups neither all right nor all wrong: drawn until there are enough, or once, in excess"
    )
    max_sampling_rounds: int = Field(10, ge=1, description="of refill; then the undecided groups found are repeated")
    difficulty_weighted: bool = Field(False, description="dynamic sampling draws prompts of middling pass rate more often")
    window: int | None = Field(None, ge=1, description="tokens a rollout grows by per step (T-PPO); null: all at once")
    advantage: Literal["reinforce_pp", "reinforce_pp_baseline", "grpo", "dr_grpo", "rloo", "gae"] = "reinforce_pp"
    whiten_by: Literal["token", "sequence"] = Field("token", description="what counts alike in mean and deviation")
    outliers: Literal["delete", "clip", "keep"] = Field("delete", description="of whitened advantages beyond outlier_sigma")
    outlier_sigma: float = Field(3.0, gt=0, description="in deviations")
    clip_low: float = Field(0.2, gt=0)
    clip_high: float | None = Field(None, gt=0, description="upper clip where it differs (DAPO's clip-higher)")
    dual_clip: float | None = Field(None, gt=1, description="bound on the loss of a token of negative advantage")
    preclip: tuple[float, float] | None = Field((1e-3, 1e3), description="of the probability ratio, before exp; null: none")
    ratio: Literal["token", "sequence"] = "token"
    average: Literal["sequence", "token", "constant"] = Field(
        "sequence", description="of token losses: by rollout, over all tokens, or the sum over max_completion_length"
    )
    kl: Literal["k1_reward", "k2_loss", "k3_loss"] = "k1_reward"
    kl_coef: float = Field(0.0, ge=0)
    positive_nll: float = Field(0.0, ge=0, description="weight of the likelihood of right rollouts")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="of the policy's advantages (advantage: gae)")
    gae_lambda_critic: float = Field(1.0, ge=0, le=1, description="of what the critic is fitted to")
    length_alpha: float | None = Field(None, gt=0, description="lambda 1 - 1 / (alpha length), at least 0.95 (VAPO)")
    value_clip: float = Field(0.2, gt=0)
    value_learning_rate: float | None = Field(None, gt=0, description="null: twice learning_rate, as VAPO has it")
    value_pretrain_steps: int = Field(0, ge=0, description="at most so many steps of the critic alone, before the policy moves")
    value_patience: int = Field(5, ge=1, description="pre-training ends when explained variance has not risen for so many logs")
    value_init: str | None = Field(None, description="checkpoint or value model to start the critic from; null: the policy's")

    @field_validator("preclip")
    @classmethod
    def _around_one(cls, bounds: tuple[float, float] | None) -> tuple[float, float] | None:
        if bounds is not None and not 0 < bounds[0] < 1 < bounds[1]:
            raise ValueError(f"preclip bounds the probability ratio on both sides of 1, got {bounds}")
        return bounds

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.batch_size % self.micro_batch_size or self.rollout_batch_size % self.batch_size:
            raise ValueError(
                f"rollout_batch_size {self.rollout_batch_size} must be a multiple of batch_size {self.batch_size}, and that "
                f"of micro_batch_size {self.micro_batch_size}"
            )
        if self.rollout_batch_size % self.group_size:
            raise ValueError("rollout_batch_size must be a multiple of group_size")
        period = self.rollout_batch_size // self.batch_size * self.iterations
        if self.save_steps % period:
            raise ValueError(
                f"save_steps {self.save_steps} must be a multiple of {period}, the optimizer steps per rollout batch: a "
                "checkpoint in the middle of a rollout batch could not be resumed exactly"
            )
        return self

    @model_validator(mode="after")
    def _fits_the_advantage(self) -> Self:
        if self.advantage not in ("reinforce_pp", "gae") and self.group_size < 2:
            raise ValueError(f"advantage {self.advantage} compares a group's rollouts; set group_size to 2 or more")
        if self.kl == "k1_reward" and self.kl_coef and self.advantage in ("grpo", "dr_grpo", "rloo"):
            raise ValueError(f"advantage {self.advantage} is one number per rollout; use kl: k2_loss or k3_loss")
        if self.value_pretrain_steps and self.advantage != "gae":
            raise ValueError(f"advantage {self.advantage} has no critic; value_pretrain_steps goes with advantage gae")
        if self.advantage == "gae" and self.lora:
            raise ValueError("advantage gae trains a critic of the policy's full size; set lora: null")
        return self

    @model_validator(mode="after")
    def _fits_the_engine(self) -> Self:
        if self.engine and (self.window or self.hot_token):
            raise ValueError("an engine samples whole rollouts, each token alike: set window and hot_token to null")
        if self.engine and self.rollouts_at_once:
            raise ValueError("rollouts_at_once is of the trainer's own decoder; an engine minds its memory itself")
        if self.engine and self.engine.kind != "serve" and self.health.policy == "roll_back":
            raise ValueError("TRL's vLLM modes cannot be started twice in a process: set health.policy to stop or warn")
        if self.engine and self.engine.kind != "serve" and self.advantage == "gae":
            raise ValueError("TRL's vLLM modes would be sent the critic's weights with the policy's: use kind: serve with gae")
        if self.engine and self.engine.kind == "serve" and self.lora:
            raise ValueError("engine serve is given whole weights; use colocate, server or the trainer's own decoder with lora")
        if self.engine and self.importance_cap is None:
            raise ValueError("an engine samples a little unlike the trainer; set importance_cap (2 is usual) to correct for it")
        return self

    @model_validator(mode="after")
    def _fits_the_sampling(self) -> Self:
        if self.dynamic_sampling != "off" and (self.group_size < 2 or self.window):
            raise ValueError("dynamic_sampling needs group_size of 2 or more, and no window")
        if self.difficulty_weighted and self.dynamic_sampling == "off":
            raise ValueError("difficulty_weighted is a part of dynamic_sampling; set it to refill or oversample")
        if self.window and (self.advantage != "gae" or self.max_completion_length % self.window):
            raise ValueError("window needs advantage gae and a max_completion_length that is a multiple of it")
        if self.window and (self.kl_coef or self.importance_cap or self.hot_token or self.group_size > 1):
            raise ValueError("window goes with neither kl_coef nor importance_cap nor hot_token nor group_size above 1")
        return self


class RLConfig(MethodConfig):
    """StableReinforce: lr 1e-6, no KL term, one sample per prompt, rollouts of 256 trained in batches of 128 (section 5).

    Every other method is a few differences from it: see ``configs/rl/``.
    """

    self_verify: bool = Field(False, description="rollouts judge, verify the judgment, and revise it where they find it wrong")
    revision_bonus: float = Field(1.0, ge=0, description="times the gain of a revised judgment over the first (PAG's alpha)")
    format_weight: float = Field(0.5, ge=0)
    overlong_margin: int | None = Field(None, ge=1, description="tokens before the longest over which length costs up to 1")
    swap_weight: float = Field(0.0, ge=0, description="paid for naming the winner that the other order's rollouts name")
    process_reward: str | None = Field(
        None, description="process reward model (`rewardlab prm`) that pays at step ends; null: none"
    )
    process_wrong_weight: float = Field(0.25, ge=0, description="of its mean score where the verdict is not right")
    process_correct_weight: float = Field(0.025, ge=0, description="where it is")
    consistency: ConsistencyConfig = Field(default_factory=lambda: ConsistencyConfig.model_validate({}))
    attempts: list[Attempts] = Field(["2", "3", "unsolved"], description="difficulty tags to train on")
    both_orders: bool = Field(True, description="show each pair once in each order, instead of in the teacher's")
    easy_ratio: float = Field(0.0, ge=0, description="easy pairs (attempts 1) added per hard one")

    @model_validator(mode="after")
    def _fits_the_reward(self) -> Self:
        if self.swap_weight and (not self.both_orders or self.rollout_batch_size % (2 * self.group_size)):
            raise ValueError(
                "swap_weight compares the two orders of a pair: set both_orders, and make rollout_batch_size a multiple of "
                "twice group_size"
            )
        if self.swap_weight and (self.dynamic_sampling != "off" or self.window):
            raise ValueError("dynamic_sampling and window draw single prompts, and swap_weight needs both orders of a pair")
        if self.process_reward and (self.advantage not in ("reinforce_pp", "reinforce_pp_baseline", "gae") or self.window):
            raise ValueError(
                "process_reward pays single tokens of whole rollouts: it needs advantage reinforce_pp, reinforce_pp_baseline "
                "or gae, and no window"
            )
        if self.overlong_margin and self.overlong_margin > self.max_completion_length:
            raise ValueError("overlong_margin is a part of max_completion_length and cannot be longer")
        if self.self_verify and (self.advantage != "gae" or self.window or self.dynamic_sampling != "off" or self.kl_coef):
            raise ValueError("self_verify needs advantage gae, and neither window nor dynamic_sampling nor kl_coef")
        if self.self_verify and self.engine:
            raise ValueError("self_verify is sampled turn by turn by the trainer's own decoder; set engine to null")
        if self.self_verify and (self.swap_weight or self.process_reward or self.importance_cap or self.positive_nll):
            raise ValueError("self_verify goes with neither swap_weight nor process_reward nor importance_cap nor positive_nll")
        return self


class PolicyConfig(MethodConfig):
    """A policy trained on a judge's word: Pairwise-RL (arXiv 2504.04950) with the rates of Seed1.5-VL (arXiv 2505.07062).

    The reward of a response is the probability that it beats an anchor, both orders asked. The method's fields mean, and
    default to, what they do for judges (``configs/rl/``); Pairwise-RL's own PPO is ``configs/policy/pairwise_rl.yaml``.
    """

    template: str = "answer"
    learning_rate: float = Field(6e-7, gt=0)
    value_learning_rate: float | None = Field(7.5e-7, gt=0)
    judge: str = Field(
        "prob:runs/rl/final", description="as in `rewardlab bench run`, or rm:FOLDER, a scalar head that sees no anchor"
    )
    judge_votes: int = Field(1, ge=1, description="rationales (or votes) in each order of a comparison")
    judge_max_tokens: int = Field(1024, ge=1)
    judge_batch_size: int = Field(64, ge=1)
    anchor: Literal["preferred", "start", "best", "group"] = Field(
        "preferred",
        description="the pair's better response, the first policy's greedy one, the best of its anchor_samples, or the other "
        "rollouts of the group",
    )
    anchor_samples: int = Field(4, ge=2, description="of the first policy, for anchor best: the one the judge prefers stays")
    phi: Literal["probability", "centered", "logit", "binary"] = Field(
        "probability", description="what winning with probability p is worth"
    )
    verified: bool = Field(False, description="pairs of a category that a rule can check (math, number, ...) are paid by it")
    contract: Literal["boxed", "box", "answer"] = Field("boxed", description="where a checkable answer stands")
    thinking: bool = Field(True, description="responses to checkable questions must open with <think>...</think>")

    @model_validator(mode="after")
    def _one_scale(self) -> Self:
        if self.verified and (self.phi != "probability" or self.judge.startswith("rm:")):
            raise ValueError("verified mixes rules that pay 0 to 1 with the judge: it needs phi probability and no scalar head")
        return self

    @model_validator(mode="after")
    def _whole_answers(self) -> Self:
        if self.window:
            raise ValueError("window lets rollouts grow over steps, and a judge is asked about whole answers: set it to null")
        return self

    @model_validator(mode="after")
    def _has_a_group(self) -> Self:
        if self.anchor == "group" and self.group_size < 2:
            raise ValueError("anchor group compares a group's rollouts; set group_size to 2 or more")
        return self
