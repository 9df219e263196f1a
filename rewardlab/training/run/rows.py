"""Rows of a training set, as TRL takes them: numbers and short texts in memory; pairs are read from disk, and pictures decoded,
when their turn comes, once for each use.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from datasets import Dataset
from PIL.Image import Image

from rewardlab.data.images import decode_image
from rewardlab.data.pair_table import light_pairs
from rewardlab.prompts import Template, build_messages
from rewardlab.prompts.sanitize import completion_to_learn
from rewardlab.reporting.progress import log_line
from rewardlab.rewards.rollout import Row
from rewardlab.samplers.hf import chat_of
from rewardlab.types import Message, Order, PreferencePair

Chat = list[dict[str, Any]]


@dataclass(frozen=True)
class PromptReader:
    """Makes the prompts of ``pairs`` as a judge is asked: the same parts in the same places, and no text keeps one of a
    tokenizer's ``specials``."""

    pairs: Sequence[PreferencePair]
    template: Template
    specials: tuple[str, ...] = ()

    def read(self, number: int, orders: Sequence[Order]) -> tuple[PreferencePair, dict[Order, tuple[Chat, list[Image]]]]:
        """Return pair ``number``, and in each of ``orders`` the prompt, with a place for each image, and the images.

        An image is decoded once, in however many orders it is shown. Raise MediaError for one that cannot be.
        """
        pair = self.pairs[number]
        prompts = {order: build_messages(pair, order=order, template=self.template) for order in orders}
        encoded = {image for prompt in prompts.values() for image in _images(prompt)}
        decoded = {image: decode_image(image, where=pair.pair_id) for image in encoded}
        return pair, {
            order: (chat_of(prompt, self.specials), [decoded[image] for image in _images(prompt)])
            for order, prompt in prompts.items()
        }


def _images(prompt: Sequence[Message]) -> list[bytes]:
    return [image for message in prompt for image in message.images]


@dataclass(frozen=True)
class PromptRows:
    """The prompts of RL. A row of ``dataset`` is the number of one; :meth:`read` makes of it what is sampled from and paid.

    ``keys`` are pair and order of each; ``threads`` read and decode side by side.
    """

    reader: PromptReader
    keys: Sequence[tuple[int, Order]]
    threads: int = 1

    @cached_property
    def dataset(self) -> Dataset:
        return Dataset.from_dict({"row": range(len(self.keys))})

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, number: int) -> Row:
        return self.read([{"row": number}])[0]

    def whole_dataset(self) -> Dataset:
        """Return a dataset of whole rows, as TRL's own trainers take them: read anew whenever one is taken."""
        return self.dataset.with_transform(self._read_columns)

    def _read_columns(self, batch: dict[str, list[int]]) -> dict[str, list[Any]]:
        rows = self.read([{"row": number} for number in batch["row"]])
        return {name: [row[name] for row in rows] for name in rows[0]}

    def read(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows with ``prompt``, ``images`` (decoded), ``pair_id``, ``question``, ``order`` and ``preferred``.

        A pair that several rows show is read, and its images decoded, once. Raise DataError and MediaError.
        """
        orders: dict[int, set[Order]] = {}
        for row in rows:
            number, order = self.keys[row["row"]]
            orders.setdefault(number, set()).add(order)
        with ThreadPoolExecutor(max(1, self.threads)) as pool:
            read = dict(
                zip(orders, pool.map(lambda item: self.reader.read(item[0], sorted(item[1])), orders.items()), strict=True)
            )
        return [{**row, **_columns(*read[number], order)} for row in rows for number, order in [self.keys[row["row"]]]]


def _columns(pair: PreferencePair, prompts: dict[Order, tuple[Chat, list[Image]]], order: Order) -> Row:
    prompt, images = prompts[order]
    facts = {"pair_id": pair.pair_id, "question": pair.question, "order": order.value, "preferred": pair.preferred}
    return {"prompt": prompt, "images": images, **facts}


@dataclass(frozen=True)
class SFTDialogue:
    """What is learnt of pair ``number`` shown in ``order``: an answer, after earlier ``turns``; None: the pair's judgment."""

    number: int
    order: Order
    answer: str | None = None
    turns: tuple[dict[str, str], ...] = ()


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def learnt_answers(pairs: Sequence[PreferencePair], dialogues: Sequence[SFTDialogue]) -> Iterator[str]:
    """Yield the answers of dialogues, in any order; judgments are read from disk without media."""
    yield from (dialogue.answer for dialogue in dialogues if dialogue.answer is not None)
    times = Counter(dialogue.number for dialogue in dialogues if dialogue.answer is None)
    for number, pair in light_pairs(pairs) if times else ():
        yield from [pair.judgment] * times[number]


def log_special_tokens(answers: Iterable[str], specials: Sequence[str]) -> None:
    """Log how many answers to learn from hold special tokens, which are broken."""
    first, num_answers, num_broken = "", 0, 0
    for answer in answers:
        num_answers += 1
        if (learnt := completion_to_learn(answer, specials)) != answer:
            num_broken += 1
            first = first or next(token for token in specials if token in answer and token not in learnt)
    if num_broken:
        log_line(
            f"{num_broken:,} of {num_answers:,} answers to learn from hold special tokens of the model, such as {first}: a "
            "zero-width space breaks each, as in prompts"
        )


def _in_parts(message: dict[str, str], specials: Sequence[str]) -> dict[str, Any]:
    text = completion_to_learn(message["content"], specials)
    return {"role": message["role"], "content": [{"type": "text", "text": text}]}


def dialogue_dataset(reader: PromptReader, dialogues: Sequence[SFTDialogue]) -> Dataset:
    """Return a dataset that TRL's SFTTrainer takes: prompt, images and completion, made as rows are taken.

    What it holds in their place has the same names, or the trainer would remove it.
    """
    columns = {
        "prompt": [json.dumps([dialogue.number, dialogue.order.value, dialogue.turns]) for dialogue in dialogues],
        "completion": [dialogue.answer for dialogue in dialogues],
    }
    # No function of this function's own: where processes are spawned, a loader's processes are sent it.
    return Dataset.from_dict(columns).with_transform(partial(_read_dialogues, reader))


def _read_dialogues(reader: PromptReader, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = {"prompt": [], "completion": [], "images": []}
    for key, answer in zip(batch["prompt"], batch["completion"], strict=True):
        number, order, turns = json.loads(key)
        pair, prompts = reader.read(number, [Order(order)])
        chat, images = prompts[Order(order)]
        learnt = completion_to_learn(pair.judgment if answer is None else answer, reader.specials)
        rows["prompt"].append([*chat, *(_in_parts(message, reader.specials) for message in turns)])
        rows["completion"].append([turn("assistant", learnt)])
        rows["images"].append(images)
    return rows
