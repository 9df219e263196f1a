"""Reward models: a head that scores responses, fitted to preferences by the Bradley-Terry likelihood.

A scalar head (template `single`) sees each response alone, with the images and the question. With the template `reply` there is
no head: a response's score is its log-likelihood as the model's own answer, and ``explain_weight`` is the weight of that of the
preferred responses (CPO, arXiv 2401.08417). With a template of pairs or lists
all responses are in one prompt and the head has a number for each place: the model keeps its language model, and with
``explain_weight`` it learns the pairs' judgments too, in the same pass: it answers at once and explains when it is sampled.
Scores are read after the last token of the prompt. TRL's RewardTrainer tokenizes text only and has no way for an image, so the
trainers are our own: transformers' Trainer around a ValueModel or a RankingModel.

Shapes: ``B`` pairs, ``N`` rows, ``L`` tokens, ``K`` places.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import Trainer, TrainingArguments
from trl.trainer.utils import add_fused_lm_head

from rewardlab.config import RMConfig
from rewardlab.data.files import write_atomic
from rewardlab.data.pair_table import light_pairs, pair_facts, select_pairs
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.lists import ListJudge
from rewardlab.judging.margins import likelier_verdict
from rewardlab.models.families import always_run_vision_tower
from rewardlab.models.loading import freeze
from rewardlab.models.value_model import LikelihoodModel, RankingModel, ValueModel
from rewardlab.processes import num_processes
from rewardlab.prompts import Template, build_messages, load_template, require_one_turn
from rewardlab.prompts.sanitize import completion_to_learn
from rewardlab.rewards.pairwise import open_scorer, score_responses, single_response_prompt
from rewardlab.rl.objectives import bradley_terry_loss, ranking_loss
from rewardlab.samplers.head import HeadSampler, head_template
from rewardlab.samplers.hf import append_answers, encode, encode_replies, special_tokens, thinking_opening
from rewardlab.training.run.evaluation import JudgePairs, plan_evaluation
from rewardlab.training.run.folder import supervised_arguments
from rewardlab.training.run.held_out import hold_out
from rewardlab.training.run.inputs import count_ties, leave_out_unreadable, pairs_named
from rewardlab.training.run.length_grouping import NUM_IMAGES, LengthGroupingMixin, RowLayout
from rewardlab.training.run.preflight import numbers_that_fit, processor_of
from rewardlab.training.run.resume import StrictResumeMixin, ValueModelMixin
from rewardlab.training.run.runner import Built, Stage, checkpoint_of, run_stage
from rewardlab.types import BOTH_ORDERS, Completion, FinishReason, Judgment, Order, PreferencePair, Vote
from rewardlab.verdicts.parse import continuation
from rewardlab.verdicts.votes import judgment

M = TypeVar("M", ValueModel, LikelihoodModel, RankingModel)


def labelled(pairs: Sequence[PreferencePair]) -> Sequence[PreferencePair]:
    """Return the pairs that say which response is preferred. Raise DataError where none does."""
    if not (kept := [number for number, facts in enumerate(pair_facts(pairs)) if facts.preferred is not None]):
        raise DataError("no pair says which response is preferred; give `preferred` as 0 or 1")
    return select_pairs(pairs, kept)


class ScalarCollator:
    """Makes model inputs of 2B prompts from B pairs: the preferred responses, then, in the same sequence, the others."""

    def __init__(self, processor: Any, template: Template) -> None:
        self._processor, self._template = processor, template

    def __call__(self, pairs: Sequence[PreferencePair]) -> dict[str, Tensor]:
        chosen = [single_response_prompt(pair, int(pair.preferred == 1), self._template) for pair in pairs]
        rejected = [single_response_prompt(pair, int(pair.preferred == 0), self._template) for pair in pairs]
        read = encode_replies if self._template.is_reply else encode
        with pairs_named(pairs):
            num_images = torch.tensor([sum(len(message.images) for message in prompt) for prompt in chosen + rejected])
            return read(self._processor, chosen + rejected) | {NUM_IMAGES: num_images}


class BradleyTerryTrainer(LengthGroupingMixin, ValueModelMixin, StrictResumeMixin, Trainer):
    """Fits a ValueModel or a LikelihoodModel; logs the share of pairs whose preferred response scores higher, and the mean
    margin. ``explain_weight`` weighs the likelihood of the preferred response (``explain_loss``, nats per token)."""

    def __init__(self, *args: Any, explain_weight: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = False  # taken for true of any forward with **kwargs; the mean would not be over B
        self._explain_weight = explain_weight

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        chosen_B, rejected_B = model(**inputs)[:, -1].chunk(2)
        margins_B = chosen_B - rejected_B
        self.add_means({"accuracy": margins_B > 0, "margin": margins_B})
        loss = bradley_terry_loss(chosen_B, rejected_B)
        if self._explain_weight:
            losses_B = -chosen_B / (inputs["labels"] != -100).sum(1)[: len(chosen_B)]
            self.add_means({"explain_loss": losses_B.detach()})
            loss = loss + self._explain_weight * losses_B.mean()
        return loss * self.part_frac


class RankedRows(Sequence[tuple[PreferencePair, Order]]):
    """Labelled pairs, each in both orders, read as rows are taken."""

    def __init__(self, pairs: Sequence[PreferencePair]) -> None:
        self._pairs = pairs

    def __len__(self) -> int:
        return 2 * len(self._pairs)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        return self._pairs[number // 2], BOTH_ORDERS[number % 2]


class RankedCollator:
    """Makes model inputs of rows: prompts, left-padded, with the judgment of the pair behind that of its order, if it is to be
    learnt. ``labels`` [N, L] are the judgment's tokens, else -100; ``reads`` [N, L] is 1 at the last token of the prompt;
    ``ranks`` [N, L] has in the first tokens 1 + the places of the responses, from the best to the worst."""

    def __init__(self, processor: Any, template: Template, *, explains: bool) -> None:
        self._processor, self._template, self._explains = processor, template, explains
        self._specials, self._opening = special_tokens(processor.tokenizer), thinking_opening(processor)

    def __call__(self, rows: Sequence[tuple[PreferencePair, Order]]) -> dict[str, Tensor]:
        prompts = [build_messages(pair, order=order, template=self._template) for pair, order in rows]
        tokenizer = self._processor.tokenizer
        answers = [self._answer(pair) if pair.order is order else [] for pair, order in rows]
        with pairs_named([pair for pair, _ in rows]):
            inputs = append_answers(dict(encode(self._processor, prompts)), answers, tokenizer.pad_token_id)
        ids_NL, mask_NL = inputs["input_ids"], inputs["attention_mask"]
        labels_NL, reads_NL, ranks_NL = torch.full_like(ids_NL, -100), torch.zeros_like(ids_NL), torch.zeros_like(ids_NL)
        for n, ((pair, order), answer) in enumerate(zip(rows, answers, strict=True)):
            end, begin = ids_NL.shape[1] - len(answer), int(mask_NL[n].argmax())
            labels_NL[n, end:] = ids_NL[n, end:]
            reads_NL[n, end - 1] = 1
            places = best_first(pair, order)
            ranks_NL[n, begin : begin + len(places)] = torch.tensor(places) + 1
        num_images = torch.tensor([sum(len(message.images) for message in prompt) for prompt in prompts])
        return {**inputs, "labels": labels_NL, "reads": reads_NL, "ranks": ranks_NL, NUM_IMAGES: num_images}

    def _answer(self, pair: PreferencePair) -> list[int]:
        if not (self._explains and pair.judgment):
            return []
        tokenizer, text = self._processor.tokenizer, completion_to_learn(pair.judgment, self._specials)
        ids: list[int] = tokenizer.encode(continuation(text, self._opening), add_special_tokens=False)
        return [*ids, tokenizer.eos_token_id]


def best_first(pair: PreferencePair, order: Order) -> list[int]:
    """Return where a list shows the responses of a labelled pair, from the best to the worst."""
    assert pair.preferred is not None
    ranked = (pair.preferred, 1 - pair.preferred, *range(2, 2 + len(pair.others)))
    places = pair.places(order)
    return [places.index(n) for n in ranked]


class RankingTrainer(LengthGroupingMixin, ValueModelMixin, StrictResumeMixin, Trainer):
    """Fits a RankingModel; logs the share of rows whose best response has the highest score, and the likelihood of judgments
    (``explain_loss``, nats per token)."""

    def __init__(self, *args: Any, explain_weight: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs, self._explain_weight = False, explain_weight

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        labels_NL, reads_NL, ranks_NL = inputs.pop("labels"), inputs.pop("reads"), inputs.pop("ranks")
        learnt = labels_NL if self._explain_weight else None
        scores_NK, losses_N = model(reads=reads_NL.argmax(1), labels=learnt, **inputs)
        places = [(row[row > 0] - 1).tolist() for row in ranks_NL]
        first_N = torch.stack(
            [row[: max(order) + 1].argmax() == order[0] for row, order in zip(scores_NK, places, strict=True)]
        )
        self.add_means({"accuracy": first_N})
        loss = ranking_loss(scores_NK, places)
        if losses_N is not None:
            learnt_N = (labels_NL != -100).any(1)
            if learnt_N.any():
                self.add_means({"explain_loss": losses_N[learnt_N].detach()})
            loss = loss + self._explain_weight * losses_N.mean()
        return loss * self.part_frac


def _to_train(model: M, config: RMConfig, processor: Any) -> M:
    if not isinstance(model, ValueModel):
        add_fused_lm_head(model.language_model)
        model.in_tiles = True
    freeze(model, config.freeze)
    if num_processes() > 1:
        always_run_vision_tower(model, processor)
    if config.gradient_checkpointing:
        model.activation_checkpointing_enable()
    return model.train()


def build_ranking_trainer(pairs: Sequence[PreferencePair], config: RMConfig, processor: Any, out: Path) -> RankingTrainer:
    """Return the trainer of a head on prompts that show all responses. Raise ConfigError for an unknown template."""
    arguments = supervised_arguments(config, out) | {"gradient_checkpointing": False, "remove_unused_columns": False}
    template = load_template(config.template)
    training_arguments = TrainingArguments(**arguments)  # before the model: ZeRO-3 deals its weights out as they are read
    num_scores = config.num_listed if template.is_list else 2
    model = RankingModel.from_pretrained(config.model, num_scores, attention=config.attn_implementation)
    return RankingTrainer(
        model=_to_train(model, config, processor),
        args=training_arguments,
        train_dataset=RankedRows(pairs),
        data_collator=RankedCollator(processor, template, explains=config.explain_weight > 0),
        layout=RowLayout.of(processor, "left"),
        micro_batch_tokens=config.micro_batch_tokens,
        explain_weight=config.explain_weight,
    )


def build_reward_trainer(pairs: Sequence[PreferencePair], config: RMConfig, processor: Any, out: Path) -> BradleyTerryTrainer:
    """Return the trainer of a config on labelled pairs. Raise ConfigError for an unknown template."""
    arguments = supervised_arguments(config, out) | {
        "per_device_train_batch_size": config.micro_batch_size // 2,
        "gradient_checkpointing": False,  # switched on in the backbone below; the Trainer would ask the ValueModel
        "remove_unused_columns": False,
    }
    training_arguments = TrainingArguments(**arguments)  # before the model: ZeRO-3 deals its weights out as they are read
    template = load_template(config.template)
    kind = LikelihoodModel if template.is_reply else ValueModel
    model: Any = kind.from_pretrained(config.model, attention=config.attn_implementation)
    return BradleyTerryTrainer(
        model=_to_train(model, config, processor),
        args=training_arguments,
        train_dataset=pairs,
        data_collator=ScalarCollator(processor, template),
        layout=RowLayout.of(processor, "left", rows_per_sample=2),
        micro_batch_tokens=config.micro_batch_tokens,
        explain_weight=config.explain_weight,
    )


def train_reward_model(pairs: Sequence[PreferencePair], config: RMConfig, out: Path) -> Path:
    """Run (or resume) the fit of a scalar head; return the final folder, which ``rewards/pairwise.py`` and ``ValueModel`` read.
    Raise DataError without labels, ConfigError for a finished or different run in ``out``."""
    template = require_one_turn(load_template(config.template), "a reward model")
    if template.shows_one and config.explain_weight and not template.is_reply:
        raise ConfigError(
            f"explain_weight: template {template.name} shows one response alone, which no judgment of a pair explains; use "
            "template=plain, or another one of pairs or lists, or template=reply, which learns the preferred responses"
        )
    count_ties(pairs)
    readable = leave_out_unreadable(pairs, out)
    held_out = hold_out(readable.pairs, config, template, num_left_out=readable.num_labelled_left_out)
    ranked = labelled(held_out.trained)
    most = max((2 + len(pair.others) for _, pair in light_pairs(ranked)), default=2) if template.is_list else 2
    if most > config.num_listed:
        raise DataError(f"a list has {most} responses, more than num_listed {config.num_listed}; raise it")
    learnt = (lambda pair: pair.judgment) if config.explain_weight and not template.is_reply else (lambda pair: "")
    kept = select_pairs(ranked, numbers_that_fit(ranked, config, template, out, answer=learnt))
    readable = readable.without_long(kept)

    def build(resume: str | None) -> Built:
        processor = processor_of(config)
        make = build_reward_trainer if template.shows_one else build_ranking_trainer
        trainer: Any = make(kept, config, processor, out)
        return Built(trainer, checkpoint_of(trainer, processor, out, template=template, stage="rm", config=config))

    judge = scalar_judge(template) if template.shows_one else ranking_judge(template)
    evaluation = plan_evaluation(held_out.evaluated, config, template, judge=judge)
    data = readable.known_as(readable.fingerprint + held_out.fingerprint)
    return run_stage(Stage("rm", config, out, data, 2 * len(kept), build, evaluation=evaluation, readable=readable))


def scalar_judge(template: Template) -> JudgePairs:
    """Return what judges pairs by the numbers of their responses: one vote, in no order; a number that is none is invalid."""

    def judge(model: Any, processor: Any, pairs: Sequence[PreferencePair]) -> list[Judgment]:
        margins = (score_responses(model, processor, pairs, template) @ torch.tensor([1.0, -1.0])).tolist()
        verdicts = [likelier_verdict(margin, float(math.isfinite(margin))) for margin in margins]
        votes = [Vote(Order.GIVEN, verdict, Completion("", FinishReason.STOP)) for verdict in verdicts]
        return [judgment(pair.pair_id, [vote]) for pair, vote in zip(pairs, votes, strict=True)]

    return judge


def ranking_judge(template: Template) -> JudgePairs:
    """Return what judges pairs by the head of a RankingModel, in both orders."""

    def judge(model: Any, processor: Any, pairs: Sequence[PreferencePair]) -> list[Judgment]:
        built = ListJudge(HeadSampler(model, processor), head_template(template))
        return built.compare_many(pairs, orders=[BOTH_ORDERS] * len(pairs), num_votes=1, seed=0)

    return judge


def write_scores(folder: Path, pairs: Sequence[PreferencePair], out: Path) -> int:
    """Write the scores of all pairs as the JSON lines of a replay judge; return how many. Raise as :func:`open_scorer`."""
    model, processor, template = open_scorer(folder)
    scores = score_responses(model, processor, pairs, template).tolist()
    write_atomic(out, "".join(json.dumps({"row": n, "scores": both}) + "\n" for n, both in enumerate(scores)))
    return len(scores)
