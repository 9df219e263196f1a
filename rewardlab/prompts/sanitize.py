"""The text of a question or an answer stays inside its place: it cannot end the turn, pose as the other answer, or speak
for the judge.

Three kinds of text are altered, as little as makes them something else to a machine; all other text is left as it is.
Control tokens of chat templates, and the tags a judge writes, get a zero-width space after their first character. A line
that begins as one of the template's own headings is quoted.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache

from rewardlab.verdicts.places import JUDGMENT_TOKENS

MARK = "\u200b"  # ZERO WIDTH SPACE
QUOTE = "> "
CRITERIA = "Judge by these criteria:"  # the heading of a question's criteria

# Special tokens of the common tokenizers: <|im_end|>, <｜User｜>, </s>, [INST], <start_of_turn>, <image>, ...
_CONTROL = re.compile(
    r"<(?=\|[^|<>\s]{1,40}\|?>|[^|<>\s]{1,40}\|>|｜[^<>｜]{1,40}｜>|/?s>|pad>|eos>|bos>|unk>|/?(?:start|end)_of_(?:turn|image)>"
    r"|(?:image|video|audio)(?:_soft_token)?>|<?/?SYS>)"
    r"|\[(?=/?(?:INST|IMG(?:_BREAK|_END)?|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT)|ARGS|CALL_ID|THINK)\])"
)
_TAGS = re.compile(r"<(?=\s*(?:/\s*)?(?:think|answer|reasoning|look|tool_call|tool_response)\s*>)", re.IGNORECASE)
_LINE_END = re.compile("\r\n|[\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029]")  # whatever str.splitlines ends a line at
# Format characters, fillers and selectors: a line looks the same with them.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0"
    "\U000e0000-\U000e0fff]"
)
_SLOT = re.compile(r"\{(?:question|first|second|response_\d+)\}")


@cache
def headings(template: str) -> re.Pattern[str] | None:
    """Return a pattern of the template's lines right before and after its slots, at a line's beginning; None without any."""
    pieces, borders = _SLOT.split(template), {CRITERIA}
    for place, piece in enumerate(pieces):
        lines = [line.strip() for line in piece.split("\n")]
        before, after = [line for line in lines if line][-1:], [line for line in lines[1:] if line][:1]
        borders |= set(before if place < len(pieces) - 1 else []) | set(after if place else [])
    texts = sorted((line for line in borders if re.search(r"\w", line)), key=len, reverse=True)
    if not texts:
        return None
    loose = [r"\s+".join(map(re.escape, line.split())) for line in texts]
    return re.compile(rf"^(?=[^\S\n]*(?:{'|'.join(loose)}))", re.MULTILINE | re.IGNORECASE)


def without_tokens(text: str, tokens: Sequence[str]) -> str:
    """Return ``text`` in which none of a tokenizer's own special ``tokens`` is left whole."""
    for token in tokens:
        if token in text:
            text = text.replace(token, token[0] + MARK + token[1:])
    return text


def completion_to_learn(text: str, tokens: Sequence[str]) -> str:
    """Return a completion that a model is trained on: :func:`without_tokens`, but what a judge writes for its readers stays
    whole."""
    return without_tokens(text, [token for token in tokens if token not in JUDGMENT_TOKENS and not _TAGS.match(token)])


def break_control_tokens(text: str) -> str:
    """Return ``text`` in which no control token of a chat template is left whole; its tags stay."""
    has_one = "<" in text or "[" in text  # else nothing to look for, many times faster
    return _CONTROL.sub(lambda m: m[0] + MARK, text) if has_one else text


def sanitize(text: str, template: str) -> str:
    """Return ``text`` as it may stand in a slot of ``template``; idempotent on what it has altered."""
    text = break_control_tokens(text)
    text = _TAGS.sub(lambda m: m[0] + MARK, text) if "<" in text else text
    heading = headings(template)
    if heading is None:
        return text
    lines = _LINE_END.sub("\n", text).split("\n")
    looks = list(map(_look_of, lines))
    quoted = heading.sub(QUOTE, "\n".join(looks)).split("\n")  # a heading may go on in the next line
    if quoted == looks:
        return text
    return "\n".join(QUOTE * (after != look) + line for after, look, line in zip(quoted, looks, lines, strict=True))


def _look_of(line: str) -> str:
    """Return a line without what nobody sees, in plain letters for those of full width."""
    return line if line.isascii() else _INVISIBLE.sub("", unicodedata.normalize("NFKC", line))
