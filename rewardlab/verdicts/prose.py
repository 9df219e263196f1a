"""Verdicts in prose: a last line that names the winner, with a word for it or alone, or that has one sentence which says
which answer is better, in English, Chinese or Japanese.

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
_ORDINAL = re.compile(rf"\bthe\s(first|second)\s(?:{NOUN}|one)\b(?!\s{{0,2}}\(?[12AB]\b)", re.IGNORECASE)


def _with_names(line: str) -> str:
    """Return a line with "Response 1" for "the first answer" and "the first one", likewise for the second."""
    return _ORDINAL.sub(lambda match: f"Response {1 if match[1].lower() == 'first' else 2}", line)


_HEADING = (
    r"(?:(?:my|the|so|therefore|thus|overall|final|in conclusion)[,:]?\s){0,3}"
    r"(?:winner|verdict|judge?ment|decision|preference|(?:preferred|better|best|chosen)(?:\s(?:response|answer|one))?|conclusion)"
    r"\s?(?:is|[:=\-–—→])+\s?"
)
_ORNAMENTS = " >•-–→✅✔️☑🏆🥇⭐👑"  # before and after the words of a line: marks of lists and of block quotations, pictograms
_TIE_LABELS = ("C", "TIE", "DRAW")
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
    line = _with_names(last_line(text)).strip(_ORNAMENTS + QUOTES + ".!")
    match = len(line) <= LINE and (_WINNER_LINE.fullmatch(line) or _NAMED_LINE.fullmatch(line))
    if not match:
        return no_verdict("no_winner_line")
    label = match[1].upper()
    if label in _TIE_LABELS:
        return Verdict(None, VerdictStatus.TIE, "winner_line")
    return choice_verdict(EITHER.get(label), "winner_line")


_LABEL = re.compile(rf"(?:(?:the\s)?{NOUN}[\s_]{{0,2}})?[(\[]?([12ABC]|tie|draw)[)\]]?", re.IGNORECASE)


def label_verdict(text: str, rule: str) -> Verdict | None:
    """Return the verdict of a text that is the name of a response and nothing else, None of any other; C, "tie" and "draw" are
    a tie.

    "2." is no name: it may be the number of an item in a list.
    """
    bare = _with_names(text if "_" in text else without_markup(text)).strip()
    match = None if bare in ("1.", "2.") else _LABEL.fullmatch(bare.strip(QUOTES + " .!"))
    if match is None:
        return None
    label = match[1].upper()
    return Verdict(None, VerdictStatus.TIE, rule) if label in _TIE_LABELS else choice_verdict(EITHER[label], rule)


@reads_rest
def choice_line(text: str) -> Verdict:
    """``A``, ``**2**``, ``(B)``, ``Response 1``, ``The first response``: a last line that is the name of a response and nothing
    else; C is a tie."""
    return label_verdict(last_line(text), "choice_line") or no_verdict("no_choice_line")


_MUCH = (
    r"(?:(?:the|a|an|slightly|marginally|significantly|clearly|clear|much|far|considerably|definitely|overall|obviously|somewhat|"
    r"notably|generally|substantially|strictly|therefore|thus|also|little|bit|lot|one|answer|response|more)\s){0,4}"
)
_STATEMENT = re.compile(
    rf"\b{_NAME}\s(?:is|wins\b|outperforms\b(?=\s(?:the\sother|{NOUN}))|seems\sto\sbe|appears\sto\sbe)\s?{_MUCH}"
    r"(?:(?:better(?!\s\w{1,20}(?:ed|en)\b)|best|superior|preferred|preferable|stronger|winner)\b(?!-)"
    r"|(?<=wins|orms)|(?<=wins\s|orms\s))"
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
    r"^\W{0,3}(?:so |thus |therefore )?I(?:'d| would)? (?:say|think|believe|conclude|find)(?: that)?\b"
    r"|^\W{0,3}if I (?:had|have) to (?:choose|pick|decide)(?: one)?,",
    re.IGNORECASE,
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
    r"\b(?:not|no|none|nobody|nothing|never|neither|hardly|cannot|less|least|last|worse|worst|inferior|weaker|avoided|ignored|"
    r"random|opposite|by\s(?:the\s)?"
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
    sentence = _with_names(sentence)
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
    """``Response A is better.``, ``I prefer Answer 2.``, ``The second answer wins.``: the one statement of the last line.

    Two that differ, and one that is denied, conditional, asked or reported, are no choice; "it is a tie" is a tie.
    """
    line = end_of_line(last_line(text))
    choices = stated_choices(line)
    if not choices:
        is_tie = any(not is_quoted(line, match.start(), match.end()) for match in _TIE.finditer(line))
        return Verdict(None, VerdictStatus.TIE, "prose_sentence") if is_tie else no_verdict("no_statement")
    return choice_verdict(choices.pop() if len(choices) == 1 else None, "prose_sentence")


_CJK_NOUN = (
    "(?:回答|答案|回复|回覆|答复|响应|應答|应答|応答|解答|出力|助手|模型|选项|選項|图像|图片|图|圖像|圖片|画像|视频|影片|動画|モデル|アシスタント|"
    rf"{NOUN})"
)
_CJK_CHOICES = EITHER | dict(zip("一１Ａ二２Ｂ", [Choice.FIRST] * 3 + [Choice.SECOND] * 3, strict=True))
_CJK_NAME = rf"{_CJK_NOUN}\s?[（(]?([12AB一二１２ＡＢ])[）)]?\s?"
_CJK_ORDINAL = re.compile(rf"(?:第([一二12])[个個張张份]?(?:の)?|(最初)の|([一二12])(?:番目|つ目)の)({_CJK_NOUN})")
_CJK_SENTENCE_END = re.compile(r"(?<=[。！？!?])\s*")
_CJK_TIE = re.compile(r"[^不没非]{0,20}?(?:(?:一样|同样|同等)(?:好|差)|平局|不相上下|引き分け(?:です)?)[。！!]?")
_MORE = r"(?:[更较最](?:好|优|佳|优秀|出色)|更胜一筹|胜出|获胜)(?:一些|一点)?"
_CHINESE = (
    r"(?:(?:综上(?:所述|分析)?|综合(?:来看|考虑|判断|比较|分析)?|总(?:的来说|体而言|体来看|之)|整体(?:来看|而言)|因此|所以|由此可见|最终|最后|故|"
    r"我(?:认为|觉得))[，,：:\s]?){0,3}"
    r"(?:"
    rf"NAME(?:整体上?|总体上?|明显|显然|略微?|稍微?|要|会|是)?(?:更\w{{1,4}}[、，,和且]){{0,3}}(?:{_MORE}|优于NAME|比NAME要?{_MORE})"
    r"|我?(?:会|最终|更)?(?:选择?|更?倾向于|更?喜欢)NAME"
    rf"|(?:最终|最后)?(?:判断|判定|结论|答案|选择|结果|裁决|胜者|获胜者|[更较][好优佳]的(?:回答|答案|回复)?)(?:是|为|：|:)NAME(?:{_MORE})?"
    r")"
    r"(?:[，,；;](?:因为|因其|由于|原因是|理由是)(?:(?![但却]|不过|然而|其实|不对|[？?])[^。]){1,200})?[。！!]?"
)
_JAPANESE = (
    r"(?:(?:以上(?:の点)?から|したがって|従って|よって|総合的に(?:判断すると|見ると|見て)?|結論として|そのため|私は)[、,]?\s?){0,3}"
    r"(?:(?:(?!もし|場合|なら|[？?])[^。]){1,200}(?:ため|ので|から|おり)、)?"
    r"(?:"
    r"NAME(?:の(?:方|ほう)が(?:より|明らかに|やや|総合的に)?|が(?:より|最も))"
    r"(?:優れて(?:いる|います)|良い|よい|いい|好ましい|望ましい|勝って(?:いる|います)|優秀)(?:です)?(?:と(?:思い|考え|判断し|言え|評価し)ます)?"
    r"|NAMEを(?:選びます|選択します|支持します|選ぶ|推します)"
    r"|(?:最終)?(?:結論|判定|判断|勝者|より良い回答)(?:は|：|:)NAME(?:です)?"
    r")[。！!]?"
)
_CJK_STATEMENTS = tuple(re.compile(pattern.replace("NAME", _CJK_NAME)) for pattern in (_CHINESE, _JAPANESE))


def _cjk_choice(sentence: str) -> Choice | None:
    """Return the response that a sentence says is better, None unless it says so and nothing else."""
    matches = (pattern.fullmatch(sentence) for pattern in _CJK_STATEMENTS)
    names = [_CJK_CHOICES[name] for match in matches if match for name in match.groups() if name]
    return None if names[1:] == names[:1] else names[0]


@reads_rest
def cjk_sentence(text: str) -> Verdict:
    """``综上所述，回答1更好。``, ``我选择第二个回答。``, ``回答Bの方が優れています。``: the last sentence of the last line.

    It must be such a statement and nothing else but an opening and a reason. Two in the line that differ are no choice.
    """
    line = _CJK_ORDINAL.sub(lambda match: f"{match[4]}{match[1] or match[3] or 1}", end_of_line(last_line(text)))
    *before, last = [sentence for sentence in _CJK_SENTENCE_END.split(line) if sentence] or [""]
    choice = _cjk_choice(last)
    if is_quoted(line, len(line) - len(last), len(line)) or not (choice or _CJK_TIE.fullmatch(last)):
        return no_verdict("no_statement")
    if choice is None:
        return Verdict(None, VerdictStatus.TIE, "cjk_sentence")
    return choice_verdict(None if choice.swap() in map(_cjk_choice, before) else choice, "cjk_sentence")
