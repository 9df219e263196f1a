"""The data of a planned run, as far as its estimates need them: how many steps they make, what is held out, its lengths."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rewardlab.config import MethodConfig, PRMConfig, RLConfig, RMConfig, SFTConfig, TrainConfig
from rewardlab.data.pair_table import pair_facts, select_pairs
from rewardlab.errors import CheckpointError
from rewardlab.health.evaluation import HeldOutData
from rewardlab.health.lengths import DataSample, answer_room, count_sample
from rewardlab.health.plan import DataFacts, Plan
from rewardlab.models.architectures import config_of
from rewardlab.models.checkpoints import load_template_for
from rewardlab.prompts import Template, load_template
from rewardlab.training.rl import hard_pairs
from rewardlab.training.run.evaluation import HeldOut, hold_out_file, hold_out_fraction, pairs_beside
from rewardlab.training.run.inputs import pairs_of
from rewardlab.training.run.preflight import TokenCounter, processor_of
from rewardlab.training.run.runner import count_steps
from rewardlab.types import PreferencePair


@dataclass(frozen=True)
class GivenData:
    """``pairs`` of a set, none without one; ``sequences`` of an epoch, None where more than the pairs decides; a ``sample`` of
    those that are trained on, None where the model is not known; ``facts``: what the estimates take from all this."""

    pairs: Sequence[PreferencePair] = ()
    sequences: int | None = None
    sample: DataSample | None = None
    facts: DataFacts = field(default_factory=DataFacts)


def template_of(config: TrainConfig) -> Template:
    """Return the template of a run; RL is asked in the words of the checkpoint it begins from."""
    is_rl = isinstance(config, RLConfig)
    return load_template_for(config.model, config.template) if is_rl else load_template(config.template)


def read_data(
    data: Path,
    config: TrainConfig,
    plan: Plan,
    *,
    images: Path | None = None,
    allow_columns: Collection[str] = (),
    allow_without_images: bool = False,
) -> GivenData:
    """Return what is known of the pairs at ``data``, of which some are read. Raise DataError or MediaError."""
    pairs = pairs_of(
        data,
        config.frames,
        config.model,
        images=images,
        allow_columns=allow_columns,
        allow_without_images=allow_without_images,
    )
    held_out = held_out_of(pairs, config)
    learnt = learnt_pairs(config, held_out.trained)
    sequences = num_sequences(config, len(learnt))
    steps = None if sequences is None else count_steps(config, sequences)
    sample = _sample(config, plan, learnt, answers=type(config) is SFTConfig)
    architecture = config_of(plan.model or config.model)
    lengths = sample.lengths(architecture, config) if sample else None
    evaluated = _sample(config, plan, held_out.evaluated, answers=False)
    of_evaluated = evaluated.lengths(architecture, config) if evaluated else None
    judged = HeldOutData(len(held_out.evaluated), of_evaluated) if of_evaluated else None
    return GivenData(pairs, sequences, sample, DataFacts(lengths, judged, steps))


def held_out_of(pairs: Sequence[PreferencePair], config: TrainConfig) -> HeldOut:
    """Return which pairs a run does not train on but evaluates, however long they are. Raise DataError where none is left."""
    if isinstance(config, SFTConfig | RLConfig):
        evaluation = config.evaluation
        if evaluation.fraction is not None:
            return hold_out_fraction(pairs, evaluation, evaluation.fraction)
        if evaluation.data is not None:
            return hold_out_file(pairs, pairs_beside(pairs, evaluation.data, config), evaluation)
    return HeldOut(pairs, range(len(pairs)))


def learnt_pairs(config: TrainConfig, pairs: Sequence[PreferencePair]) -> Sequence[PreferencePair]:
    """Return the pairs that a stage trains on: those with a judgment, a label, or a tag of difficulty. Raise DataError."""
    if isinstance(config, RLConfig):
        return hard_pairs(pairs, config)
    if isinstance(config, MethodConfig | PRMConfig):
        return pairs
    by_label, facts = _learns_labels(config), enumerate(pair_facts(pairs))
    return select_pairs(pairs, [n for n, of_pair in facts if (of_pair.preferred is not None if by_label else of_pair.judged)])


def _learns_labels(config: TrainConfig) -> bool:
    return isinstance(config, RMConfig) or load_template(config.template).verdict_format == "bare"


def num_sequences(config: TrainConfig, num_pairs: int) -> int | None:
    """Return the sequences that an epoch makes of the pairs that are trained on; None where more than these decides."""
    if isinstance(config, PRMConfig):
        return None
    if isinstance(config, MethodConfig):
        orders = 2 if isinstance(config, RLConfig) and config.both_orders else 1
        return num_pairs * orders * config.group_size * config.iterations
    return num_pairs * (2 if _learns_labels(config) else 1)


def _sample(config: TrainConfig, plan: Plan, pairs: Sequence[PreferencePair], *, answers: bool) -> DataSample | None:
    """Return the tokens of some of the pairs; None where there are none, or the model is not known."""
    architecture = config_of(plan.model or config.model)
    if architecture is None or not pairs:
        return None
    room = answer_room(config)
    return count_sample(pairs, config, template_of(config), architecture, _counter(config, plan), room=room, answers=answers)


def _counter(config: TrainConfig, plan: Plan) -> TokenCounter | None:
    """Return what counts as the model's own processor does; None where there is none here."""
    try:
        return TokenCounter(processor_of(config.model_copy(update={"model": plan.model or config.model})))
    except CheckpointError:
        return None
