"""Reinforcement learning of a judge on the pairs that its teacher found hard, or on all untagged pairs."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from accelerate.utils import gather_object
from transformers import PreTrainedModel, TrainerCallback

from rewardlab.config import RLConfig
from rewardlab.config.rl import Attempts
from rewardlab.data.pair_table import pair_facts, select_pairs
from rewardlab.errors import ConfigError, DataError, EndpointError
from rewardlab.models.checkpoints import load_template_for
from rewardlab.models.families import end_token_ids
from rewardlab.models.loading import load_processor
from rewardlab.processes import is_main
from rewardlab.prompts import Template, require_one_turn, require_pairs, require_turns
from rewardlab.reporting.progress import log_line
from rewardlab.rewards.consistency import EndpointConsistencyJudge
from rewardlab.rewards.judgment import terms_of
from rewardlab.rewards.rollout import RewardFunction
from rewardlab.rewards.scorer import JudgmentReward, JudgmentScorer
from rewardlab.rewards.steps import ProcessReward
from rewardlab.samplers.hf import special_tokens, thinking_opening
from rewardlab.training.policy_gradient.build import make_trainer, run_method
from rewardlab.training.policy_gradient.rollouts.strategies import (
    DialogueRollouts,
    ForcedAnswerRollouts,
    TurnRollouts,
    closing_tokens,
    longest_dialogue,
)
from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.run.evaluation import plan_evaluation
from rewardlab.training.run.folder import SAMPLES, data_workers
from rewardlab.training.run.held_out import hold_out
from rewardlab.training.run.inputs import config_of, count_ties, leave_out_unreadable, pairs_of, refuse_repeated_ids
from rewardlab.training.run.preflight import drop_too_long, room_between_turns
from rewardlab.training.run.rows import PromptReader, PromptRows
from rewardlab.types import BOTH_ORDERS, PreferencePair
from rewardlab.verdicts.formats import answer_opening
from rewardlab.verdicts.parse import CHECKLIST


def hard_pairs(pairs: Sequence[PreferencePair], config: RLConfig) -> Sequence[PreferencePair]:
    """Return the pairs whose tag is in ``config.attempts``, plus ``easy_ratio`` easy ones per hard one (chosen by the seed);
    all labelled pairs if none has a tag. Raise DataError if no pair is hard, or none is labelled."""
    labelled = [(number, facts.attempts) for number, facts in enumerate(pair_facts(pairs)) if facts.preferred is not None]
    if not labelled:
        raise DataError("no pair says which response is preferred; give `preferred` as 0 or 1")
    tags = sorted({attempts for _, attempts in labelled})
    if unknown := [tag for tag in tags if tag not in get_args(Attempts)]:
        raise DataError(
            f'the pairs\' attempts are {unknown[0]!r}, which is not a difficulty tag; expected one of {get_args(Attempts)}, "" '
            "for untagged pairs"
        )
    if tags == [""] and "" not in config.attempts:
        if is_main():
            log_line(f"these pairs have no difficulty tags: training on all {len(labelled):,} labelled ones")
        return select_pairs(pairs, [number for number, _ in labelled])
    hard = [number for number, attempts in labelled if attempts in config.attempts]
    if not hard:
        raise DataError(
            f"no pair has one of the tags attempts={config.attempts}, only {tags}; set attempts='[...]', or distill again"
        )
    easy = [number for number, attempts in labelled if attempts == "1" and "1" not in config.attempts]
    num_easy = min(len(easy), round(config.easy_ratio * len(hard)))
    return select_pairs(pairs, hard + random.Random(config.seed).sample(easy, num_easy))


def rl_rows(
    pairs: Sequence[PreferencePair],
    template: Template,
    *,
    both_orders: bool,
    specials: tuple[str, ...] = (),
    threads: int = 1,
) -> PromptRows:
    """Return one row per pair and order. ``specials`` are texts that a tokenizer takes for special tokens; ``threads`` read and
    decode concurrently."""
    keys = [
        (number, order)
        for number, facts in enumerate(pair_facts(pairs))
        for order in (BOTH_ORDERS if both_orders else (facts.order,))
    ]
    return PromptRows(PromptReader(pairs, template, specials), keys, threads)


def consistency_judge(config: RLConfig) -> EndpointConsistencyJudge | None:
    """Return the consistency judge; None if its weight is 0."""
    if not config.consistency.weight:
        return None
    return EndpointConsistencyJudge(config.consistency, api_key=os.environ.get(config.consistency.api_key_env, "none"))


def judgment_reward_of(config: RLConfig, template: Template, model: Any, out: Path) -> JudgmentReward:
    """Return the reward function that a config describes."""
    judge = consistency_judge(config)
    scorer = JudgmentScorer(template.verdict_format, judge, deadline_s=2 * config.consistency.deadline_s)
    ends, samples = end_token_ids(model), out / SAMPLES
    return JudgmentReward(scorer, judge, terms_of(config), ends=ends, samples=samples, gather=gather_object)


class CloseOnTrainEnd(TrainerCallback):
    """Closes the connections of a reward function when training ends."""

    def __init__(self, reward: JudgmentReward) -> None:
        self._reward = reward

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self._reward.close()


def build_trainer(
    rows: PromptRows,
    config: RLConfig,
    model: PreTrainedModel,
    processor: Any,
    template: Template,
    out: Path,
    *,
    reward: RewardFunction | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    **more: Any,
) -> PolicyTrainer:
    """Return the trainer of a judge, ready to run. ``reward`` replaces the config's; ``more`` goes to ``make_trainer``."""
    all_callbacks = list(callbacks)
    if reward is None:
        reward = judgment_reward_of(config, template, model, out)
        all_callbacks.append(CloseOnTrainEnd(reward))
    if config.self_verify:
        more = {"rollouts": DialogueRollouts(processor, bonus=config.revision_bonus), **more}
    if config.forced_answer_length:
        closing = answer_opening(template.verdict_format)
        more = {"rollouts": ForcedAnswerRollouts(processor, closing, config.forced_answer_length), **more}
    if template.turns:
        more = {"rollouts": TurnRollouts(processor, template.turns), **more}
    if config.process_reward:
        load = partial(ProcessReward.load, config, template, processor.tokenizer)
        more = {"process_reward": lambda device: load(device=device), **more}
    facts = pair_facts(rows.reader.pairs)
    more = {"attempts": [facts[number].attempts for number, _ in rows.keys], **more}
    orders_per_pair = 2 if config.swap_weight else 1
    return make_trainer(
        rows, config, model, processor, reward, out, orders_per_pair=orders_per_pair, callbacks=all_callbacks, **more
    )


