"""A local checkpoint, through transformers: batched generation with images."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from rewardlab.data.images import decode_image
from rewardlab.errors import CheckpointError, ConfigError
from rewardlab.models.attention import ATTENTIONS
from rewardlab.models.families import end_token_ids, image_fields, left_pad, text_before, vision_token_ids
from rewardlab.models.loading import load_model
from rewardlab.models.model_config import max_positions
from rewardlab.models.processed_images import OF_ROWS
from rewardlab.prompts.sanitize import completion_to_learn, without_tokens
from rewardlab.samplers.base import HF, UNREADABLE, EngineArgsParser, EngineOptions, Sampler, SamplingParams
from rewardlab.samplers.decode import HotToken, draw, read_logits
from rewardlab.samplers.shared_prefix import group_numbers
from rewardlab.types import Choice, Completion, FinishReason, Message, Part
from rewardlab.verdicts.margins import verdict_margins
from rewardlab.verdicts.parse import continuation, opened_thinking, verdict_label

# How a checkpoint is read, as engine_args say it of an hf: judge; what they are left to is the first of each.
READING = {"dtype": ("auto", "bfloat16", "float32"), "attn-implementation": ATTENTIONS}


def reading_options(text: str) -> dict[str, str]:
    """Return the ``dtype`` and the ``attention`` of :func:`rewardlab.models.loading.load_model` that ``text`` says, such as
    "--dtype bfloat16 --attn-implementation sdpa". Raise ConfigError for anything else."""
    parser = EngineArgsParser(text, " ".join(f"[--{name} {'|'.join(values)}]" for name, values in READING.items()))
    for name, values in READING.items():
        parser.add_argument(f"--{name}", choices=values, default=values[0])
    options = parser.parse_args(shlex.split(text))
    return {"dtype": options.dtype, "attention": options.attn_implementation}


def special_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Return the texts that a tokenizer takes for special tokens wherever they stand, the longest first."""
    specials = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return tuple(sorted(specials | set(tokenizer.all_special_tokens), key=len, reverse=True))


def chat_of(prompt: Sequence[Message], specials: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return messages in the form chat templates take; images as placeholders, in place. No text keeps one of ``specials``: it
    would be read as what the template writes."""
    return [
        {
            "role": message.role,
            "content": [
                {"type": "image"} if part.image is not None else {"type": "text", "text": without_tokens(part.text, specials)}
                for part in message.parts
            ],
        }
        for message in prompt
    ]


def thinking_opening(processor: Any) -> str:
    """Return the ``<think>``, with the blanks behind it, in which a processor's chat template ends each prompt; "" for most."""
    chat = chat_of([Message("user", (Part("."),))])
    return opened_thinking(str(processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)))


def user_turn(processor: Any, content: str, images: Sequence[Any] = ()) -> tuple[list[int], dict[str, Any]]:
    """Return the tokens from the end of a model's turn, with its end token, to the beginning of its next one, and the fields of
    the ``images`` that the user's turn between begins with. Raise ConfigError for a family whose fields depend on the other
    images of a prompt."""
    marker = "\u241e"
    before, answer, text = ({"type": "text", "text": text} for text in (".", marker, content))
    turns = [("user", [before]), ("assistant", [answer]), ("user", [*({"type": "image"} for _ in images), text])]
    chat = [{"role": role, "content": parts} for role, parts in turns]
    rendered = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True).partition(marker)[2]
    if not images:
        return list(processor.tokenizer(rendered, add_special_tokens=False)["input_ids"]), {}
    inputs = processor(text=[rendered], images=[list(images)], add_special_tokens=False, return_tensors="pt")
    fields = image_fields(inputs)
    if not OF_ROWS.isdisjoint(fields) or text_before(processor):
        raise ConfigError(f"{type(processor).__name__} takes no more images within a chat; use a template without looks")
    return list(inputs["input_ids"][0].tolist()), fields


