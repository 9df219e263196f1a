"""Training a policy on a judge's word: its answers to questions about images, paid by the chance of beating an anchor."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object

from rewardlab.config import PolicyConfig
from rewardlab.data.pair_table import light_pairs
from rewardlab.errors import ConfigError
from rewardlab.judging.engines import open_generative_judge
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.spec import JudgeSpec
from rewardlab.models.checkpoints import VERDICT_TEMPERATURE
from rewardlab.models.families import end_token_ids
from rewardlab.models.loading import load_processor
from rewardlab.prompts import Template, load_template
from rewardlab.rewards.pairwise import LeastReward, PairwiseReward, PolicyReward, ScalarReward
from rewardlab.rewards.policy_function import AnchoredReward, AnchorsById, Observer, anchors_of
from rewardlab.rewards.policy_signs import JudgeChecks, known_answers
from rewardlab.rewards.rollout import Row
from rewardlab.rewards.verifiable.extraction import Contract
from rewardlab.rewards.verifiable.hybrid import all_verifiers
from rewardlab.rewards.verified import Rightness, VerifiedReward, by_rules, check_truths, exactly
from rewardlab.samplers.base import VLLM
from rewardlab.samplers.hf import special_tokens
from rewardlab.training.policy_gradient.build import make_trainer, run_method
from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.run.folder import SAMPLES, data_workers
from rewardlab.training.run.inputs import leave_out_unreadable, refuse_repeated_ids
from rewardlab.training.run.preflight import drop_too_long
from rewardlab.training.run.rows import PromptReader, PromptRows
from rewardlab.types import Order, PreferencePair


def open_reward(config: PolicyConfig, pairs: Sequence[PreferencePair]) -> PolicyReward:
    """Return the reward of a config. Raise ConfigError and CheckpointError for a judge that cannot be opened, EndpointError for
    an endpoint that does not answer, DataError for pairs that cannot be rewarded."""
    if config.judge is None:
        return _verified(None, config, pairs)
    spec = JudgeSpec.parse(config.judge, "rm")
    if spec.engine == "rm":
        return ScalarReward(Path(spec.target), batch_size=config.judge_batch_size)
    specs = [JudgeSpec.parse(name) for name in (config.judge, *config.other_judges)]
    folders = [(each.by_probability, Path(each.target).resolve()) for each in specs if Path(each.target).is_dir()]
    if len(set(folders)) < len(folders):
        raise ConfigError("other_judges name a judge twice; name each judge once")
    judges = [_open_judge(name, config) for name in (config.judge, *config.other_judges)]
    checks = [_checks(config, judges[0], pairs), *[None] * len(config.other_judges)]
    rewards = [
        PairwiseReward(judge, num_votes=config.judge_votes, phi=config.phi, seed=config.seed, checks=of_judge)
        for judge, of_judge in zip(judges, checks, strict=True)
    ]
    pairwise: PolicyReward = rewards[0] if len(rewards) == 1 else LeastReward(rewards)
    return _verified(pairwise, config, pairs) if config.verified else pairwise


def _verified(pairwise: PolicyReward | None, config: PolicyConfig, pairs: Sequence[PreferencePair]) -> VerifiedReward:
    verified = VerifiedReward(all_verifiers(), pairwise, contract=Contract(config.contract), thinking=config.thinking)
    verified.check(pairs)
    return verified


def _open_judge(name: str, config: PolicyConfig) -> GenerativeJudge:
    spec = JudgeSpec.parse(name, "rm")
    if spec.engine == VLLM:
        raise ConfigError(
            f"judge: {name}: every process of the run would start vLLM on its own GPU, which uses 90 % of "
            f"its memory and leaves too little for training; serve it on other GPUs (`vllm serve {spec.target}`) and name "
            f"judge: openai:{spec.target}@http://HOST:8000/v1, or use transformers: prob:{spec.target} or hf:{spec.target}"
        )
    judge = open_generative_judge(name, max_tokens=config.judge_max_tokens, batch_size=config.judge_batch_size)
    judge.check()
    return judge


def _checks(config: PolicyConfig, judge: GenerativeJudge, pairs: Sequence[PreferencePair]) -> JudgeChecks:
    """Return the checks of the judge. Raise what opening the second judge raises."""
    signs, second = config.signs, None
    if signs.second_judge and signs.sample:
        second = open_generative_judge(
            signs.second_judge, max_tokens=config.judge_max_tokens, batch_size=config.judge_batch_size
        )
        second.check()
    return JudgeChecks(
        judge,
        sample=signs.sample,
        second_judge=second,
        canaries=pairs,
        num_canaries=signs.canaries,
        num_votes=config.judge_votes,
        seed=config.seed,
    )


def rightness_of(config: PolicyConfig, pairs: Sequence[PreferencePair]) -> Rightness | None:
    """Return the function that ``signs.truth`` names, which knows right answers; None for ``none``. Raise DataError for a truth
    that its rule cannot read."""
    if config.signs.truth == "exact":
        return exactly
    if config.signs.truth == "none":
        return None
    verifiers, contract = all_verifiers(), Contract(config.contract)
    if not config.verified:  # else they have been checked
        check_truths(pairs, verifiers, contract, own_only=True)
    return by_rules(verifiers, contract)


def policy_rows(
    pairs: Sequence[PreferencePair], template: Template, *, specials: tuple[str, ...] = (), threads: int = 1
) -> PromptRows:
    """Return one row per question; ``order`` is there because a prompt is named by pair and order, and is always the same."""
    keys = [(number, Order.GIVEN) for number in range(len(pairs))]
    return PromptRows(PromptReader(pairs, template, specials), keys, threads)


def kl_coef_by_route(
    config: PolicyConfig, reward: PolicyReward, pairs: Sequence[PreferencePair]
) -> Callable[[Row], float] | None:
    """Return a row's KL coefficient: ``verified_kl_coef`` if a rule rewards its pair, else ``kl_coef``; None if all have the
    same."""
    if config.verified_kl_coef is None or not isinstance(reward, VerifiedReward):
        return None
    ruled, by_rule, by_judge = reward.ruled(pairs), config.verified_kl_coef, config.kl_coef
    return lambda row: by_rule if row["pair_id"] in ruled else by_judge


def build_policy_trainer(
    rows: PromptRows,
    pairs: Sequence[PreferencePair],
    reward: PolicyReward,
    anchors: AnchorsById | None,
    config: PolicyConfig,
    model: Any,
    processor: Any,
    out: Path,
    observer: Observer | None = None,
    **more: Any,
) -> PolicyTrainer:
    """Return the trainer of a policy, ready to run; ``observer`` is called with every batch, ``more`` goes to
    ``make_trainer``."""
    function = AnchoredReward(
        reward,
        pairs,
        anchors,
        ends=end_token_ids(model),
        samples=out / SAMPLES,
        observer=observer,
        gather=gather_object,
        known=known_answers(pairs, config.seed),
        rightness=rightness_of(config, pairs),
    )
    more = {"kl_coef_of": kl_coef_by_route(config, reward, pairs), **more}
    return make_trainer(rows, config, model, processor, function, out, **more)


def train_policy(pairs: Sequence[PreferencePair], config: PolicyConfig, out: Path) -> Path:
    """Run (or resume) a policy's training; return the final checkpoint folder. Raise DataError for missing anchors, ConfigError
    and CheckpointError for a judge that cannot be opened, ConfigError for a finished or different run in ``out``."""
    refuse_repeated_ids(pairs)
    readable = leave_out_unreadable(pairs, out)
    pairs = readable.pairs
    template, reward = load_template(config.template), open_reward(config, pairs)
    questions = drop_too_long(pairs, config, template, out, room=config.max_completion_length)
    readable = readable.without_long(questions)
    specials = special_tokens(load_processor(config.model).tokenizer)
    rows = policy_rows(questions, template, specials=specials, threads=data_workers(config))

    def build(**parts: Any) -> PolicyTrainer:  # once the folder is known to be this run's
        return build_policy_trainer(rows, questions, reward, anchors_of(questions, config, template, out, reward), **parts)

    # Another temperature of a judge's verdicts is another judge, though the config names it alike.
    taus = _verdict_temperatures(reward)
    data = readable.fingerprint + ("".join(f" {VERDICT_TEMPERATURE} {tau!r}" for tau in taus) if set(taus) - {1.0} else "")
    data += _rules_of(questions) if config.verified else ""
    return run_method(build, config, out, data, template, name="policy", num_rows=len(rows), readable=readable)


def _rules_of(pairs: Sequence[PreferencePair]) -> str:
    """Return a hash of the categories, which name the rules that pay: with others it is another run."""
    categories = "\n".join(pair.category for _, pair in light_pairs(pairs))
    return f" rules {hashlib.sha256(categories.encode(errors='surrogatepass')).hexdigest()[:16]}"


def _verdict_temperatures(reward: PolicyReward | None) -> list[float]:
    """Return the verdict temperature of each judge; 1 for a judge that votes, an empty list without judges."""
    if isinstance(reward, VerifiedReward):
        return _verdict_temperatures(reward.judge)
    rewards = reward.rewards if isinstance(reward, LeastReward) else [reward]
    judges = [each.judge for each in rewards if isinstance(each, PairwiseReward)]
    return [judge.verdict_temperature for judge in judges]
