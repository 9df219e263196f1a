"""Reinforcement learning of judges: what is sampled, what is paid, and what each method changes of it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rewardlab.config.base import Schema, TrainConfig
from rewardlab.config.evaluation import EvaluationConfig, no_evaluation
from rewardlab.config.method import Method

Attempts = Literal["", "1", "2", "3", "unsolved"]  # "": no teacher was asked
CRITIC_KEYS = (
    "value_pretrain_steps",
    "value_pretrain_batch_size",
    "value_patience",
    "value_learning_rate",
    "value_init",
    "length_alpha",
)


class ConsistencyConfig(Schema):
    """Who says whether reasoning and verdict agree. ``weight`` 0 switches the reward and its requests off."""

    base_url: str = Field("http://127.0.0.1:8000/v1", description="URL of an OpenAI-compatible endpoint that serves `model`.")
    model: str = Field(
        "Qwen/Qwen2.5-VL-7B-Instruct", description="The model that is asked whether reasoning and verdict agree."
    )
    api_key_env: str = Field("OPENAI_API_KEY", description="Environment variable that holds the endpoint's key.")
    weight: float = Field(0.5, ge=0, description="Weight of the consistency reward; 0 switches it and its requests off.")
    concurrency: int = Field(64, ge=1, description="Requests in flight.")
    deadline_s: float = Field(20.0, gt=0, description="Seconds from its sending after which a question fails: it counts 0.")
    max_tokens: int = Field(8, ge=1, description="Most tokens of an answer.")


class HotTokenConfig(Schema):
    """FIRE (arXiv 2410.21236): one early token is drawn hot, for rollouts that differ; the defaults are verl's.

    Its own distribution is not the policy's, so nothing is learnt from it: it is left out of the loss.
    """

    temperature: float = Field(30.0, gt=0, description="Temperature of the hot token.")
    top_k: int = Field(16, ge=1, description="The hot token is one of this many most probable ones.")
    position: int | None = Field(
        None,
        ge=0,
        description="Which token is hot: 0 is the first; null: the first after an opening <think>, however many that is.",
    )


class EngineConfig(Schema):
    """Who samples rollouts instead of the trainer's own decoder.

    ``serve``: a ``vllm serve`` of its own on this machine, given new weights through a file after every update. ``colocate``
    and ``server``: TRL's two ways, vLLM within each process (asleep while training), or servers that take weights over NCCL;
    both need GPUs.
    """

    kind: Literal["serve", "colocate", "server"] = Field(
        "serve",
        description="Where vLLM runs: a server of this run's own, within each process, or servers that take weights over NCCL.",
    )
    args: str = Field("", description="serve: further options of `vllm serve`.")
    devices: str | None = Field(None, description="serve: its own cards, as CUDA_VISIBLE_DEVICES has them; null: a CPU's vLLM.")
    deadline_s: float = Field(600.0, gt=0, description="serve: seconds for one rollout, its retries included.")
    ahead: int = Field(
        0,
        ge=0,
        le=2,
        description="serve: rollout batches that are drawn while earlier ones are trained on, by weights that are as many "
        "batches old at most.",
    )
    base_url: str | None = Field(None, description="server: where `vllm serve` with --weight-transfer-config listens.")
    gpu_memory_utilization: float = Field(0.3, gt=0, le=1, description="colocate: vLLM's share of each card's memory.")
    tensor_parallel: int = Field(1, ge=1, description="colocate: cards that share one vLLM.")

    @model_validator(mode="after")
    def _says_where(self) -> Self:
        if self.kind == "server" and self.base_url is None:
            raise ValueError("kind server needs base_url, where `vllm serve` with --weight-transfer-config listens")
        if self.ahead and self.kind != "serve":
            raise ValueError("engine.ahead is of kind serve; TRL's two ways draw each batch when it is needed: set ahead to 0")
        return self


class MethodConfig(TrainConfig, Method):
    """A method, which rollouts it is trained on, and how they are sampled."""

    learning_rate: float = Field(1e-6, gt=0, description="Peak learning rate of AdamW (paper, section 5).")
    epochs: float = Field(
        5.0,
        gt=0,
        description="Passes over the prompts; max_steps overrides it. With `window` a pass is as many windows as there are "
        "prompts times group_size: rollouts of four windows begin a quarter of the prompts, and `truncated/passes` in the "
        "metrics says how often the prompts were begun.",
    )
    rollout_batch_size: int = Field(256, ge=2, description="Rollouts between two samplings, of all processes together.")
    batch_size: int = Field(128, ge=2, description="Rollouts of an optimizer step, of all processes together.")
    micro_batch_size: int = Field(
        2, ge=1, description="Rollouts that one process reads at once; memory grows with it, results do not change."
    )
    iterations: int = Field(1, ge=1, description="Passes over each rollout batch.")
    sampling_batch_size: int | None = Field(
        None,
        ge=1,
        description="Rollouts that a process's own decoder has in memory side by side; null: all of its rollout batch.",
    )
    temperature: float = Field(1.0, gt=0, description="Sampling temperature of rollouts.")
    hot_token: HotTokenConfig | None = Field(
        None, description="Draw one early token at a high temperature, for rollouts that differ (FIRE); null: none."
    )
    engine: EngineConfig | None = Field(None, description="Who samples rollouts; null: the trainer's own decoder.")
    dynamic_sampling: Literal["off", "refill", "oversample"] = Field(
        "off",
        description="Train on groups neither all correct nor all wrong: drawn until enough (`refill`), or once, in excess "
        "(`oversample`, by the share that was thrown away lately).",
    )
    max_sampling_rounds: int = Field(
        10, ge=1, description="Most rounds in which a batch is drawn; then the mixed groups that there are are repeated."
    )
    difficulty_weighted: bool = Field(
        False,
        description="Dynamic sampling draws prompts of middling pass rate more often (RLCS); a pass rate begins at what the "
        "pair's `attempts` say, and follows the prompt's rollouts.",
    )
    value_learning_rate: float | None = Field(
        None, gt=0, description="Peak learning rate of the critic; null: twice learning_rate, as VAPO has it."
    )
    value_pretrain_steps: int = Field(
        0,
        ge=0,
        description="Budget of steps of the critic alone, before the policy moves; with their rollouts they are no part of "
        "max_steps. health.policy decides where explained variance then is below health.min_explained_variance.",
    )
    value_pretrain_batch_size: int | None = Field(
        None,
        ge=1,
        description="Rollouts of a step of the critic's pretraining, of all processes; null: batch_size. value_pretrain_steps "
        "counts these steps.",
    )
    value_patience: int = Field(
        10,
        ge=1,
        description="The critic's pretraining ends when the mean explained variance of so many rollout batches has for as "
        "many in a row not risen above that of as many before, and is not below health.min_explained_variance.",
    )
    value_init: str | None = Field(None, description="Checkpoint or value model to start the critic from; null: the policy's.")

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
                f"lora.dropout {self.lora.dropout:g}: with dropout every pass is by another policy than the one that sampled, "
                "and the probability ratio is noise before the first update; set lora.dropout to 0"
            )
        return self

    @model_validator(mode="after")
    def _fits_the_advantage(self) -> Self:
        for name in () if self.estimator.critic else CRITIC_KEYS:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"advantage {self.advantage} has no critic; {name} goes with advantage gae")
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
                "an engine is asked in words and completes whole turns; a window continues tokens: set window to null"
            )
        if self.hot_token:
            raise ValueError("an engine draws every token at one temperature; set hot_token to null")
        if self.sampling_batch_size:
            raise ValueError("sampling_batch_size is of the trainer's own decoder; an engine manages its own memory")
        if self.importance_cap is None:
            raise ValueError("an engine samples a little unlike the trainer; set importance_cap (2 is usual) to correct for it")
        if engine.ahead and self.dynamic_sampling != "off":
            raise ValueError("dynamic_sampling chooses prompts by what was drawn before: set engine.ahead to 0, or it to off")
        if engine.kind == "serve":
            if self.lora:
                raise ValueError(
                    "engine serve is given all weights; use colocate, server or the trainer's own decoder with lora"
                )
            return self
        if self.lora and self.lora.quantize:
            raise ValueError("vLLM is given whole weights, and lora.quantize leaves none: set engine or lora.quantize to null")
        if self.health.policy == "roll_back":
            raise ValueError("TRL's vLLM modes cannot be started twice in a process: set health.policy to stop or warn")
        if self.estimator.critic:
            raise ValueError("TRL's vLLM modes would be sent the critic's weights with the policy's: use kind: serve with gae")
        return self

    @model_validator(mode="after")
    def _fits_the_sampling(self) -> Self:
        if self.difficulty_weighted and self.dynamic_sampling == "off":
            raise ValueError("difficulty_weighted is a part of dynamic_sampling; set it to refill or oversample")
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
                "hot_token is one token of a whole rollout, and a window begins anew in every step; set one to null"
            )
        if self.group_size > 1:
            raise ValueError("window draws its prompts one by one, for the critic needs no groups: set group_size to 1")
        return self


class RLConfig(MethodConfig):
    """StableReinforce: lr 1e-6, no KL term, one sample per prompt, rollouts of 256 trained in batches of 128 (section 5).

    Every other method is a few differences from it: see ``configs/rl/``.
    """

    self_verify: bool = Field(
        False, description="Rollouts judge, verify the judgment, and revise it where they find it wrong (PAG)."
    )
    revision_bonus: float = Field(
        1.0, ge=0, description="Bonus in multiples of a revised judgment's gain over the first (PAG's alpha)."
    )
    format_weight: float = Field(0.5, ge=0, description="Reward of a rollout in the template's format.")
    overlong_margin: int | None = Field(
        None, ge=1, description="Tokens before the longest over which length costs up to 1 (DAPO); null: length costs nothing."
    )
    reward_terms: list[str] = Field(
        [], description="Terms of your own: Python files with a REWARD_TERM, or entry points of rewardlab.reward_terms."
    )
    swap_weight: float = Field(0.0, ge=0, description="Reward for naming the winner that the other order's rollouts name.")
    process_reward: str | None = Field(
        None, description="Process reward model (OUT/final of `rewardlab prm`) that pays at the ends of steps; null: none."
    )
    process_wrong_weight: float = Field(0.25, ge=0, description="Weight of its mean score where the verdict is wrong.")
    process_correct_weight: float = Field(0.025, ge=0, description="Weight of its mean score where the verdict is correct.")
    consistency: ConsistencyConfig = Field(
        default_factory=lambda: ConsistencyConfig.model_validate({}),
        description="Who says whether reasoning and verdict agree, and what that is worth.",
    )
    attempts: list[Attempts] = Field(
        ["2", "3", "unsolved"],
        description='Difficulty tags of the pairs to train on; "" is that of pairs no teacher was asked about. Of a set '
        "without any other tag all labelled pairs are trained on.",
    )
    both_orders: bool = Field(True, description="Show each pair once in each order, instead of in the teacher's.")
    easy_ratio: float = Field(0.0, ge=0, description="Easy pairs (attempts 1) added for each hard one.")
    evaluation: EvaluationConfig = Field(
        default_factory=no_evaluation, description="Held-out pairs that are judged while the run goes on; by default none."
    )

    @model_validator(mode="after")
    def _fits_the_reward(self) -> Self:
        if self.swap_weight and (not self.both_orders or self.rollout_batch_size % (2 * self.group_size)):
            raise ValueError(
                "swap_weight compares the two orders of a pair: set both_orders, and make rollout_batch_size a multiple of "
                "twice group_size"
            )
        if self.swap_weight and (self.dynamic_sampling != "off" or self.window):
            raise ValueError("dynamic_sampling and window draw single prompts, and swap_weight needs both orders of a pair")
        if self.process_reward and (not self.estimator.by_token or self.window):
            raise ValueError(
                "process_reward pays single tokens of whole rollouts: it needs advantage reinforce_pp, reinforce_pp_baseline "
                "or gae, and no window"
            )
        if self.overlong_margin and self.overlong_margin > self.max_completion_length:
            raise ValueError("overlong_margin is a part of max_completion_length and cannot be longer")
        if self.self_verify:
            self._check_dialogue()
        return self

    def _check_dialogue(self) -> None:
        """Raise ValueError for what does not go with rollouts of several turns, each with a reward of its own."""
        if not self.estimator.critic or self.window:
            raise ValueError("self_verify gives each turn an advantage of its own: it needs advantage gae, and no window")
        if self.engine:
            raise ValueError(
                "self_verify continues the tokens of earlier turns, an engine is asked in words: set engine to null"
            )
        if self.hot_token:
            raise ValueError(
                "hot_token is one token of a rollout, and self_verify samples several turns: set hot_token to null"
            )
        if self.swap_weight or self.process_reward:
            raise ValueError("self_verify pays turns, swap_weight and process_reward whole rollouts: set them to 0 and null")
        if self.positive_nll:
            raise ValueError(
                "positive_nll raises the likelihood of correct rollouts, and with self_verify a turn of one may be "
                "wrong: set it to 0"
            )