def encode(
    processor: Any, prompts: Sequence[Sequence[Message]], beginnings: Sequence[str] | None = None
) -> dict[str, torch.Tensor]:
    """Return left-padded model inputs, each followed by a given beginning of its answer. Raise MediaError for an image that
    cannot be decoded."""
    specials = special_tokens(processor.tokenizer)
    texts = [
        processor.apply_chat_template(chat_of(prompt, specials), tokenize=False, add_generation_prompt=True)
        for prompt in prompts
    ]
    if beginnings is not None:
        texts = [text + continuation(begin, opened_thinking(text)) for text, begin in zip(texts, beginnings, strict=True)]
    decode = cache(decode_image)  # chats of one prompt share its images
    images = [[decode(image) for message in prompt for image in message.images] for prompt in prompts]
    return dict(processor(text=texts, images=images if any(images) else None, padding=True, return_tensors="pt"))


def verdict_token_ids(tokenizer: Any, choice: Choice) -> list[int]:
    """Return the single tokens that spell a verdict, with and without a leading space. Raise CheckpointError without any."""
    label = verdict_label(choice)
    spellings = [tokenizer.encode(text, add_special_tokens=False) for text in (label, f" {label}")]
    if not (tokens := sorted({ids[0] for ids in spellings if len(ids) == 1})):
        raise CheckpointError(f"the tokenizer writes the verdict {label!r} as several tokens; its probability cannot be read")
    return tokens


def append_answers(inputs: dict[str, torch.Tensor], answers: Sequence[Sequence[int]], pad: int) -> dict[str, torch.Tensor]:
    """Return left-padded inputs with the tokens of an answer, or of its beginning, behind each prompt; left-padded again."""
    shape = inputs["input_ids"].shape

    def extend(name: str, values: torch.Tensor) -> torch.Tensor:
        is_ids, attends = name == "input_ids", int(name == "attention_mask")
        tails = [values.new_tensor(answer) if is_ids else values.new_full((len(answer),), attends) for answer in answers]
        return left_pad([torch.cat([row, tail]) for row, tail in zip(values, tails, strict=True)], pad if is_ids else 0)

    return {name: extend(name, values) if values.shape == shape else values for name, values in inputs.items()}


