"""Chats and their answers as OpenAI's API has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rewardlab.data.images import to_data_url
from rewardlab.samplers.failures import WITHOUT_TEXT
from rewardlab.types import Completion, FinishReason, Message

# Some servers leave the reason out; any other (a content filter, a tool call) means the answer is not the whole judgment.
_MOST_TOKENS = 2**31 - 1  # of one request; what tables hold
_FINISH = {"stop": FinishReason.STOP, None: FinishReason.STOP, "length": FinishReason.LENGTH}


def api_content(message: Message) -> str | list[dict[str, Any]]:
    """Return a message's content as the API takes it: a plain text, or parts with images as data URLs."""
    if not message.images:
        return message.text
    return [
        {"type": "text", "text": part.text}
        if part.image is None
        else {"type": "image_url", "image_url": {"url": to_data_url(part.image)}}
        for part in message.parts
    ]


def failed_completion(finish: FinishReason, error: str) -> Completion:
    """Return a completion that tells why there is no answer."""
    return Completion("", finish, error=error[:500].encode(errors="replace").decode())  # as with the text of an answer


def without_choices(answer: Any) -> str:
    """Return why an answer is none, with the server's own words where it has some; "" where it has choices."""
    if getattr(answer, "choices", None):
        return ""
    words = getattr(answer, "error", None)
    return "garbled answer: it has no choices" + (f" ({words!r:.300})" if words else "")


def completion_from(answer: Any) -> Completion:
    """Return the one completion of an answer of :meth:`ChatEndpoint.ask`; a failure is one, too."""
    return completions_from(answer, 1)[0]


def completions_from(answer: Any, number: int) -> list[Completion]:
    """Return ``number`` completions from the API's object; an answer without the fields it promises is an ERROR."""
    if isinstance(answer, Completion):
        return [answer] * number
    if fault := without_choices(answer):
        return [failed_completion(FinishReason.ERROR, fault)] * number
    try:
        choices = sorted(answer.choices, key=lambda choice: choice.index or 0)
        prompt_tokens = _count(answer.usage.prompt_tokens) if answer.usage else 0
        written = _count(answer.usage.completion_tokens) if answer.usage else 0
        details = getattr(answer.usage, "prompt_tokens_details", None)
        cached = _count(getattr(details, "cached_tokens", None)) if number == 1 else 0
    except (AttributeError, TypeError) as error:
        return [failed_completion(FinishReason.ERROR, f"garbled answer: {error!r}")] * number
    if len(choices) != number:
        return [failed_completion(FinishReason.ERROR, f"garbled answer: {len(choices)} choices in place of {number}")] * number
    return [_completion(choice, written if number == 1 else None, prompt_tokens, cached) for choice in choices]


def _count(value: Any) -> int:
    """Return a number of tokens as a server says it; 0 where it is no number that can be one."""
    try:
        return min(max(0, int(value or 0)), _MOST_TOKENS)
    except (TypeError, ValueError, OverflowError):
        return 0


def _completion(choice: Any, num_tokens: int | None, num_prompt_tokens: int, num_cached: int = 0) -> Completion:
    try:
        text, reason = choice.message.content, choice.finish_reason
        # Servers with a reasoning parser strip <think>...</think> into a field of its own: put it back where it was.
        reasoning = getattr(choice.message, "reasoning", None) or getattr(choice.message, "reasoning_content", None)
        scored = choice.logprobs.content if getattr(choice, "logprobs", None) is not None else None
        logprobs = tuple(token.logprob for token in scored or ())
        ids = tuple(getattr(choice, "token_ids", None) or ())
    except (AttributeError, TypeError) as error:
        return failed_completion(FinishReason.ERROR, f"garbled answer: {error!r}")
    if text is None and (reason == "length" or reasoning):  # cut off while it reasoned, or nothing but reasoning
        text = ""
    if not isinstance(text, str) or not isinstance(reason, str | None) or reason not in _FINISH:
        failed = failed_completion(FinishReason.ERROR, f"{WITHOUT_TEXT}, or not to its end (finish reason {reason!r})")
        return replace(failed, num_tokens=num_tokens or 0, num_prompt_tokens=num_prompt_tokens)  # it is billed all the same
    if isinstance(reasoning, str) and reasoning and "<think>" not in text:
        text = f"<think>{reasoning}</think>{text}"
    text = text.encode(errors="replace").decode()  # half a surrogate pair is no character and cannot be stored
    count = num_tokens if num_tokens is not None else len(ids) or len(logprobs)
    return Completion(text, _FINISH[reason], count, num_prompt_tokens, ids, logprobs, num_cached_tokens=num_cached)
