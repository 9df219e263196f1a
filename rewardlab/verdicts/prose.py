"""Verdicts in prose: a last line that names the winner, with a word for it or alone, or that has one sentence which says
which answer is better.

Prose can take back what it says, so that little is read. A statement counts in the last line only, in no quotation and no
question, and not after a condition, a denial or words that report what another says. Two statements that differ are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rewardlab.types import Choice, Verdict, VerdictStatus
from rewardlab.verdicts.places import (
    EITHER,
    LINE,
    NOUN,
    QUOTES,
    choice_verdict,
    end_of_line,
    is_quoted,
    last_line,
    no_verdict,
    reads_rest,
    without_markup,
)

_NAME = rf"(?:the\s)?{NOUN}\s{{0,2}}\(?(?P<name>[12AB])\b\)?"
_HEADING = (
    r"(?:(?:my|the|so|therefore|thus|overall|final|in conclusion)[,:]?\s){0,3}"
    r"(?:winner|verdict|judge?ment|decision|preference|(?:preferred|better|best|chosen)(?:\s(?:response|answer|one))?|conclusion)"
    r"\s?(?:is|[:=\-–—])+\s?"
)
_WINNER_LINE = re.compile(
    rf"{_HEADING}(?:(?:the\s)?{NOUN}\s{{0,2}})?[(\[]{{0,2}}([12ABC]|tie|draw)[)\]]{{0,2}}(?:\s?\(?wins\)?)?", re.IGNORECASE
)
_NAMED_LINE = re.compile(  # words that may be about the question's own answer: these need the noun as well
    rf"(?:(?:my|the|so|final)[,:]?\s){{0,3}}(?:answer|choice|pick)\s?(?:is|[:=\-–—])+\s?{NOUN}\s{{0,2}}\(?([12AB])\)?",
    re.IGNORECASE,
)


@reads_rest
def winner_line(text: str) -> Verdict:
    """``Winner: Response 1``, ``**Verdict:** B``, ``The better response is (A).``: a last line that is nothing else.

    "Answer: B" alone is none: it may be the answer to the question. C, "tie" and "draw" are a tie.
    """
    line = last_line(text).strip(QUOTES + " .!")
    match = len(line) <= LINE and (_WINNER_LINE.fullmatch(line) or _NAMED_LINE.fullmatch(line))
    if not match:
        return no_verdict("no_winner_line")
    label = match[1].upper()
    if label in ("C", "TIE", "DRAW"):
        return Verdict(None, VerdictStatus.TIE, "winner_line")
    return choice_verdict(EITHER.get(label), "winner_line")


_LABEL = re.compile(rf"(?:(?:the\s)?{NOUN}\s{{0,2}})?[(\[]?([12ABC])[)\]]?", re.IGNORECASE)


def label_verdict(text: str, rule: str) -> Verdict | None:
    """Return the verdict of a text that is the name of a response and nothing else, None of any other; C is a tie.

    "2." is no name: it may be the number of an item in a list.
    """
    bare = without_markup(text).strip()
    match = None if bare in ("1.", "2.") else _LABEL.fullmatch(bare.strip(QUOTES + " .!"))
    if match is None:
        return None
    label = match[1].upper()
    return Verdict(None, VerdictStatus.TIE, rule) if label == "C" else choice_verdict(EITHER[label], rule)


@reads_rest
def choice_line(text: str) -> Verdict:
    """``A``, ``**2**``, ``(B)``, ``Response 1``: a last line that is the name of a response and nothing else; C is a tie."""
    return label_verdict(last_line(text), "choice_line") or no_verdict("no_choice_line")


_MUCH = (
    r"(?:(?:the|a|an|slightly|marginally|significantly|clearly|clear|much|far|considerably|definitely|overall|obviously|somewhat|"
    r"notably|generally|substantially|strictly|therefore|thus|also|little|bit|lot|one|answer|response|more)\s){0,4}"
)
_STATEMENT = re.compile(
    rf"\b{_NAME}\s(?:is|wins\b|seems\sto\sbe|appears\sto\sbe)\s?{_MUCH}"
    r"(?:(?:better|best|superior|preferred|preferable|stronger|winner)\b(?!-)|(?<=wins)|(?<=wins\s))"
    rf"|\bI\s(?:would\s|do\s|also\s|strongly\s|slightly\s|clearly\s)?(?:prefer|choose|pick|select|favou?r|go\swith|vote\sfor)\s"
    rf"{_NAME.replace('name', 'picked')}"
    rf"|\b(?:better|winner|preferred|superior|best)(?:\s(?:response|answer|one|of\sthe\stwo))?\sis\s"
    rf"{_NAME.replace('name', 'last')}"
    rf"|\b(?:verdict|choice|preference|decision|pick)\s?(?:is|:)\s?{_NAME.replace('name', 'chosen')}",
    re.IGNORECASE,
)
_TIE = re.compile(
    r"\b(?:it\sis|it's|this\sis|i\scall\sit|verdict\s?(?:is|:)|result\s?(?:is|:))\s(?:a\s)?(?:tie|draw)\b"
    r"|\b(?:both|the\stwo)\s(?:\w{1,20}\s){0,2}are\sequally\s(?:good|bad)\b",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+")
_CLAUSE_END = re.compile(r"[,;:—–(]|\b(?:but|so|and|hence|because|since)\b", re.IGNORECASE)
_SAYING = re.compile(
    r"^\W{0,3}(?:so |thus |therefore )?I(?:'d| would)? (?:say|think|believe|conclude|find)(?: that)?\b", re.IGNORECASE
)
_UNREAL = re.compile(  # what follows in the sentence is a condition, or said by somebody else
    r"\b(?:if|unless|whether|suppose|assuming|claim\w{0,3}|sa(?:y|ys|id)|argu\w{1,4}|suggest\w{0,3}|states?|stated|wrote|writes|"
    r"pretend\w{0,3}|insist\w{0,3}|would|might|could|some|someone|reads?|instruct\w{0,4}|asks?|told|tells?)\b",
    re.IGNORECASE,
)
_DENIAL = re.compile(
    r"\b(?:not|neither|nor|never|no|hardly|cannot|disagree\w?|doubt\w?|den(?:y|ies)|wrong|false|untrue|incorrect|than)\b|n't\b",
    re.IGNORECASE,
)
_DENIED_THAT = re.compile(rf"(?:{_DENIAL.pattern}).*\bthat\b", re.IGNORECASE)
_CLAUSE_GOES_ON = re.compile(r"[,;:.!?—–(]|\b(?:because|since|as|while|whereas|for|than|but|and|so|due)\b", re.IGNORECASE)
_DENIAL_WITHIN = re.compile(  # "in no respect", "by nobody", "less than the other"
    r"\b(?:not|no|none|nobody|nothing|never|neither|hardly|cannot|less|least|last|avoided|ignored|random|opposite|by\s(?:the\s)?"
    rf"(?:{NOUN}|other))\b|n't\b|^['’]s\b",
    re.IGNORECASE,
)
_DENIAL_AFTER = re.compile(  # ", which is false", ": not", ", they claim"
    r"\s*[,;:—–-]+\s*(?:(?:which|that|this|it)\s(?:is|was)\s(?:\w{1,12}\s){0,2}(?:false|wrong|untrue|incorrect|not\b)"
    r"|(?:not|no|never|false|wrong|untrue)\b(?=\W*$|[,.;:!])|(?:they|some|he|she|people|others)\b)",
    re.IGNORECASE,
)
_SECOND_NAME = re.compile(rf"\s*(?:,?\s?\b(?:or|and)\b|[/&+])\s*(?:the\s)?(?:{NOUN}\s{{0,2}})?\(?[12AB]\b", re.IGNORECASE)
_BUT_OTHER = re.compile(
    rf"\bbut\s(?:the\sother|(?:the\s)?(?:{NOUN}\s{{0,2}})?\(?[12AB]\b\)?)[^.;]{{0,40}}\b(?:better|best|superior|preferred|"
    r"stronger|wins?|winner)\b",
    re.IGNORECASE,
)
_CONDITION_AFTER = re.compile(r"[^,.;]{0,60}\b(?:if|unless|when|only|were it not)\b", re.IGNORECASE)


def _statements(sentence: str) -> Iterator[Choice | None]:
    """Yield the choices that a sentence says are better, None for one that it takes back."""
    for match in _STATEMENT.finditer(sentence):
        if is_quoted(sentence, match.start(), match.end()):
            continue
        before = _SAYING.sub("", sentence[: match.start()])
        clause = _CLAUSE_END.split(before)[-1]
        is_taken_back = (
            _UNREAL.search(before)
            or _DENIAL.search(clause)
            or _DENIED_THAT.search(before)
            or _CONDITION_AFTER.match(sentence, match.end())
            or _DENIAL_AFTER.match(sentence, match.end())
            or _DENIAL_WITHIN.search(_CLAUSE_GOES_ON.split(sentence[match.end() :], maxsplit=1)[0])
            or _BUT_OTHER.search(sentence, match.end())
            or (match[1] is None and _SECOND_NAME.match(sentence, match.end()))
            or sentence.rstrip(QUOTES + " ").endswith("?")
        )
        yield None if is_taken_back else EITHER[next(name for name in match.groups() if name).upper()]


def stated_choices(line: str) -> set[Choice | None]:
    """Return the choices that the end of a line says are better, None among them where one is taken back."""
    return {choice for sentence in _SENTENCE_END.split(end_of_line(line)) for choice in _statements(sentence)}


@reads_rest
def prose_sentence(text: str) -> Verdict:
    """``Response A is better.``, ``I prefer Answer 2.``, ``The better response is Response B.``: the one statement of the last
    line.

    Two that differ, and one that is denied, conditional, asked or reported, are no choice; "it is a tie" is a tie.
    """
    line = end_of_line(last_line(text))
    choices = stated_choices(line)
    if not choices:
        is_tie = any(not is_quoted(line, match.start(), match.end()) for match in _TIE.finditer(line))
        return Verdict(None, VerdictStatus.TIE, "prose_sentence") if is_tie else no_verdict("no_statement")
    return choice_verdict(choices.pop() if len(choices) == 1 else None, "prose_sentence")
