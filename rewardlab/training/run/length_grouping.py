"""Micro-batches of rows of like length where a data loader made them of any: SFT, reward models, process reward models.

The rows of an optimizer step that a process has are sorted by length and dealt out anew, each micro-batch as wide as its own
longest row. Which rows are in which step, and on which process, stays as it is.

Shapes: ``N`` rows, ``L`` columns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from rewardlab.metrics.running import Metric, MetricAccumulator
from rewardlab.models.families import IMAGE_FIELDS, check_fields, count_places, join_images, patch_token_id, split_images
from rewardlab.training.run.parallel import padding_frac, pass_limits, without_sync

NUM_IMAGES = "num_images"  # [N], a batch's images of each row, which no model takes
_FILLERS = {"labels": -100}  # of what is behind or before a row; 0 of everything else but tokens


@dataclass(frozen=True)
class RowLayout:
    """A collator's layout: padding ``side`` and token; ``rows_per_sample`` blocks of N rows, with one row of each sample in
    every block."""

    pad_token: int
    image_token: int | None
    side: str
    rows_per_sample: int = 1

    @staticmethod
    def of(processor: Any, side: str, rows_per_sample: int = 1) -> RowLayout:
        """Return the layout with a processor's tokens."""
        return RowLayout(processor.tokenizer.pad_token_id, patch_token_id(processor), side, rows_per_sample)


@dataclass(frozen=True)
class _Sample:
    """Rows that belong together, each its tokens without padding and its images."""

    rows: list[tuple[dict[str, Tensor], dict[str, Tensor]]]

    @property
    def width(self) -> int:
        return max(len(tokens["input_ids"]) for tokens, _ in self.rows)

    def copy(self) -> _Sample:
        """Return it with pixels of its own, so that those of its whole batch need not stay."""
        return _Sample([(tokens, {name: value.clone() for name, value in images.items()}) for tokens, images in self.rows])


def split(batch: Mapping[str, Any], layout: RowLayout) -> list[_Sample]:
    """Return the samples of a batch. Raise NotImplementedError for an entry that is neither of tokens nor of images."""
    ids_NL, mask_NL = batch["input_ids"], batch["attention_mask"].bool()
    names = [name for name in batch if name not in (*IMAGE_FIELDS, NUM_IMAGES, "attention_mask")]
    check_fields(name for name in names if getattr(batch[name], "shape", None) != ids_NL.shape)
    counts = count_places(ids_NL, layout.image_token)
    num_images = batch[NUM_IMAGES].tolist() if NUM_IMAGES in batch else None
    images = split_images(batch, num_images, counts)
    rows = [({name: batch[name][n][mask] for name in names}, images[n]) for n, mask in enumerate(mask_NL)]
    number = len(rows) // layout.rows_per_sample
    return [_Sample(rows[n::number]) for n in range(number)]


def join(samples: Sequence[_Sample], layout: RowLayout) -> dict[str, Tensor]:
    """Return the batch of some samples, as wide as the longest row."""
    rows = [sample.rows[block] for block in range(layout.rows_per_sample) for sample in samples]
    tokens = [fields | {"attention_mask": torch.ones_like(fields["input_ids"])} for fields, _ in rows]
    fillers = {"input_ids": layout.pad_token, **_FILLERS}
    batch = {name: _pad([row[name] for row in tokens], fillers.get(name, 0), layout.side) for name in tokens[0]}
    return batch | join_images([images for _, images in rows])


def _pad(rows: Sequence[Tensor], filler: float, side: str) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=filler, padding_side=side)


class BatchesAhead(Iterator[Mapping[str, Any]]):
    """The batches of a data loader, of which :meth:`take` takes one early: workers would otherwise rest while an optimizer step
    trains, and it would wait for them."""

    def __init__(self, batches: Iterator[Mapping[str, Any]]) -> None:
        self.batches, self._taken = batches, deque[Mapping[str, Any]]()

    def __next__(self) -> Mapping[str, Any]:
        return self._taken.popleft() if self._taken else next(self.batches)

    def take(self) -> None:
        """Take the next batch; nothing at the end of an epoch."""
        self._taken.extend(islice(self.batches, 1))


class _MicroBatches:
    """Micro-batches that are made once when read, then dropped; for each, a batch of the next step is taken, so that one step's
    pixels are in memory."""

    def __init__(self, samples: list[_Sample], number: int, layout: RowLayout, take: Callable[[], None]) -> None:
        self._samples, self._number, self._layout, self._take = samples, number, layout, take
        self._size = len(samples) // number

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for n in range(self._number):
            if n:
                self._take()
            yield self._first()

    def _first(self) -> dict[str, Tensor]:
        batch = join(self._samples[: self._size], self._layout)
        del self._samples[: self._size]
        return batch


