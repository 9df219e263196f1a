"""How the judges of the field state a verdict, one function each: ``text -> Verdict``, fail-closed and in linear time.

Common to all: what stands in the reasoning never counts, and a reasoning that was opened and not closed has no verdict after
it. In a tag or a box the *last* place counts and must hold a choice and nothing else; two in one line that differ are none. A
JSON object must end the text. Where a format has no tags the verdict must stand in the last line, or at the head of its own,
and two different ones there are none. A place within quotation marks is a quotation, so that a verdict which an answer smuggles
in, and the judge quotes, is not read; one that is repeated without any mark cannot be told from the judge's own.

``Verdict.rule`` says which place was looked at, also where no choice was found in it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import cast

from rewardlab.errors import ConfigError
from rewardlab.extensions import load_extension
from rewardlab.types import Choice, Completion, FinishReason, Verdict, VerdictStatus
from rewardlab.verdicts.checklist import ClaimCheck, ClaimFinding, checked_verdict, write_checks
from rewardlab.verdicts.lists import LIST_FORMATS, compared, list_reading
from rewardlab.verdicts.places import (
    ANSWER_TAG,
    BOX_TOKENS,
    DIGITS,
    EITHER,
    LABEL_TAGS,
    NOUN,
    RESULT,
    Place,
    Reader,
    choice_verdict,
    corrected_choices,
    is_quoted,
    last_line,
    last_lines,
    no_verdict,
    place_in,
    reads_rest,
    reasoning_of,
    statements_of,
    verdict_at,
    without_markup,
)
from rewardlab.verdicts.prose import choice_line, cjk_sentence, label_verdict, prose_sentence, stated_choices, winner_line


def _last_between(text: str, opening: str, closing: str) -> Place | None:
    """Return the last place between an opening mark and its closing one.

    None if there is none, if the place before it was not closed, or if it stands in quotation marks.
    """
    before, opened, rest = text.rpartition(opening)
    content, closed, after = rest.partition(closing)
    if not opened or not closed or before.rfind(opening) > before.rfind(closing):
        return None
    begin, end = len(before), len(text) - len(after)
    pattern = re.compile(f"{re.escape(opening)}(.*?){re.escape(closing)}")
    return None if is_quoted(text, begin, end) else place_in(text, begin, content, end, pattern)


@reads_rest
def think_answer(text: str) -> Verdict:
    """``<think>...</think><answer>1|2</answer>`` (R1-Reward).

    The content must be 1 or 2 exactly, surrounding blanks aside: "1 or 2", "Response 1" and "1.0" are not choices.
    """
    place = _last_between(text, *ANSWER_TAG)
    return no_verdict("no_answer_tag") if place is None else verdict_at(place, DIGITS.get, "answer_tag")


def checklist(text: str) -> Verdict:
    """``<think>Checks: ... Verification: ...</think><answer>1|2</answer>``: the verdict of :func:`think_answer`, if it follows
    from the checks (:mod:`rewardlab.verdicts.checklist`)."""
    return checked_verdict(think_answer(text), reasoning_of(text))


_SENTENCE = re.compile(r"(?:Answer|Response|Image|Video|Assistant)\s*([12AB])\s+is\s+(?:the\s+)?better\.?", re.IGNORECASE)


@reads_rest
def answer_sentence(text: str) -> Verdict:
    """``<answer>Answer 1 is better</answer>`` (UnifiedReward-Think); also Image, Video, Response and Assistant A."""
    place = _last_between(text, *ANSWER_TAG)
    return no_verdict("no_answer_tag") if place is None else verdict_at(place, _sentence_choice, "answer_sentence")


def _sentence_choice(content: str) -> Choice | None:
    match = _SENTENCE.fullmatch(content)
    return EITHER[match[1].upper()] if match else None


_LABEL_TAG_END = re.compile(rf"</({'|'.join(LABEL_TAGS)})>")


@reads_rest
def tagged_label(text: str) -> Verdict:
    """``<answer>A</answer>``, ``<verdict>Response 1</verdict>``: the last tag of :data:`LABEL_TAGS`, which holds the name of a
    response and nothing else; ``<answer>[[A]]</answer>`` too. C, "tie" and "draw" are a tie."""
    tags = _LABEL_TAG_END.findall(text)
    place = _last_between(text, f"<{tags[-1]}>", f"</{tags[-1]}>") if tags else None
    if place is None:
        return no_verdict("no_label_tag")
    stated = _tag_verdict(place.content)
    if stated is not None and stated.status is VerdictStatus.TIE:
        return stated
    return verdict_at(place, lambda content: getattr(_tag_verdict(content), "choice", None), "label_tag")


def _tag_verdict(content: str) -> Verdict | None:
    return label_verdict(without_markup(content).strip("[] "), "label_tag")


def bare(text: str) -> Verdict:
    """The verdict alone: 1 or 2 exactly, surrounding blanks aside."""
    return choice_verdict(DIGITS.get(text.strip()), "bare")


def _in_last_line(text: str, pattern: re.Pattern[str], rule: str) -> Verdict:
    statements = {_RELATIONS.get(statement, statement) for statement in statements_of(last_line(text), pattern)}
    if not statements:
        return no_verdict(f"no_{rule}")
    if statements <= {"C", "TIE"}:
        return Verdict(None, VerdictStatus.TIE, rule)
    return choice_verdict(EITHER.get(statements.pop()) if len(statements) == 1 else None, rule)


_RELATIONS = {"A>B": "A", "A>>B": "A", "B>A": "B", "B>>A": "B", "A=B": "TIE"}
_BRACKETS = re.compile(r"\[\[([^\[\]]{0,40})\]\]")


@reads_rest
def double_brackets(text: str) -> Verdict:
    """``[[A]]``, ``[[B]]`` or, a tie, ``[[C]]`` (MT-Bench, Multimodal RewardBench): the one in the last line;
    likewise ``[[A>B]]``, ``[[B>>A]]`` and ``[[A=B]]`` (Arena-Hard)."""
    return _in_last_line(text, _BRACKETS, "double_brackets")


_BETTER = re.compile(
    r"[\s:.,\-]{0,20}(?:Answer|Response)\s{0,3}(\w{1,4})\s+is\s+(?:the\s+)?"
    r"(?:(?:slightly|marginally|significantly|clearly|much)\s+)?better(?:\s(?:answer|response|one))?"
    r"(?=[^\S\n]{0,20}(?:\n|\Z|[^\w\s'’/-]|-(?!\w))|\s(?:than|because|since|due|overall)\b)",
    re.IGNORECASE,
)
_JUDGMENT = re.compile(r"^[\d.)\s]{0,8}Overall\s{1,3}Judge?ment\b", re.IGNORECASE | re.MULTILINE)
_THEREFORE = re.compile(r"Therefore\b", re.IGNORECASE)


@reads_rest
def overall_judgment(text: str) -> Verdict:
    """``Overall Judgment: Answer 1 is better.`` (VL-RewardBench's prompt): right after the last such heading, at the head of a
    line; without a heading, a last line that begins "Therefore, Answer 1 is better".

    The benchmark's own pattern takes the last "Answer X is better" after the first such word, however far below it, and
    any number for X; see ``benchmarks/vl_rewardbench``. "Better worded" and "better at guessing" are no verdict. A
    question is no choice, nor is a line that goes on to state another answer, or corrects itself ("; sorry, Answer 2").
    """
    plain = without_markup(text)
    heads = [match.end() for match in _JUDGMENT.finditer(plain)]
    if not heads and (therefore := _THEREFORE.match(last := last_line(text))):
        plain, heads = last, [therefore.end()]
    if not heads:
        return no_verdict("no_overall_judgment")
    match = _BETTER.match(plain, heads[-1])
    if match is None:
        return no_verdict("no_answer_is_better")
    rest = plain[match.end() :].partition("\n")[0]
    choice = DIGITS.get(match[1])
    is_open = rest.lstrip().startswith("?") or any(other[1] != match[1] for other in _BETTER.finditer(rest))
    is_open |= bool((stated_choices(rest) | corrected_choices(rest)) - {choice, None})
    return choice_verdict(None if is_open else choice, "answer_is_better")


def without_doubles(fields: list[tuple[str, object]]) -> dict[str, object]:
    """Return the fields of an object of JSON. Raise ValueError where two have one name: a reader would see but the last."""
    if len(names := dict(fields)) < len(fields):
        [(name, _)] = Counter(name for name, _ in fields).most_common(1)
        raise ValueError(f"the key {name[:80]!r} appears twice in one object: which value counts is not known")
    return names


_STRING_OR_COMMA = re.compile(r'("(?:[^"\\]++|\\.)*+"?)|,(?=[ \t\r\n]*[}\]])', re.DOTALL)
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})?')


def _mended(text: str) -> str:
    """Return JSON without trailing commas and without backslashes that begin no escape (LaTeX); strings keep their ends."""

    def mend(match: re.Match[str]) -> str:
        return _ESCAPE.sub(lambda escape: escape[0] if len(escape[0]) > 1 else "", match[1]) if match[1] else ""

    return _STRING_OR_COMMA.sub(mend, text)


def _last_object(text: str) -> dict[str, object] | None:
    """Return the JSON object from the first brace to the end, without a closing code mark; None if that is none."""
    _, brace, rest = text.rstrip().removesuffix("```").partition("{")
    try:
        value: dict[str, object] = json.loads(_mended(brace + rest), strict=False, object_pairs_hook=without_doubles)
    except (ValueError, RecursionError):
        return None
    return value


_NAMING_KEYS = ("better_response", "better_answer")  # of MMRB2 and of Con-J
_OTHER_KEYS = (  # whose values may be something else than a response
    *("winner", "verdict", "final_verdict", "preference", "preferred", "preferred_response", "preferred_answer", "better"),
    *("best_response", "choice", "decision", "final_decision", "judgment", "judgement", "chosen"),
)


@reads_rest
def json_better_response(text: str) -> Verdict:
    """``{"better_response": "A", ...}`` (Multimodal RewardBench 2); ``better_answer`` (Con-J), ``winner``, ``verdict``,
    ``preference`` and their like are read too, and 1 or 2, but as ``preference``, where a number may be a strength.

    The text must end with its one JSON object, with or without code marks around it; prose may stand before it. Line breaks and
    LaTeX within strings, and trailing commas, are read; nothing else is repaired. "Response B" and "B." are B. Two keys that
    differ are no verdict.
    """
    fields = _last_object(text)
    if fields is None:
        return no_verdict("no_json_object")
    stated = {key: _field_verdict(key, value) for key, value in fields.items() if key in _NAMING_KEYS + _OTHER_KEYS}
    verdicts = {verdict for key, verdict in stated.items() if verdict or key in _NAMING_KEYS}
    if len(verdicts) != 1:
        return no_verdict("no_better_response")
    return verdicts.pop() or choice_verdict(None, "better_response")


def _field_verdict(key: str, value: object) -> Verdict | None:
    label = str(value) if isinstance(value, str | int) else ""
    return None if key == "preference" and label.strip().isdecimal() else label_verdict(label, "better_response")


_RESULT = re.compile(r"\[RESULT\]\s{0,3}\(?([12AB])\b")


@reads_rest
def result_tag(text: str) -> Verdict:
    """``Feedback: ... [RESULT] A`` (Prometheus 2): the last mark; the letter, and nothing else, after it."""
    before, mark, label = text.rpartition(RESULT)
    if not mark or is_quoted(text, len(before), len(before) + len(mark)):
        return no_verdict("no_result_tag")
    place = place_in(text, len(before), without_markup(label).strip().strip("().").strip(), len(text), _RESULT)
    return verdict_at(place, EITHER.get, "result_tag")


_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}")
_BOX = re.compile(r"\\boxed\{([^{}]*)\}")


@reads_rest
def boxed(text: str) -> Verdict:
    """``\\boxed{A}`` or ``\\boxed{1}``, also ``\\boxed{\\text{A}}``: the last box."""
    text = _TEXT.sub(r"\1", text)
    begin = text.rfind("\\boxed{")
    inside = begin + len("\\boxed{")
    end = text.find("}", begin, inside + 200) + 1
    if begin < 0 or is_quoted(text, begin, end):
        return no_verdict("no_box")
    if not end:
        return choice_verdict(None, "boxed")
    return verdict_at(place_in(text, begin, text[inside : end - 1], end, _BOX), EITHER.get, "boxed")


@reads_rest
def box_tokens(text: str) -> Verdict:
    """``<|begin_of_box|>A<|end_of_box|>`` (GLM-4.1V-Thinking): the last box."""
    place = _last_between(text, *BOX_TOKENS)
    return no_verdict("no_box") if place is None else verdict_at(place, EITHER.get, "box_tokens")


_SCORE = r"(?:10(?:\.0{1,2})?|[1-9](?:\.\d{1,2})?)"
_PAIR = rf"({_SCORE})(?:\s?/\s?10)?\s{{0,5}}[,;\s]\s{{0,5}}({_SCORE})(?:\s?/\s?10)?"
_TWO_SCORES = re.compile(_PAIR)
_SCORES_LINE = re.compile(rf"(?:(?:final\s)?(?:scores?|ratings?)\s?:?\s?)?{_PAIR}\.?", re.IGNORECASE)


@reads_rest
def two_scores(text: str) -> Verdict:
    """Two scores from 1 to 10, of the first and the second answer: ``<answer>7 8.5</answer>`` or, untagged, the last line,
    with nothing but "Scores:" before them.

    Equal scores are a tie. A score outside 1..10, a third number or a range is no choice.
    """
    place = _last_between(text, *ANSWER_TAG)
    rule = "last_line_scores" if place is None else "answer_tag_scores"
    match = _SCORES_LINE.fullmatch(last_line(text)) if place is None else _TWO_SCORES.fullmatch(place.content)
    if match is None:
        return no_verdict(f"no_{rule}")
    first, second = float(match[1]), float(match[2])
    if first == second:
        return Verdict(None, VerdictStatus.TIE, rule)
    return choice_verdict(Choice.FIRST if first > second else Choice.SECOND, rule)


_LABELLED = (
    rf"(?:the\s)?(?:(?:scores?|ratings?)\s(?:for|of)\s)?(?:the\s)?(?:{NOUN}|score|rating)\s{{0,2}}\(?([12AB])\)?"
    r"(?:\s(?:(?:overall|total|final)\s)?(?:score|rating|total))?\s?[:=\-–—]+\s?"
    r"\[{0,2}(\d{1,3}(?:\.\d{1,2})?)\]{0,2}(?:\s?(?:/|out\sof)\s?(\d{1,3}))?(?:\spoints)?"
)
_SCORES = r"(?:(?:my|the|final|overall|total|average)\s){0,3}(?:scores?|ratings?|points|overall)"
_SCORES_HEADING = re.compile(rf"{_SCORES}\s?:?", re.IGNORECASE)
_LABELLED_PAIR = re.compile(
    rf"(?P<heading>{_SCORES}\s?[:\-–—]\s?)?{_LABELLED}\s?(?:[,;|\n]|and|vs\.?)\s?{_LABELLED}\.?", re.IGNORECASE
)


@reads_rest
def labelled_scores(text: str) -> Verdict:
    """``Response 1: 8/10, Response 2: 7/10``: the last line, or the last two, with a score of each response and nothing else
    but "Scores:".

    A score without "/10" needs a heading for it: the numbers may be ranks or counts. A line above that ends in no full stop
    must be such a heading: the scores may be of one criterion. Equal scores are a tie; unlike scales are no choice.
    """
    lines = [line.lstrip("-•| ").rstrip("| ") for line in last_lines(text, 3)]
    number = 1 if lines and _LABELLED_PAIR.fullmatch(lines[-1]) else 2
    match = _LABELLED_PAIR.fullmatch("\n".join(lines[-number:]))
    above = "" if match is None or match["heading"] else "".join(lines[-number - 1 : -number])
    if match is None or not (above.endswith((".", "!", "?")) or _SCORES_HEADING.fullmatch(above or "scores")):
        return no_verdict("no_labelled_scores")
    label, score, scale, *other = match.groups()[1:]
    first, second = (float(value) for _, value in sorted([(label.upper(), score), (other[0].upper(), other[1])]))
    is_headed = match["heading"] or scale or re.search("score|rating|point", match[0], re.IGNORECASE) or above[-1:] not in ".!?"
    is_pair = {label.upper(), other[0].upper()} in ({"1", "2"}, {"A", "B"})
    are_ranks = not scale and {first, second} == {1, 2}
    if not is_headed or are_ranks or not is_pair or scale != other[2] or max(first, second) > float(scale or 100):
        return choice_verdict(None, "labelled_scores")
    if first == second:
        return Verdict(None, VerdictStatus.TIE, "labelled_scores")
    return choice_verdict(Choice.FIRST if first > second else Choice.SECOND, "labelled_scores")


READERS: dict[str, Reader] = {
    "think_answer": think_answer,
    "checklist": checklist,
    "answer_sentence": answer_sentence,
    "tagged_label": tagged_label,
    "bare": bare,
    "double_brackets": double_brackets,
    "overall_judgment": overall_judgment,
    "json_better_response": json_better_response,
    "result_tag": result_tag,
    "boxed": boxed,
    "box_tokens": box_tokens,
    "two_scores": two_scores,
    "labelled_scores": labelled_scores,
    "winner_line": winner_line,
    "choice_line": choice_line,
    "prose_sentence": prose_sentence,
    "cjk_sentence": cjk_sentence,
}

ENTRY_POINTS = "rewardlab.verdict_formats"  # group under which an installed package offers readers
_CALLABLE = cast("type[Reader]", Callable)  # also an object with __call__, a partial, what a decorator gives


@cache
def reader_of(name: str) -> Reader:
    """Return the reader of a verdict format: of :data:`READERS`, or one's own.

    One's own is a Python file (``PATH.py``) with a function ``read_verdict(text) -> Verdict``, or the name of an entry point of
    the group ``rewardlab.verdict_formats`` that is such a function. Raise ConfigError for any other name.
    """
    if name in READERS:
        return READERS[name]
    if name in LIST_FORMATS:
        return _reader_of_two(name)
    try:
        read = load_extension(
            name,
            _CALLABLE,
            attribute="read_verdict",
            group=ENTRY_POINTS,
            expected="def read_verdict(text) -> Verdict",
        )
    except ConfigError as error:
        raise ConfigError(f"verdict format {error}") from error
    if read is not None:
        return _checked(name, read)
    raise ConfigError(
        f"unknown verdict format {name!r}; expected one of {sorted(READERS)}, a Python file with read_verdict(text), or an "
        f"entry point of {ENTRY_POINTS}"
    )


def _reader_of_two(list_format: str) -> Reader:
    """Return the reader of a list of two responses; a rating is of one alone, so that a text holds no verdict."""

    def read(text: str) -> Verdict:
        reading = list_reading(Completion(text, FinishReason.STOP), list_format, 2)
        if reading.scores is None:
            return Verdict(None, reading.status, reading.rule)
        first, second = reading.scores
        return compared(first, second, reading.rule)

    return read


@cache
def format_id(name: str) -> str:
    """Return what names a verdict format in a template's hash: its name, of a Python file also the hash of its code."""
    if not name.endswith(".py"):
        return name
    return f"{Path(name).name} {hashlib.sha256(Path(name).read_bytes()).hexdigest()[:16]}"


def _checked(name: str, read: Reader) -> Reader:
    """Return a reader of another's that raises ConfigError for its own faults, so that none of them becomes a verdict."""

    def checked(text: str) -> Verdict:
        try:
            verdict = read(text)
        except (Exception, SystemExit) as error:  # the boundary: another's code may fail in any way
            raise ConfigError(f"verdict format {name}: its reader fails ({error!r}) on {text[:60]!r}") from error
        is_verdict = isinstance(verdict, Verdict) and isinstance(verdict.status, VerdictStatus)
        if not is_verdict or not (verdict.choice is None or isinstance(verdict.choice, Choice)):
            raise ConfigError(f"verdict format {name}: its reader returned {verdict!r}; expected a rewardlab.types.Verdict")
        if (verdict.choice is not None) != (verdict.status is VerdictStatus.OK):  # it would count as read, and be no choice
            raise ConfigError(
                f"verdict format {name}: its reader returned {verdict!r}; a choice requires status OK, and vice versa"
            )
        return verdict

    return checked


def _letter(choice: Choice) -> str:
    return "A" if choice is Choice.FIRST else "B"


def digit(choice: Choice) -> str:
    return "1" if choice is Choice.FIRST else "2"


def _one_check(choice: Choice, reasoning: str) -> str:
    return f"{write_checks([ClaimCheck(choice, ' '.join(reasoning.split()) or 'is better', ClaimFinding.TRUE)])}\n"


# How each format spells a choice after a reasoning; ``READERS[name](WRITERS[name](choice, reasoning))`` gives it back.
WRITERS: dict[str, Callable[[Choice, str], str]] = {
    "think_answer": lambda c, why: f"<think>{why}</think><answer>{digit(c)}</answer>",
    "checklist": lambda c, why: f"<think>{_one_check(c, why)}</think><answer>{digit(c)}</answer>",
    "answer_sentence": lambda c, why: f"<think>{why}</think><answer>Answer {digit(c)} is better</answer>",
    "tagged_label": lambda c, why: f"<think>{why}</think><answer>{_letter(c)}</answer>",
    "bare": lambda c, why: digit(c),
    "double_brackets": lambda c, why: f"{why}\n[[{_letter(c)}]]",
    "overall_judgment": lambda c, why: f"{why}\nOverall Judgment: Answer {digit(c)} is better.",
    "json_better_response": lambda c, why: json.dumps({"reasoning": why, "better_response": _letter(c)}),
    "result_tag": lambda c, why: f"Feedback: {why} [RESULT] {_letter(c)}",
    "boxed": lambda c, why: f"{why}\n\\boxed{{{_letter(c)}}}",
    "box_tokens": lambda c, why: f"<think>{why}</think><|begin_of_box|>{_letter(c)}<|end_of_box|>",
    "two_scores": lambda c, why: f"{why}\n{'8 5' if c is Choice.FIRST else '5 8'}",
    "labelled_scores": lambda c, why: (
        f"{why}\nScores: Response 1: {8 if c is Choice.FIRST else 5}/10, Response 2: {5 if c is Choice.FIRST else 8}/10"
    ),
    "winner_line": lambda c, why: f"{why}\nWinner: Response {digit(c)}",
    "choice_line": lambda c, why: f"{why}\n{_letter(c)}",
    "prose_sentence": lambda c, why: f"{why}\nResponse {_letter(c)} is better.",
    "cjk_sentence": lambda c, why: f"{why}\n因此，回答{digit(c)}更好。",
}


def answer_opening(verdict_format: str) -> str:
    """Return what a judgment has between its reasoning and its choice, from ``</think>`` on, such as ``</think><answer>``; ""
    for a format that closes no thinking."""
    write = WRITERS.get(verdict_format)
    if write is None or not write(Choice.FIRST, "").startswith("<think></think>"):
        return ""
    both = zip(write(Choice.FIRST, ""), write(Choice.SECOND, ""), strict=False)
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], both)).removeprefix("<think>")
