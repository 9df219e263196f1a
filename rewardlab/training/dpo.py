"""Preference optimisation of a judge: a right judgment against a wrong one of the same pair, shown in the same order.

Comparisons are the judge's own votes (``bench run pairs``), with the teacher's judgment for pairs it never got right, or
pairs of judgments that people made. TRL's DPOTrainer has the collator, the reference model and its distribution; the losses
are here.

Shapes: ``B`` comparisons, ``L`` columns.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import logsigmoid
from trl import DPOConfig as TRLDPOConfig
from trl import DPOTrainer

from rewardlab.config import DPOConfig
from rewardlab.data.files import has_lone_surrogate, read_lines
from rewardlab.data.pair_table import light_pairs, pair_facts
from rewardlab.data.votes import votes_on_pairs
from rewardlab.errors import ConfigError, DataError
from rewardlab.models.checkpoints import load_template_for
from rewardlab.models.loading import load_policy, load_processor, peft_config, prepare_reference
from rewardlab.models.precision import adapters_to_float32
from rewardlab.processes import is_main
from rewardlab.prompts import Template, require_one_turn, require_pairs
from rewardlab.prompts.sanitize import completion_to_learn
from rewardlab.reporting.progress import log_line
from rewardlab.samplers.hf import special_tokens, thinking_opening
from rewardlab.training.run.evaluation import plan_evaluation
from rewardlab.training.run.folder import supervised_arguments
from rewardlab.training.run.held_out import hold_out
from rewardlab.training.run.inputs import leave_out_unreadable
from rewardlab.training.run.length_grouping import CountedImages, LengthGroupingMixin, RowLayout
from rewardlab.training.run.preflight import TOO_LONG
from rewardlab.training.run.resume import StrictResumeMixin
from rewardlab.training.run.rows import PromptReader, SFTDialogue, learnt_answers, list_special_tokens, places_that_fit, turn
from rewardlab.training.run.runner import Built, Stage, checkpoint_of, run_stage
from rewardlab.types import Order, PreferencePair, choice_of
from rewardlab.verdicts.parse import continuation, parse_verdict

# Comparisons.


@dataclass(frozen=True)
class JudgmentPair:
    """Two judgments of pair ``number`` shown in ``order``: ``chosen`` is right, ``rejected`` is wrong."""

    number: int
    order: Order
    chosen: str
    rejected: str


def judgment_pairs_of_votes(
    pairs: Sequence[PreferencePair], votes: Path, per_order: int, left_out: Collection[int] = ()
) -> list[JudgmentPair]:
    """Return at most ``per_order`` comparisons of each pair and order: the n-th right vote with the n-th wrong one, equal texts
    once. A pair that has no right vote in an order is compared with the teacher's judgment, if that was in this order. Votes
    without a verdict are not used. ``left_out`` rows of the votes' set are not among ``pairs``. Raise DataError if no pair
    has a right and a wrong judgment.
    """
    facts = pair_facts(pairs)
    texts: dict[tuple[int, Order, bool], dict[str, None]] = defaultdict(dict)
    stored = votes_on_pairs(votes, len(facts), left_out)
    for vote in stored:
        preferred = facts[vote.row].preferred
        if vote.choice is not None and preferred is not None:
            texts[vote.row, vote.order, vote.choice is choice_of(preferred, vote.order)][vote.text] = None
    unanswered = {number for number, order, _ in texts if not texts.get((number, order, True))}
    taught = {
        (number, pair.order): pair.judgment
        for number, pair in light_pairs(pairs)
        if number in unanswered and facts[number].judged and facts[number].preferred is not None
    }
    made: list[JudgmentPair] = []
    num_taught = 0
    for number, order in sorted({(number, order) for number, order, _ in texts}):
        wrong = texts.get((number, order, False), {})
        right = texts.get((number, order, True), {})
        if wrong and not right and (number, order) in taught:
            right, num_taught = {taught[number, order]: None}, num_taught + 1
        made += [JudgmentPair(number, order, *both) for both in list(zip(right, wrong, strict=False))[:per_order]]
    if not made:
        counts = Counter(vote.choice is not None for vote in stored)
        raise DataError(
            f"{votes}: no pair has a right and a wrong vote in the same order ({counts[True]:,} votes have a verdict, "
            f"{counts[False]:,} have none); benchmark the judge with more --votes, on pairs that it finds hard, or give pairs "
            "that a teacher judged"
        )
    if is_main():
        num_silent = sum(vote.choice is None for vote in stored)
        log_line(
            f"{len(made):,} comparisons of a right and a wrong judgment, {num_taught:,} of them with the teacher's as right; "
            f"{num_silent:,} of {len(stored):,} votes have no verdict and are not used"
        )
    return made


def read_comparisons(path: Path, pairs: Sequence[PreferencePair]) -> list[JudgmentPair]:
    """Return the comparisons of JSON lines ``{"pair_id", "order", "chosen", "rejected"}``, ``order`` "given" (the default) or
    "swapped". Lines on pairs that are not among ``pairs`` are left out and counted. Raise DataError, naming the line."""
    numbers = {facts.pair_id: number for number, facts in enumerate(pair_facts(pairs))}
    made, num_unknown = [], 0
    try:
        lines = read_lines(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); expected JSON lines of pairs of judgments") from error
    for line, text in enumerate(lines, 1):
        try:
            row = json.loads(text)
            order = Order(row.get("order", Order.GIVEN.value))
            chosen, rejected = row["chosen"], row["rejected"]
            if not all(isinstance(judgment, str) and judgment.strip() for judgment in (chosen, rejected)):
                raise ValueError("chosen and rejected must be judgments, not empty")
            if has_lone_surrogate(chosen + rejected):
                raise ValueError("a judgment contains half a surrogate pair, which is not a valid character")
            if chosen == rejected:
                raise ValueError("chosen and rejected are equal")
            number = numbers.get(row["pair_id"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(f"{path}, line {line}: {what}; expected pair_id, chosen, rejected, and order") from error
        num_unknown += number is None
        made += [] if number is None else [JudgmentPair(number, order, chosen, rejected)]
    if not made:
        raise DataError(f"{path}: none of its {num_unknown:,} lines is on a pair of --data; pair_id names the pair")
    if num_unknown and is_main():
        log_line(f"{path}: {num_unknown:,} lines are on pairs that are not in the data, and are left out")
    return made


def log_contradictions(comparisons: Sequence[JudgmentPair], pairs: Sequence[PreferencePair], template: Template) -> None:
    """Log how many chosen judgments name the response that their pair's label does not prefer."""
    facts, wrong = pair_facts(pairs), 0
    for comparison in comparisons:
        preferred, choice = facts[comparison.number].preferred, parse_verdict(comparison.chosen, template.verdict_format).choice
        if preferred is not None and choice is not None:
            wrong += choice is not choice_of(preferred, comparison.order)
    if wrong and is_main():
        log_line(
            f"{wrong:,} of {len(comparisons):,} chosen judgments have a verdict against their pair's label, and are learnt: "
            "is each `order` the one in which the responses were shown?"
        )