def group_by_length(
    batches: list[Mapping[str, Any]], layout: RowLayout, take: Callable[[], None] = lambda: None
) -> list[Mapping[str, Any]] | _MicroBatches:
    """Return the micro-batches sorted by length, the longest samples first, to be read once. ``batches`` is emptied; ``take``
    is called before each micro-batch but the first. Batches of unequal size, at the end of an epoch, stay as they are."""
    number = len(batches)
    if number < 2 or len({len(batch["input_ids"]) for batch in batches}) > 1:
        return batches
    samples: list[_Sample] = []
    while batches:
        samples += [sample.copy() for sample in split(batches.pop(0), layout)]
    samples.sort(key=lambda sample: -sample.width)
    return _MicroBatches(samples, number, layout, take)


class CountedImages:
    """A collator that adds the ``images`` of each row as ``num_images``: their tokens do not tell where one ends.
    ``rows_per_sample``: as of a layout."""

    def __init__(self, collate: Callable[..., dict[str, Any]], rows_per_sample: int = 1) -> None:
        self._collate, self._rows_per_sample = collate, rows_per_sample

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        numbers = torch.tensor([len(row.get("images") or ()) for row in rows])
        return {**self._collate(rows), NUM_IMAGES: numbers.repeat(self._rows_per_sample)}


class RoundedPixels:
    """A collator whose pixels are bfloat16, as autocast rounds them anyway: an optimizer step's pixels take half the memory."""

    def __init__(self, collate: Callable[..., dict[str, Any]]) -> None:
        self._collate = collate

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        batch = self._collate(rows)
        if "pixel_values" in batch:
            batch["pixel_values"] = batch["pixel_values"].to(torch.bfloat16)
        return batch


class LengthGroupingMixin:
    """Mixed into a Trainer: micro-batches are grouped by length and read in parts of at most ``micro_batch_tokens`` positions;
    the padding fraction is logged. ``layout`` is the collator's. ``part_frac`` is the fraction of a micro-batch's samples in
    the current part, the weight of a loss that is their mean.
    """

    data_collator: Callable[..., dict[str, Any]]
    part_frac = 1.0

    def __init__(self, *args: Any, layout: RowLayout, micro_batch_tokens: int | None = None, **kwargs: Any) -> None:
        self.layout, self.micro_batch_tokens = layout, micro_batch_tokens
        self._metrics_of_parts, self._ahead = MetricAccumulator(), BatchesAhead(iter(()))
        super().__init__(*args, **kwargs)
        if self.args.bf16:  # type: ignore[attr-defined]
            self.data_collator = RoundedPixels(self.data_collator)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        if self._ahead.batches is not epoch_iterator:  # of another epoch
            self._ahead = BatchesAhead(epoch_iterator)
        batches, number = super().get_batch_samples(self._ahead, num_batches, device)  # type: ignore[misc]
        return group_by_length(batches, self.layout, self._ahead.take), number

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        read = super().training_step  # type: ignore[misc]
        parts = [{name: value for name, value in part.items() if name != NUM_IMAGES} for part in self._parts(inputs)]
        total: Any = 0.0
        for n, part in enumerate(parts):
            mask_NL = part["attention_mask"]
            self.part_frac = len(mask_NL) / len(inputs["input_ids"])
            widths = mask_NL.sum(1).tolist()
            self._metrics_of_parts.add("tokens/padding_frac", padding_frac(widths, [range(len(widths))]))
            is_last = n == len(parts) - 1
            with nullcontext() if is_last else without_sync(self.accelerator, model):  # type: ignore[attr-defined]
                total = total + read(model, part, num_items_in_batch)
        self.part_frac = 1.0
        return total  # type: ignore[no-any-return]

    def _parts(self, inputs: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        if self.micro_batch_tokens is None:
            return [inputs]
        samples, layout = split(inputs, self.layout), self.layout
        limits = pass_limits(self.accelerator, self.micro_batch_tokens // layout.rows_per_sample)  # type: ignore[attr-defined]
        return [join([samples[n] for n in part], layout) for part in limits.cut([sample.width for sample in samples])]

    def add_means(self, values: Mapping[str, Tensor]) -> None:
        """Log the means of values [B] of samples, over the parts of all processes, whatever their sizes."""
        for name, value_B in values.items():
            self._metrics_of_parts.add(name, Metric(value_B.detach().float().mean().item(), len(value_B)))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs | self._metrics_of_parts.flush(gather_object), start_time)  # type: ignore[misc]
