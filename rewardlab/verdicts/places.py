"""Where in a judge's answer a verdict may stand: after the reasoning, in the last line, and in no quotation."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from rewardlab.types import Choice, Verdict, VerdictStatus

DIGITS = {"1": Choice.FIRST, "2": Choice.SECOND}
LETTERS = {"A": Choice.FIRST, "B": Choice.SECOND}
EITHER = {**DIGITS, **LETTERS}
NOUN = r"(?:Response|Answer|Assistant|Option|Model|Image|Video|Caption|Output|Candidate)"
_CORRECTED = (
    r"\b(?i:sorry|meant?|correction|actually|wait|no(?=[,:;.!])|rather(?!\sthan))\b.{0,60}?"
    rf"\b(?i:{NOUN})\s{{0,2}}\(?([12AB])\b"
)
_CORRECTION = re.compile(_CORRECTED)
_CORRECTING_CLAUSE = re.compile(rf"[^\w\s'’]\s{{0,5}}(?:(?i:oh|well|hmm|but|and|or|i(?:['’]m)?)\W{{1,3}}){{0,2}}{_CORRECTED}")
REASONING_TAGS = ("think", "thinking", "reasoning")
ANSWER_TAG = ("<answer>", "</answer>")
LABEL_TAGS = (
    *("answer", "final_answer", "verdict", "final_verdict", "winner", "choice", "preferred", "decision", "judgment"),
    "better_response",
)
BOX_TOKENS = ("<|begin_of_box|>", "<|end_of_box|>")
RESULT = "[RESULT]"
CHANNEL, MESSAGE = "<|channel|>", "<|message|>"
# What readers find the parts of a judgment by; in some tokenizers these are special tokens.
JUDGMENT_TOKENS = frozenset(
    (
        *(*BOX_TOKENS, RESULT, CHANNEL, MESSAGE),
        *(f"<{end}{tag}>" for tag in (*REASONING_TAGS, *LABEL_TAGS) for end in ("", "/")),
    )
)
_MARKUP = re.compile(r"[*_#]+")
_REASONING = re.compile(
    rf"<(?P<end>/?)(?P<tag>{'|'.join(REASONING_TAGS)})>"
    rf"|{re.escape(CHANNEL)}(?P<channel>analysis|final)(?:{re.escape(MESSAGE)})?"
)
LINE = 2000  # characters at the end of a line that statements are looked for in
QUOTES = "\"'`“”‘’«»「」"
_PAIRS = (("“", "”"), ("«", "»"), ("「", "」"), ("『", "』"))

Reader = Callable[[str], Verdict]


def no_verdict(rule: str) -> Verdict:
    return Verdict(None, VerdictStatus.NO_VERDICT, rule)


def choice_verdict(choice: Choice | None, rule: str) -> Verdict:
    return Verdict(choice, VerdictStatus.OK if choice else VerdictStatus.NOT_A_CHOICE, rule)


def without_markup(text: str) -> str:
    """Return a text without Markdown's emphasis."""
    return _MARKUP.sub("", text)


def after_thinking(text: str) -> str | None:
    """Return what follows the reasoning: all of a text without one; None if a reasoning was opened and not closed.

    It stands between the tags ``think``, ``thinking`` or ``reasoning``, or in the channel ``analysis``, before ``final``. Tags
    of another kind within it do not count.
    """
    opened, begin = "", 0
    for match in _REASONING.finditer(text):
        kind = match["tag"] or "channel"
        if match["end"] or match["channel"] == "final":
            opened, begin = ("", match.end()) if opened in ("", kind) else (opened, begin)
        else:
            opened = opened or kind
    return None if opened else text[begin:]


def with_thinking(text: str, opened: bool | None) -> str:
    """Return a completion with the ``<think>`` that its prompt ``opened``. None: not known, as of a recorded text; then one
    that closes a thinking without opening it had it opened."""
    is_opened = ("<think>" not in text and "</think>" in text) if opened is None else opened
    return f"<think>{text}" if is_opened else text


def reasoning_span(text: str, *, opened: bool | None = None) -> tuple[int, int] | None:
    """Return where the text between the first ``<think>``, or the beginning without one, and the last ``</think>`` starts and
    ends; None if it is not closed, or not opened (``opened`` as in :func:`with_thinking`)."""
    start, end = text.find("<think>"), text.rfind("</think>")
    if start < 0 and opened is False:
        return None
    begin = 0 if start < 0 else start + len("<think>")
    return (begin, end) if begin <= end else None


