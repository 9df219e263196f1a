"""Cold start: fine-tune a vision-language model on the judgments a teacher got right, on assistant tokens only.

With a template that asks for the verdict alone, the same run trains a generative classifier on labels (Pairwise-RL, arXiv
2504.04950): every pair in both orders, loss on the verdict token only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, Features, Image, List, Value
from trl import SFTConfig as TRLSFTConfig
from trl import SFTTrainer

from rewardlab.config import SFTConfig
from rewardlab.errors import DataError
from rewardlab.models.loading import load_policy, peft_config
from rewardlab.progress import bar
from rewardlab.prompts import Template, load_template
from rewardlab.training.run.folder import LoadsWholeCheckpoints, RunLog, close_run, common_arguments, open_run
from rewardlab.training.run.preflight import fitting
from rewardlab.training.run.resume import run_steps
from rewardlab.training.run.rows import chat_columns
from rewardlab.training.run.verification_rows import verification_rows
from rewardlab.training.run.watchdog import watched
from rewardlab.types import BOTH_ORDERS, Order, PreferencePair, choice_of
from rewardlab.verdicts.parse import verdict_label


class ResumableSFTTrainer(LoadsWholeCheckpoints, SFTTrainer):  # type: ignore[misc]
    """TRL's SFTTrainer; resumed runs start from the checkpoint's weights, and all tokens of a batch weigh the same."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The Qwen-VL classes say no, and a batch would be the mean of its micro-batches' means, however few their tokens; TRL's
        # loss does take the number of tokens in the whole batch, and nothing of it reaches the model.
        self.model_accepts_loss_kwargs = True


TURNS = List({"role": Value("string"), "content": Value("string")})


def _row(pair: PreferencePair, order: Order, template: Template, answer: str) -> dict[str, Any]:
    return {**chat_columns(pair, order, template), "completion": [{"role": "assistant", "content": answer}]}


def _judgment_rows(pairs: Sequence[PreferencePair], template: Template) -> list[dict[str, Any]]:
    if not (rows := [_row(pair, pair.order, template, pair.judgment) for pair in pairs if pair.judgment]):
        raise DataError("no pair carries a teacher's judgment; run `rewardlab distill` first and train on its output")
    return rows


def _verdict_rows(pairs: Sequence[PreferencePair], template: Template) -> list[dict[str, Any]]:
    rows = [
        _row(pair, order, template, verdict_label(choice_of(pair.preferred, order)))
        for pair in pairs
        if pair.preferred is not None
        for order in BOTH_ORDERS
    ]
    if not rows:
        raise DataError("no pair says which response is preferred; give `preferred` as 0 or 1")
    return rows


def sft_rows(pairs: Sequence[PreferencePair], template: Template, more: Sequence[dict[str, Any]] = ()) -> Dataset:
    """One row per pair with a kept judgment, in the order the teacher saw it; where the template asks for the verdict alone,
    two rows per labelled pair, one in each order, so that either verdict is right in exactly half of them. And ``more``.

    Raises DataError where there is none.
    """
    rows = _verdict_rows(pairs, template) if template.verdict_format == "bare" else _judgment_rows(pairs, template)
    return Dataset.from_list([*rows, *more], features=Features({"prompt": TURNS, "completion": TURNS, "images": List(Image())}))


class FirstTokenOnly:
    """A collator whose labels are those of another, up to the first token of each answer: the verdict, where that is all.

    The loss logged is then the negative log-likelihood of the verdict. Whatever follows it is not learnt: such a judge is asked
    for its probabilities (``rewardlab.judging.margins.ProbabilityJudge``), not sampled.
    """

    def __init__(self, collate: Callable[..., dict[str, Any]]) -> None:
        self._collate = collate

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        batch = self._collate(rows)
        trained = batch["labels"] != -100
        batch["labels"] = torch.where(trained & (trained.cumsum(1) == 1), batch["labels"], -100)
        return batch


def data_fingerprint(pairs: Sequence[PreferencePair]) -> str:
    """A hash of what a training run reads of its pairs."""
    digest = hashlib.sha256()
    for p in pairs:
        digest.update(repr((p.pair_id, p.question, p.responses, p.preferred, p.attempts, p.order, p.judgment)).encode())
        for image in p.images:
            digest.update(hashlib.sha256(image).digest())
    return digest.hexdigest()[:16]


def trainer_arguments(config: SFTConfig, out: Path) -> TRLSFTConfig:
    """TRL's arguments for a config."""
    return TRLSFTConfig(max_length=None, **common_arguments(config, out))  # cutting a sequence could cut image tokens


def train_sft(pairs: Sequence[PreferencePair], config: SFTConfig, out: Path, *, votes: Path | None = None) -> Path:
    """Run (or resume) supervised fine-tuning; returns the final checkpoint folder.

    ``votes``, a ``votes.jsonl`` of the judge on the same pairs, adds dialogues in which it verifies them. Raises DataError
    without judgments, ConfigError for a finished or different run in ``out``.
    """
    template = load_template(config.template)
    taught = [pair for pair in pairs if pair.judgment or template.verdict_format == "bare"]
    answer_of = (lambda pair: "") if template.verdict_format == "bare" else (lambda pair: pair.judgment)
    kept = fitting(taught, config, template, out, answer=answer_of) if taught else []
    rows = sft_rows(kept, template, verification_rows(kept, votes, template) if votes else ())
    data = data_fingerprint(pairs) + (f" {hashlib.sha256(votes.read_bytes()).hexdigest()[:16]}" if votes else "")
    return watched(config, out, lambda: _attempt(rows, config, out, data, template))


def _attempt(rows: Dataset, config: SFTConfig, out: Path, data: str, template: Template) -> Path:
    resume = open_run(out, config, data=data)
    arguments = trainer_arguments(config, out)  # before the model: ZeRO-3 deals its weights out as they are read
    model, processor = load_policy(config, out)
    processor.tokenizer.padding_side = "right"
    trainer = ResumableSFTTrainer(
        model=model.train(),
        args=arguments,
        train_dataset=rows,
        processing_class=processor,
        peft_config=peft_config(config.lora, model, config.freeze),
    )
    if template.verdict_format == "bare":
        trainer.data_collator = FirstTokenOnly(trainer.data_collator)
    steps = config.max_steps if config.max_steps > 0 else int(config.epochs * len(rows) / config.batch_size)
    with bar("sft", steps) as advance:
        trainer.add_callback(RunLog(out, advance, "loss"))
        run_steps(trainer, config, out, resume)
    return close_run(out, trainer, processor, template=template, stage="sft", base=config.model)