# Losses.


@dataclass(frozen=True)
class Likelihoods:
    """Log-probs of whole judgments [B] in nats, their lengths [B] in tokens, and the log-probs under the reference model (None
    if no loss needs it)."""

    chosen_B: Tensor
    rejected_B: Tensor
    chosen_tokens_B: Tensor
    rejected_tokens_B: Tensor
    reference: tuple[Tensor, Tensor] | None = None

    def log_ratios(self) -> tuple[Tensor, Tensor]:
        """Return log(policy / reference) of both [B]."""
        if self.reference is None:
            raise ValueError("this loss compares with a reference model")
        return self.chosen_B - self.reference[0], self.rejected_B - self.reference[1]

    def means(self) -> tuple[Tensor, Tensor]:
        """Return the log-probs per token of both [B]."""
        return self.chosen_B / self.chosen_tokens_B.clamp(min=1), self.rejected_B / self.rejected_tokens_B.clamp(min=1)


def dpo_loss(likelihoods: Likelihoods, beta: float, margin: float) -> Tensor:
    """-log sigmoid(beta (log-ratio of chosen - log-ratio of rejected)) [B] (arXiv 2305.18290, eq. 7)."""
    chosen_B, rejected_B = likelihoods.log_ratios()
    return -logsigmoid(beta * (chosen_B - rejected_B))


def simpo_loss(likelihoods: Likelihoods, beta: float, margin: float) -> Tensor:
    """-log sigmoid(beta (mean log-prob of chosen - of rejected) - margin) [B], no reference (arXiv 2405.14734, eq. 6)."""
    chosen_B, rejected_B = likelihoods.means()
    return -logsigmoid(beta * (chosen_B - rejected_B) - margin)


def bco_loss(likelihoods: Likelihoods, beta: float, margin: float) -> Tensor:
    """-log sigmoid(beta log-ratio of chosen) - log sigmoid(-beta log-ratio of rejected) [B]: the quality term of MPO (arXiv
    2411.10442, eq. 3 and 4). The shift of rewards there is 0, as in TRL."""
    chosen_B, rejected_B = likelihoods.log_ratios()
    return -logsigmoid(beta * chosen_B) - logsigmoid(-beta * rejected_B)