def reasoning_of(text: str) -> str:
    """Return the reasoning of :func:`reasoning_span`, without blanks around it; "" if there is none."""
    span = reasoning_span(text)
    return text[span[0] : span[1]].strip() if span else ""


def reads_rest(read: Reader) -> Reader:
    """Return the reader applied to what follows the reasoning."""

    def read_rest(text: str) -> Verdict:
        rest = after_thinking(text)
        return no_verdict("unclosed_think") if rest is None else read(rest)

    read_rest.__doc__ = read.__doc__
    return read_rest


def is_quoted(text: str, begin: int, end: int) -> bool:
    """Return whether a place stands in quotation marks: right between two, or after one that its line has not closed."""
    before, after = text[max(0, begin - 2) : begin].rstrip()[-1:], text[end : end + 3].lstrip(" .")[:1]
    if before and after and before in QUOTES and after in QUOTES:
        return True
    return bool(_open_marks(text, text.rfind("\n", 0, begin) + 1, begin))


def _open_marks(text: str, begin: int, end: int) -> str:
    """Return the quotation marks that a part of a line opens and does not close."""
    odd = "".join(mark for mark in '"`' if text.count(mark, begin, end) % 2)
    return odd + "".join(mark for mark, close in _PAIRS if text.count(mark, begin, end) > text.count(close, begin, end))


def end_of_line(line: str) -> str:
    """Return the end of a line that statements are looked for in, behind the marks of quotations that begin before it."""
    cut = max(0, len(line) - LINE)
    return _open_marks(line, 0, cut) + line[cut:]


def statements_of(line: str, pattern: re.Pattern[str]) -> list[str]:
    """Return what stands in the places of a line that are no quotations; a line that holds nothing else counts quoted too."""
    line = end_of_line(line)
    if whole := pattern.fullmatch(line.strip(QUOTES + " .")):
        return [whole[1].strip().upper()]
    places = pattern.finditer(line)
    return [match[1].strip().upper() for match in places if not is_quoted(line, match.start(), match.end())]


@dataclass(frozen=True)
class Place:
    """A tag or box in which a verdict may stand: its ``content``, that of places of its kind ``before`` it in its line
    (quotations left out), and the rest of the line ``after`` it."""

    content: str
    before: tuple[str, ...]
    after: str


def place_in(text: str, begin: int, content: str, end: int, pattern: re.Pattern[str]) -> Place:
    """Return the place of a text from ``begin`` to ``end``; ``pattern`` finds places of its kind, and group 1 their content."""
    line = end_of_line(text[text.rfind("\n", 0, begin) + 1 : begin])
    places = pattern.finditer(line)
    before = tuple(match[1].strip() for match in places if not is_quoted(line, match.start(), match.end()))
    return Place(content.strip(), before, text[end:].partition("\n")[0])


def verdict_at(place: Place, read: Callable[[str], Choice | None], rule: str) -> Verdict:
    """Return the verdict that ``read`` finds in a place: no choice if its line has the other response in a place before it, or
    corrects it ("sorry, I meant Response 1")."""
    choice = read(place.content)
    others = {*map(read, place.before), *(EITHER[match[1]] for match in _CORRECTION.finditer(place.after))}
    return choice_verdict(None if choice and choice.swap() in others else choice, rule)


def corrected_choices(reason: str) -> set[Choice]:
    """Return the choices that clauses of a reason after a verdict correct it to: "; sorry, Answer 2". Within a clause the same
    words are part of the reason: "because it actually counts them, which Answer 2 does not"."""
    return {EITHER[match[1]] for match in _CORRECTING_CLAUSE.finditer(reason)}


def last_lines(text: str, number: int) -> list[str]:
    """Return the last ``number`` lines that are not blank, without emphasis; none of a block quotation that a line ending in a
    colon introduces."""
    lines: list[str] = []
    while len(lines) < number and (text := text.rstrip()):
        text, _, line = text.rpartition("\n")
        lines.append(without_markup(line).strip())
        if line.lstrip().startswith(">") and _introduces_quotation(text):
            return []
    return lines[::-1]


def _introduces_quotation(text: str) -> bool:
    lines = (line.strip() for line in reversed(text.split("\n")))
    before = next((line for line in lines if line and not line.startswith(">")), "")
    return without_markup(before).rstrip().endswith((":", "："))


def last_line(text: str) -> str:
    """Return the last line that is not blank, without emphasis, "" if it is a block quotation, as in :func:`last_lines`."""
    return (last_lines(text, 1) or [""])[0]
