"""Rows of a training set, as TRL takes them: numbers and short texts. Pairs are read and images decoded when they are used.

Dialogues of several turns that are too long are left out before a run starts.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from datasets import Dataset
from PIL.Image import Image

from rewardlab.config import TrainConfig
from rewardlab.data.files import write_atomic
from rewardlab.data.images import decode_image, part_of_pixels
from rewardlab.data.pair_table import fingerprint_of, light_pairs, pair_facts
from rewardlab.errors import DataError
from rewardlab.processes import num_processes, process_index
from rewardlab.prompts import Template, build_messages
from rewardlab.prompts.sanitize import completion_to_learn
from rewardlab.reporting.progress import Advance, log_line
from rewardlab.rewards.rollout import Row
from rewardlab.samplers.hf import chat_of
from rewardlab.training.run.folder import has_begun
from rewardlab.training.run.preflight import Candidate, SampleTokens, TokenCounter, short_samples, split_answer
from rewardlab.types import Message, Order, Part, PreferencePair
from rewardlab.verdicts.parse import continuation

Chat = list[dict[str, Any]]
Turn = dict[str, Any]  # role, content, and of a user's turn perhaps a look at a part of an image
SPECIAL_TOKENS = "special_tokens.jsonl"


@dataclass(frozen=True)
class PromptReader:
    """Makes the prompts of ``pairs`` as a judge gets them; no text keeps one of a tokenizer's ``specials``. ``opening`` is the
    thinking that the chat template opens (:func:`rewardlab.samplers.hf.thinking_opening`)."""

    pairs: Sequence[PreferencePair]
    template: Template
    specials: tuple[str, ...] = ()
    opening: str = ""

    def read(self, number: int, orders: Sequence[Order]) -> tuple[PreferencePair, dict[Order, tuple[Chat, list[Image]]]]:
        """Return rows with ``prompt``, ``images`` (decoded), ``pair_id``, ``question``, ``order`` and ``preferred``; each pair
        is read and decoded once. Raise DataError and MediaError."""
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
    """The prompts of RL. A row of ``dataset`` is a number; :meth:`read` makes the row of it. ``keys`` are pair and order of
    each; ``threads`` read and decode concurrently."""

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
    facts: Row = {"pair_id": pair.pair_id, "question": pair.question, "order": order.value, "preferred": pair.preferred}
    facts["criteria"] = pair.criteria
    return {"prompt": prompt, "images": images, **facts}


@dataclass(frozen=True)
class SFTDialogue:
    """What is learnt of pair ``number`` shown in ``order``: an answer, after earlier ``turns``; None: the pair's judgment, or
    its turn number ``part`` from 1 on (0: all of it)."""

    number: int
    order: Order
    answer: str | None = None
    turns: tuple[Turn, ...] = ()
    part: int = 0


def turn(role: str, content: str) -> Turn:
    return {"role": role, "content": content}


def learnt_answers(pairs: Sequence[PreferencePair], dialogues: Sequence[SFTDialogue]) -> Iterator[tuple[str, str]]:
    """Yield (pair id, answer) of dialogues, in any order; judgments are read from disk without media."""
    facts = pair_facts(pairs)
    yield from ((facts[dialogue.number].pair_id, dialogue.answer) for dialogue in dialogues if dialogue.answer is not None)
    times = Counter(dialogue.number for dialogue in dialogues if dialogue.answer is None)
    for number, pair in light_pairs(pairs) if times else ():
        yield from [(pair.pair_id, pair.judgment)] * times[number]


def list_special_tokens(answers: Iterable[tuple[str, str]], specials: Sequence[str], out: Path) -> None:
    """List the answers to learn from, given with their pairs' ids, that hold special tokens: each token is broken. Log how
    many they are."""
    rows, num_answers, file = [], 0, out / SPECIAL_TOKENS
    for pair_id, answer in answers:
        num_answers += 1
        if (learnt := completion_to_learn(answer, specials)) != answer:
            tokens = [token for token in specials if token in answer and token not in learnt]
            rows.append({"pair_id": pair_id, "tokens": tokens})
    if rows and not has_begun(out):  # a run that is gone on with, or refused, has its list
        write_atomic(file, "".join(json.dumps(row) + "\n" for row in rows))
    elif file.exists() and not has_begun(out):
        file.unlink()  # of a start that failed
    if rows:
        log_line(
            f"{len(rows):,} of {num_answers:,} answers to learn from hold special tokens of the model, such as "
            f"{rows[0]['tokens'][0]} in {rows[0]['pair_id']}: a zero-width space breaks each, as in prompts; see {file}"
        )


def _in_parts(message: Turn, specials: Sequence[str]) -> dict[str, Any]:
    text = completion_to_learn(message["content"], specials)
    looked = [{"type": "image"}] if message.get("look") else []
    return {"role": message["role"], "content": [*looked, {"type": "text", "text": text}]}


def dialogue_dataset(reader: PromptReader, dialogues: Sequence[SFTDialogue]) -> Dataset:
    """Return a dataset for TRL's SFTTrainer: prompt, images and completion, made when rows are taken. The stored columns have
    the same names, or the trainer would remove them."""
    columns = {
        "prompt": [json.dumps([item.number, item.order.value, item.turns, item.part]) for item in dialogues],
        "completion": [dialogue.answer for dialogue in dialogues],
    }
    # No function of this function's own: where processes are spawned, a loader's processes are sent it.
    return Dataset.from_dict(columns).with_transform(partial(_read_dialogues, reader))


def _read_dialogues(reader: PromptReader, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = {"prompt": [], "completion": [], "images": []}
    for key, answer in zip(batch["prompt"], batch["completion"], strict=True):
        number, order, turns, part = json.loads(key)
        pair, prompts = reader.read(number, [Order(order)])
        chat, images = prompts[Order(order)]
        dialogue = SFTDialogue(number, Order(order), answer, tuple(turns), part)
        turns, answer = judgment_turns(pair, dialogue, reader.template, len(images))
        looks = [message["look"] for message in turns if message.get("look")]
        images = [*images, *(part_of_pixels(images[look.image], look.pixels) for look in looks)]
        learnt = completion_to_learn(answer, reader.specials)
        learnt = reader.opening + continuation(learnt, reader.opening)
        rows["prompt"].append([*chat, *(_in_parts(message, reader.specials) for message in turns)])
        rows["completion"].append([turn("assistant", learnt)])
        rows["images"].append(images)
    return rows


def places_that_fit(
    pairs: Sequence[PreferencePair],
    dialogues: Sequence[SFTDialogue],
    config: TrainConfig,
    template: Template,
    file: Path,
) -> Sequence[int]:
    """Return the places of the dialogues that fit, as :func:`short_samples` says."""
    places: dict[int, list[int]] = {}
    for place, dialogue in enumerate(dialogues):
        places.setdefault(dialogue.number, []).append(place)

    def candidates(counter: TokenCounter, limit: int, advance: Advance) -> Iterator[Candidate]:
        for number, pair in light_pairs(pairs):
            for place in places.get(number, ()) if number % num_processes() == process_index() else ():
                messages, answer = dialogue_messages(pair, dialogues[place], template)
                yield from counter.candidate(place, pair, counter.render(messages) + counter.learnt(answer), limit)
                advance(num_processes())

    def count(counter: TokenCounter, place: int) -> SampleTokens:
        return count_dialogue(pairs[dialogues[place].number], dialogues[place], counter, template)

    learnt = hashlib.sha256("".join(map(repr, dialogues)).encode(errors="surrogatepass")).hexdigest()
    key = (fingerprint_of(pairs), learnt, template.hash)
    return short_samples(len(dialogues), config, file, key, candidates, count, what="dialogues")


def dialogue_messages(pair: PreferencePair, dialogue: SFTDialogue, template: Template) -> tuple[list[Message], str]:
    """Return the messages before a dialogue's answer, and the answer."""
    before, answer = judgment_turns(pair, dialogue, template, 0)
    turns = [Message(turn["role"], (Part(turn["content"]),)) for turn in before]
    return [*build_messages(pair, order=dialogue.order, template=template), *turns], answer