def sft_loss(likelihoods: Likelihoods, beta: float, margin: float) -> Tensor:
    """Negative mean log-prob of the chosen judgment [B]: the generation term of MPO (arXiv 2411.10442, eq. 5)."""
    return -likelihoods.means()[0]


LOSSES: dict[str, Callable[[Likelihoods, float, float], Tensor]] = {
    "dpo": dpo_loss,
    "simpo": simpo_loss,
    "bco": bco_loss,
    "sft": sft_loss,
}


def weighted_loss(likelihoods: Likelihoods, config: DPOConfig) -> Tensor:
    """Return the sum of the config's losses by their weights [B]."""
    terms = [weight * LOSSES[name](likelihoods, config.beta, config.margin) for name, weight in config.losses.items()]
    return torch.stack(terms).sum(0)


# Training.


class PreferenceTrainer(LengthGroupingMixin, StrictResumeMixin, DPOTrainer):
    """TRL's DPOTrainer with the losses of a config. It logs the share of comparisons whose chosen judgment has the higher
    reward, the margin between both, and log-probs per token. The reward is the log-ratio, or the mean log-prob without a
    reference."""

    def __init__(self, *args: Any, config: DPOConfig, processing_class: Any, **kwargs: Any) -> None:
        self._config = config
        layout = RowLayout.of(processing_class, "right", rows_per_sample=2)
        super().__init__(*args, processing_class=processing_class, layout=layout, **kwargs)
        adapters_to_float32(self.model)
        self.data_collator = CountedImages(self.data_collator, layout.rows_per_sample)
        self.model_accepts_loss_kwargs = False  # the mean is over comparisons
        if not config.has_reference:
            self.ref_model = None  # TRL loads one in any case
        elif self.ref_model is not None:
            prepare_reference(self.ref_model, processing_class)

    def _compute_loss(self, model: Any, inputs: dict[str, Tensor], return_outputs: bool) -> Tensor:
        mask_2BL = inputs["completion_mask"]
        fields = {name: value for name, value in inputs.items() if name != "completion_mask"}
        fields |= {"labels": inputs["input_ids"].masked_fill(mask_2BL == 0, -100)}
        chosen_B, rejected_B = _sums(model, fields).chunk(2)
        reference = None
        if self._config.has_reference:
            other = self.model if self.ref_model is None else self.ref_model
            adapters = self.accelerator.unwrap_model(self.model).disable_adapter() if self.ref_model is None else nullcontext()
            with torch.no_grad(), adapters:
                reference_chosen_B, reference_rejected_B = _sums(other, fields).chunk(2)
            reference = (reference_chosen_B, reference_rejected_B)
        tokens_B, other_tokens_B = mask_2BL[:, 1:].sum(1).chunk(2)
        likelihoods = Likelihoods(chosen_B, rejected_B, tokens_B, other_tokens_B, reference)
        self._add_metrics(likelihoods)
        return weighted_loss(likelihoods, self._config).mean() * self.part_frac

    @torch.no_grad()
    def _add_metrics(self, likelihoods: Likelihoods) -> None:
        means = likelihoods.means()
        rewards = likelihoods.log_ratios() if likelihoods.reference else means
        margins_B = self._config.beta * (rewards[0] - rewards[1])
        logps = {"logps/chosen": means[0], "logps/rejected": means[1]}
        self.add_means({"accuracy": margins_B > 0, "margin": margins_B, **logps})


def _sums(model: Any, fields: dict[str, Tensor]) -> Tensor:
    """Return the log-probs of whole completions [rows]."""
    sums: Tensor = model(**fields, use_cache=False, fused_lm_head=True).log_probs.sum(1)
    return sums


def comparison_dataset(reader: PromptReader, comparisons: Sequence[JudgmentPair]) -> Dataset:
    """Return a dataset for TRL's DPOTrainer, whose rows are made when they are taken."""
    columns = {
        "prompt": [json.dumps([comparison.number, comparison.order.value]) for comparison in comparisons],
        "chosen": [comparison.chosen for comparison in comparisons],
        "rejected": [comparison.rejected for comparison in comparisons],
    }
    return Dataset.from_dict(columns).with_transform(partial(_read_comparisons, reader))