def train_rl(
    pairs: Sequence[PreferencePair] | str | Path,
    config: RLConfig | str | Path | None = None,
    out: str | Path = "runs/rl",
    *,
    reward: RewardFunction | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    **overrides: Any,
) -> Path:
    """Run (or resume) the method of ``config`` from ``config.model``; return the final checkpoint folder. ``pairs`` may be a
    data file, ``config`` a YAML file or a name such as ``rl/grpo``; ``overrides`` are keys of the config; ``reward`` replaces
    the config's rewards. Raise CheckpointError for a checkpoint of another template, DataError without hard pairs,
    EndpointError if the consistency model does not answer, ConfigError for a finished or different run in ``out``.
    """
    config, out = config_of(RLConfig, config, **overrides), Path(out)
    pairs = pairs_of(pairs, config.frames, config.model)
    refuse_repeated_ids(pairs)
    count_ties(pairs)
    readable = leave_out_unreadable(pairs, out)
    pairs = readable.pairs
    template = require_pairs(load_template_for(config.model, config.template), "rl")
    terms_of(config)  # before anything is loaded
    if config.follows_weight and template.verdict_format != CHECKLIST:
        raise ConfigError(f"follows_weight: template {template.name} has no checks; use template=checklist, or leave it 0")
    if config.consistency.reader == "blind" and config.consistency.weight and template.verdict_format != CHECKLIST:
        raise ConfigError(
            f"consistency.reader=blind reads checks, and template {template.name} has none; use template=checklist"
        )
    if template.turns and config.overlong_margin:
        raise ConfigError(
            f"overlong_margin: template {template.name} has several turns, each of its own length; set it to null"
        )
    if config.look_cost and not template.looks:
        raise ConfigError(
            f"look_cost: judgments of template {template.name} do not look again; use template=look, or leave it 0"
        )
    if config.forced_answer_length and not answer_opening(template.verdict_format):
        raise ConfigError(
            f"forced_answer_length: judgments in format {template.verdict_format} have no </think> between reasoning and "
            "verdict; set it to null, or use a template of format think_answer, answer_sentence or box_tokens"
        )
    if others := [*config.parts_of_one_turn, *(["forced_answer_length"] if config.forced_answer_length else [])]:
        require_one_turn(template, others[0])
    held_out = hold_out(pairs, config, template, num_left_out=readable.num_labelled_left_out)
    hard = hard_pairs(held_out.trained, config)
    if reward is None:
        require_consistency_judge(config)
    room = config.max_completion_length
    if config.self_verify:
        room = longest_dialogue(load_processor(config.model), room)
    if template.turns:
        require_turns(config.model, template, thinking_opening(load_processor(config.model)))
    room += (template.num_turns - 1) * (room + room_between_turns(config, template))
    if config.forced_answer_length:
        closing = closing_tokens(load_processor(config.model), answer_opening(template.verdict_format))
        room += len(closing) + config.forced_answer_length
    hard = drop_too_long(hard, config, template, out, room=room)
    if not config.easy_ratio:  # else it depends on all pairs which easy ones are drawn
        readable = readable.without_long(hard)
    specials = special_tokens(load_processor(config.model).tokenizer)
    rows = rl_rows(hard, template, both_orders=config.both_orders, specials=specials, threads=data_workers(config))
    num_rollouts = len(rows) * config.group_size
    if num_rollouts < config.rollout_batch_size:
        raise DataError(
            f"{len(rows):,} hard pairs and orders make {num_rollouts:,} rollouts, fewer than the {config.rollout_batch_size:,} "
            "of one batch; add pairs (easy_ratio, both_orders), or lower rollout_batch_size and batch_size"
        )
    build = partial(build_trainer, rows, template=template, reward=reward, callbacks=callbacks)
    data = readable.fingerprint + held_out.fingerprint
    evaluation = plan_evaluation(held_out.evaluated, config, template)
    return run_method(
        build, config, out, data, template, name="rl", num_rows=len(rows), readable=readable, evaluation=evaluation
    )


def require_consistency_judge(config: RLConfig) -> None:
    """Raise EndpointError if the consistency model does not answer: better now than after hours without its reward."""
    judge = consistency_judge(config)
    if judge is None:
        return
    try:
        asyncio.run(judge.check())
    except EndpointError as error:
        raise EndpointError(
            f"the consistency model does not answer: {error} Serve {config.consistency.model} there, set another endpoint "
            "with `consistency.base_url`, or switch this reward off with `consistency.weight=0`"
        ) from error