def judgment_turns(
    pair: PreferencePair, dialogue: SFTDialogue, template: Template, num_images: int
) -> tuple[tuple[Turn, ...], str]:
    """Return the turns before a dialogue's answer, and the answer. A user's turn may have a ``look`` at one of the
    ``num_images`` that the prompt shows. Raise DataError for a part of a judgment that is not the template's."""
    if dialogue.answer is not None or not dialogue.part or template.turns is None:
        return dialogue.turns, pair.judgment if dialogue.answer is None else dialogue.answer
    parts = split_answer(pair, pair.judgment, template)
    before: list[Turn] = []
    for number in range(1, dialogue.part):
        reply = template.turns.reply(parts[:number], num_images)
        if reply is None:
            raise DataError(f"{pair.pair_id}: turn {number} of its judgment does not look at one of its {num_images} images")
        before += [turn("assistant", parts[number - 1]), {**turn("user", reply.text), "look": reply.look}]
    return tuple(before), parts[dialogue.part - 1]


def count_dialogue(pair: PreferencePair, dialogue: SFTDialogue, counter: TokenCounter, template: Template) -> SampleTokens:
    """Return the tokens of a dialogue: prompt, images, turns and answer."""
    prompt = counter.sample(pair, dialogue.order, template)
    messages, answer = dialogue_messages(pair, dialogue, template)
    [text] = counter.texts([counter.render(messages)], [answer], [prompt.num_images])
    return replace(prompt, text=text)