def _read_comparisons(reader: PromptReader, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = {"prompt": [], "chosen": [], "rejected": [], "images": []}
    for key, chosen, rejected in zip(batch["prompt"], batch["chosen"], batch["rejected"], strict=True):
        number, order = json.loads(key)
        chat, images = reader.read(number, [Order(order)])[1][Order(order)]
        rows["prompt"].append(chat)
        rows["images"].append(images)
        for name, answer in (("chosen", chosen), ("rejected", rejected)):
            learnt = completion_to_learn(answer, reader.specials)
            rows[name].append([turn("assistant", reader.opening + continuation(learnt, reader.opening))])
    return rows


def _dialogues(comparisons: Sequence[JudgmentPair]) -> list[SFTDialogue]:
    return [SFTDialogue(c.number, c.order, answer) for c in comparisons for answer in (c.chosen, c.rejected)]


def that_fit(
    pairs: Sequence[PreferencePair], comparisons: Sequence[JudgmentPair], config: DPOConfig, template: Template, out: Path
) -> list[JudgmentPair]:
    """Return the comparisons whose judgments both fit; others are left out and listed. Raise DataError if none does."""
    kept = {*places_that_fit(pairs, _dialogues(comparisons), config, template, out / TOO_LONG)}
    return [comparison for n, comparison in enumerate(comparisons) if {2 * n, 2 * n + 1} <= kept]


def require_one_source(votes: Path | None, judgments: Path | None) -> Path:
    """Return the one that is given. Raise ConfigError for none, and for both."""
    source = votes or judgments
    if source is None or (votes and judgments):
        raise ConfigError("dpo learns from votes or from pairs of judgments; give --votes FILE or --judgments FILE, not both")
    return source


def train_dpo(
    pairs: Sequence[PreferencePair],
    config: DPOConfig,
    out: Path,
    *,
    votes: Path | None = None,
    judgments: Path | None = None,
) -> Path:
    """Run (or resume) preference optimisation on ``votes`` (``votes.jsonl`` of the same pairs) or ``judgments``
    (:func:`read_comparisons`); return the final checkpoint folder. Raise DataError without comparisons, ConfigError for a
    finished or different run in ``out``, CheckpointError for a judge of another template."""
    source = require_one_source(votes, judgments)
    if judgments and config.comparisons_per_order > 1:
        raise ConfigError(
            f"comparisons_per_order {config.comparisons_per_order} counts votes; leave it out with pairs of judgments"
        )
    template = require_pairs(
        require_one_turn(load_template_for(config.model, config.template), "preference optimisation"), "preference optimisation"
    )
    if template.verdict_format == "bare":
        raise ConfigError(f"template {template.name} asks for the verdict alone; judgments to compare need one with reasoning")
    readable = leave_out_unreadable(pairs, out)
    pairs = readable.pairs
    held_out = hold_out(pairs, config, template, num_left_out=readable.num_labelled_left_out)
    made = (
        judgment_pairs_of_votes(pairs, votes, config.comparisons_per_order, readable.left_out)
        if votes
        else read_comparisons(source, pairs)
    )
    if judgments:
        log_contradictions(made, pairs, template)
    trained = {*held_out.numbers}
    comparisons = that_fit(pairs, [comparison for comparison in made if comparison.number in trained], config, template, out)
    if 2 * len(comparisons) < config.batch_size:
        raise DataError(
            f"{len(comparisons):,} comparisons are {2 * len(comparisons):,} sequences, fewer than the {config.batch_size:,} of "
            "one batch; sample more votes, or lower batch_size"
        )
    processor = load_processor(config.model)
    specials, opening = special_tokens(processor.tokenizer), thinking_opening(processor)
    if is_main():
        list_special_tokens(learnt_answers(pairs, _dialogues(comparisons)), specials, out)
    rows = comparison_dataset(PromptReader(pairs, template, specials, opening), comparisons)
    data = f"{readable.fingerprint} {hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"

    def build(resume: str | None) -> Built:
        arguments = supervised_arguments(config, out) | {"per_device_train_batch_size": config.micro_batch_size // 2}
        arguments = TRLDPOConfig(max_length=None, **arguments)  # before the model, as in SFT
        model, processor = load_policy(config, out)
        trainer = PreferenceTrainer(
            model=model.train(),
            args=arguments,
            train_dataset=rows,
            processing_class=processor,
            peft_config=peft_config(config.lora, model, config.freeze),
            micro_batch_tokens=config.micro_batch_tokens,
            config=config,
        )
        return Built(trainer, checkpoint_of(trainer, processor, out, template=template, stage="dpo", config=config))

    evaluation = plan_evaluation(held_out.evaluated, config, template)
    data = readable.known_as(data + held_out.fingerprint)
    return run_stage(Stage("dpo", config, out, data, 2 * len(comparisons), build, evaluation=evaluation, readable=readable))