def encode_replies(processor: Any, prompts: Sequence[Sequence[Message]]) -> dict[str, torch.Tensor]:
    """Return the inputs of prompts that end in a turn of the model's own, with that turn's tokens and its end as ``labels``
    [N, L], else -100. Raise as :func:`encode`."""
    tokenizer, specials = processor.tokenizer, special_tokens(processor.tokenizer)
    texts = [completion_to_learn(prompt[-1].text, specials) for prompt in prompts]
    replies = [[*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id] for text in texts]
    inputs = append_answers(encode(processor, [prompt[:-1] for prompt in prompts]), replies, tokenizer.pad_token_id)
    labels = torch.full_like(inputs["input_ids"], -100)
    for row, reply in zip(labels, replies, strict=True):
        row[-len(reply) :] = torch.tensor(reply)
    return inputs | {"labels": labels}


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return what each token adds to the text: joined, the text of all of them, special tokens left out.

    Where a character is spread over several tokens, the last of them holds it.
    """
    texts = [tokenizer.decode([token], skip_special_tokens=True) for token in ids]
    text = tokenizer.decode(list(ids), skip_special_tokens=True)
    if "".join(texts) == text:
        return texts
    start, pieces = 0, []
    for n in range(1, len(ids) + 1):
        end = len(tokenizer.decode(list(ids[:n]), skip_special_tokens=True).rstrip("\ufffd")) if n < len(ids) else len(text)
        pieces.append(text[start : max(start, end)])
        start = max(start, end)
    return pieces


def _groups(prompts: Sequence[Sequence[Message]]) -> list[int]:
    """Return group numbers, equal for prompts with the same images."""
    return group_numbers([tuple(image for message in prompt for image in message.images) for prompt in prompts])


class HFSampler:
    """Samples from a transformers model; at most ``batch_size`` sequences at a time.

    A prompt that cannot be read, as an undecodable image, raises. Where the sampler ``isolates`` such prompts, and those longer
    than the model's context, their completions fail instead, with a reason that begins with :data:`UNREADABLE`.
    ``hot``: FIRE sampling, for draws that differ; their log-probs are still the model's own.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        *,
        name: str = HF,
        batch_size: int = 64,
        hot: HotToken | None = None,
        isolates: bool = False,
    ) -> None:
        self.model, self.processor, self.batch_size, self.hot = model, processor, batch_size, hot
        self._name, self._isolates = name, isolates
        self._max_tokens = max_positions(model.config.get_text_config().to_dict()) or math.inf
        self._suppressed, self._ends = vision_token_ids(model.config), end_token_ids(model)
        self._opening = thinking_opening(processor)

    @staticmethod
    def load(
        path: str | Path,
        *,
        batch_size: int = 64,
        device: str | None = None,
        dtype: str = "auto",
        attention: str = "auto",
        isolates: bool = False,
    ) -> HFSampler:
        """Return the sampler of a checkpoint; the options and the errors are load_model's."""
        model, processor = load_model(str(path), device=device, dtype=dtype, attention=attention)
        return HFSampler(model, processor, name=f"{HF}:{path}", batch_size=batch_size, isolates=isolates)

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_batch_invariant(self) -> bool:
        return False  # one generator draws for all rows of a batch

    def check(self) -> None:
        """Do nothing: a loaded model is always there."""

    def encode(self, prompts: Sequence[Sequence[Message]], beginnings: Sequence[str] | None = None) -> dict[str, torch.Tensor]:
        """:func:`encode`, on the model's device."""
        inputs = encode(self.processor, prompts, beginnings)
        return {name: values.to(self.model.device) for name, values in inputs.items()}

    def _encode_readable(self, prompts: Sequence[tuple[Message, ...]]) -> tuple[dict[str, torch.Tensor], dict[int, str]]:
        """Return the inputs of the prompts that can be read, and why the others cannot, by number. All of them are read at once
        first: only where that fails each is looked at."""
        if not self._isolates:
            return self.encode(prompts), {}
        with contextlib.suppress(Exception):  # the boundary: a processor fails in any way
            inputs = self.encode(prompts)
            if inputs["attention_mask"].shape[1] <= self._max_tokens:
                return inputs, {}
        refused = {n: reason for n, prompt in enumerate(prompts) if (reason := self._why_unreadable(prompt))}
        readable = [prompt for n, prompt in enumerate(prompts) if n not in refused]
        return self.encode(readable) if readable else {}, refused

    def _why_unreadable(self, prompt: tuple[Message, ...]) -> str:
        """Return why a prompt cannot be read, "" where it can."""
        try:
            num_tokens = self.encode([prompt])["attention_mask"].shape[1]
        except Exception as error:  # the boundary
            return f"{UNREADABLE}: {error}"
        if num_tokens <= self._max_tokens:
            return ""
        return f"{UNREADABLE}: it has {num_tokens:,} tokens, and the model reads at most {self._max_tokens:,}; shorten it"

    def verdict_margins(
        self, prompts: Sequence[tuple[Message, ...]], beginnings: Sequence[str]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ([N] margin of the first response, [N] coverage) where the verdict of each answer stands, which ``beginnings``
        go up to; see :func:`rewardlab.verdicts.margins.verdict_margins`. One forward pass per batch, nothing is sampled."""
        first, second = (verdict_token_ids(self.processor.tokenizer, choice) for choice in (Choice.FIRST, Choice.SECOND))
        margins, coverages = [torch.empty(0, dtype=torch.float64)], [torch.empty(0, dtype=torch.float64)]
        for start in range(0, len(prompts), self.batch_size):
            rows = slice(start, start + self.batch_size)
            logits_NV = read_logits(self.model, self.encode(prompts[rows], beginnings[rows]), _groups(prompts[rows]))
            margins_N, coverage_N = verdict_margins(logits_NV, first, second)
            margins.append(margins_N.cpu())
            coverages.append(coverage_N.cpu())
        return torch.cat(margins), torch.cat(coverages)

    def sample(
        self,
        prompts: Sequence[tuple[Message, ...]],
        params: SamplingParams,
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Completion]]:
        """Return ``params.num_samples`` completions per prompt, each with its token ids; ``seed`` fixes them for equal batches.

        A text begins with the thinking that its prompt opened. ``prefixes`` are the tokens that the answer to each prompt
        begins with; a completion is what comes after them, and they count as tokens of its prompt. Raise ValueError for a
        prefix that has ended.
        """
        if prefixes is not None and (finished := [n for n, prefix in enumerate(prefixes) if self._ends & set(prefix)]):
            raise ValueError(f"prefix {finished[0]} holds an end token; an answer cannot continue after it")
        per_batch = max(1, self.batch_size // params.num_samples)
        generator = torch.Generator(self.model.device).manual_seed(params.seed)
        completions: list[list[Completion]] = []
        for start in range(0, len(prompts), per_batch):
            rows = slice(start, start + per_batch)
            inputs, refused = self._encode_readable(prompts[rows])
            readable = [prompt for n, prompt in enumerate(prompts[rows]) if n not in refused]
            if prefixes is not None:
                inputs = append_answers(inputs, prefixes[rows], self.processor.tokenizer.pad_token_id)
            groups, by_prompt = _groups(readable), [list[Completion]() for _ in readable]
            for first in range(0, params.num_samples if readable else 0, self.batch_size):
                num = min(self.batch_size, params.num_samples - first)
                draws = self._draw(inputs, replace(params, num_samples=num), generator, groups)
                opening = self._opening if prefixes is None else ""
                for row, more in zip(by_prompt, draws, strict=True):
                    row += [replace(one, text=opening + one.text) for one in more] if opening else more
            drawn = iter(by_prompt)
            completions += [
                [Completion("", FinishReason.ERROR, error=refused[n])] * params.num_samples if n in refused else next(drawn)
                for n in range(len(prompts[rows]))
            ]
        return completions

    def _draw(
        self,
        inputs: dict[str, torch.Tensor],
        params: SamplingParams,
        generator: torch.Generator,
        groups: Sequence[int] | None = None,
    ) -> list[list[Completion]]:
        draws = draw(
            self.model,
            inputs,
            num_draws=params.num_samples,
            **params.fields,
            ends=self._ends,
            suppress=self._suppressed,
            generator=generator,
            groups=groups,
            hot=self.hot,
        )
        if params.temperature > 0 and any(math.isnan(value) for row in draws.logprobs for value in row):
            raise CheckpointError(f"{self._name}: its next-token logits are not finite; the model has diverged or is corrupt")
        prompt_tokens = inputs["attention_mask"].sum(1).tolist()
        k = params.num_samples
        flat = [
            self._completion(tokens, logprobs, prompt_tokens[row // k])
            for row, (tokens, logprobs) in enumerate(zip(draws.tokens, draws.logprobs, strict=True))
        ]
        return [flat[i * k : (i + 1) * k] for i in range(len(prompt_tokens))]

    def _completion(self, tokens: list[int], logprobs: list[float], num_prompt_tokens: int) -> Completion:
        finish = FinishReason.STOP if tokens[-1] in self._ends else FinishReason.LENGTH
        text = self.processor.tokenizer.decode(tokens, skip_special_tokens=True)
        return Completion(text, finish, len(tokens), num_prompt_tokens, tuple(tokens), tuple(logprobs))


def open_sampler(target: str, options: EngineOptions) -> Sampler:
    """Return a sampler of a checkpoint folder or hub id, in a process of its own if it is to be restarted."""
    from rewardlab.samplers.child_process import ProcessSampler

    reading = reading_options(options.query.engine_args)
    opener = partial(HFSampler.load, target, batch_size=options.query.batch_size, isolates=options.isolates, **reading)
    return opener() if options.restart_after_s is None else ProcessSampler(opener, timeout_s=options.restart_after_s)
