"""Judgments as judges write them (``judgments.txt``, each below its right answer), and the laws of the readers that read most:
tags with names, labelled scores, keys of JSON, ordinals, Chinese and Japanese."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardlab.types import Choice, Verdict, VerdictStatus
from rewardlab.verdicts.formats import READERS, WRITERS
from rewardlab.verdicts.other_formats import other_format
from rewardlab.verdicts.parse import format_verdict, parse_verdict
from rewardlab.verdicts.places import LABEL_TAGS

FIRST, SECOND = Choice.FIRST, Choice.SECOND
TIE, NONE, NOT = VerdictStatus.TIE, VerdictStatus.NO_VERDICT, VerdictStatus.NOT_A_CHOICE
RECORDS = [
    (head.strip(), body.strip("\n"))
    for head, _, body in (
        record.partition("\n")
        for record in (Path(__file__).parent / "judgments.txt").read_text(encoding="utf-8").split("=== ")[1:]
    )
]


def said(verdict: Verdict) -> str | None:
    return verdict.choice.value if verdict.choice else "tie" if verdict.status is TIE else None


@pytest.mark.parametrize(("answer", "text"), RECORDS)
def test_no_format_reads_another_answer(answer: str, text: str) -> None:
    """Nor any answer of a text without a verdict."""
    assert {said(parse_verdict(text, name)) for name in READERS} <= {answer, None}


def test_most_are_read() -> None:
    """Without the readers whose laws are below, 34 %."""
    with_verdict = [(answer, text) for answer, text in RECORDS if answer != "none"]
    read = [any(said(parse_verdict(text, name)) == answer for name in READERS) for answer, text in with_verdict]
    assert len(read) >= 85
    assert sum(read) / len(read) >= 0.85


NAMES = {FIRST: ("1", "A", "Response 1", "**Image A**", "(1)", "the first answer"), SECOND: ("2", "B", "Response 2")}
NAMES[SECOND] += ("**Image B**", "(2)", "the second answer")


@pytest.mark.parametrize("choice", Choice)
def test_a_tag_with_a_name(choice: Choice) -> None:
    """Whatever the tag and the name; the last tag counts, and what it holds must be a name."""
    for tag, name in itertools.product(LABEL_TAGS, NAMES[choice]):
        other = NAMES[choice.swap()][0]
        text = f"<verdict>{other}</verdict>\n<{tag}> {name} </{tag}>"
        assert parse_verdict(text, "tagged_label").choice is choice
        for wrong in (f"{name} or {other}", f"not {name}", f"{name} is better?", "", "Response 3"):
            assert parse_verdict(text.replace(name, wrong), "tagged_label").choice is None
        assert parse_verdict(text.removesuffix(f"</{tag}>"), "tagged_label").choice is not choice
        assert parse_verdict(f"{text} or <{tag}>{other}</{tag}>", "tagged_label").choice is None
        assert parse_verdict(f"<think>{text}", "tagged_label").choice is None
    assert parse_verdict("<winner>tie</winner>", "tagged_label").status is TIE


KEYS = ("better_response", "better_answer", "winner", "verdict", "preferred_response", "choice", "final_decision")


@given(st.sampled_from(KEYS), st.sampled_from(Choice), st.integers(0, 4), st.sampled_from(KEYS), st.integers(0, 4))
def test_a_key_with_a_name(key: str, choice: Choice, n: int, other: str, m: int) -> None:
    """One key, or several that agree; two that differ are no verdict, in any order of the keys."""
    fields = {"reasoning": f"{other}: B", key: NAMES[choice][n]}
    assert parse_verdict(json.dumps(fields), "json_better_response").choice is choice
    if other != key:
        for both in ({**fields, other: NAMES[choice.swap()][m]}, {other: NAMES[choice.swap()][m], **fields}):
            assert parse_verdict(json.dumps(both), "json_better_response").choice is None
        assert parse_verdict(json.dumps({**fields, other: NAMES[choice][m]}), "json_better_response").choice is choice


numbers = st.integers(0, 20).map(lambda half: half / 2)


@given(
    numbers, numbers, st.sampled_from(["/10", " / 10", " out of 10"]), st.sampled_from(["\n", ", ", " | ", "; "]), st.booleans()
)
def test_the_higher_score_wins(first: float, second: float, scale: str, between: str, swapped: bool) -> None:
    """Whichever response is named first; exchanged names exchange the verdict, equal scores are a tie."""
    mark = "- " if between == "\n" else ""
    lines = [f"{mark}**Response 1**: {first:g}{scale}", f"{mark}Response 2: {second:g}{scale}"]
    verdict = parse_verdict(f"So it is.\n{between.join(lines[::-1] if swapped else lines)}", "labelled_scores")
    expected = FIRST if first > second else SECOND if second > first else None
    assert (verdict.choice, verdict.status) == (expected, VerdictStatus.OK if expected else TIE)
    names = [line.replace("Response 1", "Response x").replace("Response 2", "Response 1") for line in lines]
    exchanged = between.join(names).replace("Response x", "Response 2")
    assert parse_verdict(exchanged, "labelled_scores") == verdict.swap()


SCORES = [
    ("Scores:\nResponse 1: 7\nResponse 2: 8", SECOND),
    ("Image A score: 8.5\nImage B score: 6", FIRST),
    ("Score for A: 3 points", NONE),
    ("Response 1: 7\nResponse 2: 8", NOT),  # counted objects, perhaps
    ("Overall: Response 1: 2, Response 2: 1", NOT),  # ranks, perhaps
    ("Hallucination (lower is better):\nResponse 1: 8/10\nResponse 2: 3/10", NONE),
    ("### Clarity\nResponse 1: 8/10\nResponse 2: 3/10", NONE),
    ("Number of errors: Response 1: 8, Response 2: 3", NONE),
    ("Response 1: 8/10\nResponse 2: 9/10\nResponse 3: 3/10", NONE),
    ("Response 1: 8/10\nResponse 1: 9/10", NOT),
    ("Response A: 8/10\nResponse 2: 9/10", NOT),
    ("Response 1: 4/5, Response 2: 7/10", NOT),
    ("Response 1: 12/10, Response 2: 7/10", NOT),
    ("Response 1: 8/10, Response 2: 7/10, although 2 is right", NONE),
    ("Response 1: 8-9/10, Response 2: 7/10", NONE),
    ("Response 1: 8/10, Response 2: 7/10\nI am not sure.", NONE),
]


@pytest.mark.parametrize(("text", "expected"), SCORES)
def test_what_may_be_no_score(text: str, expected: Choice | VerdictStatus) -> None:
    verdict = parse_verdict(text, "labelled_scores")
    assert expected in (verdict.choice, verdict.status)


CJK = [
    ("综上所述，回答1更好。", FIRST),
    ("因此，回答一明显优于回答二。", FIRST),
    ("回答Ｂ比回答Ａ更好", SECOND),
    ("我更倾向于第二个回答，因为它准确。", SECOND),
    ("所以图像B更符合提示、更清晰，优于图像A。", SECOND),
    ("最终判断：回答2", SECOND),
    ("2番目の回答の方が明らかに優れています。", SECOND),
    ("回答Aの説明が正確なので、回答Aの方が良いと思います。", FIRST),
    ("回答1が最も優れている。回答2を選びます。", NOT),
    ("两个回答同样好。", TIE),
    ("两个回答并不一样好。", NONE),
    ("回答1更好吗？", NONE),
    ("回答1不更好。", NONE),
    ("回答1并不优于回答2。", NONE),
    ("如果看风格，回答1更好。", NONE),
    ("有人认为回答1更好。", NONE),
    ("回答1更好，但是回答2更准确。", NONE),
    ("回答1更好，因为它详细，但回答2更准确。", NONE),
    ("回答2说：“回答2更好。”", NONE),
    ("回答2说：“我很好。回答2更好。", NONE),
    ("回答1更好。不对，应该是回答2。", NONE),
    ("回答1更好。回答2更好。", NOT),
    ("回答1优于回答1。", NONE),
    ("回答1更好看。", NONE),
    ("回答1更详细。", NONE),
    ("答案：B", NONE),
    ("回答1の方が優れていません。", NONE),
    ("回答1の方が優れているとは言えません。", NONE),
    ("回答1の方が優れていますか？", NONE),
    ("もし簡潔さが大事なら、回答1の方が良い。", NONE),
    ("回答1は優れています。", NONE),
    ("「回答1の方が優れています。", NONE),
]


@pytest.mark.parametrize(("line", "expected"), CJK)
def test_chinese_and_japanese(line: str, expected: Choice | VerdictStatus) -> None:
    """The last sentence decides, whatever is above it; neither name is favoured."""
    verdict = parse_verdict(f"回答2更好。\n{line}", "cjk_sentence")
    assert (verdict.choice if isinstance(expected, Choice) else verdict.status) == expected
    exchanged = line.translate(str.maketrans("12AB一二ＡＢ", "21BA二一ＢＡ")).replace("最初", "第二个")
    assert parse_verdict(f"回答2更好。\n{exchanged}", "cjk_sentence") == verdict.swap()


@pytest.mark.parametrize(
    "name", sorted(set(READERS) - {"think_answer", "checklist", "answer_sentence", "tagged_label", "bare", "box_tokens"})
)
def test_a_block_quotation_that_is_introduced(name: str) -> None:
    """What a line ending in a colon introduces is another's; a mark of Markdown alone is not."""
    if name in ("json_better_response", "overall_judgment", "result_tag", "boxed"):
        return  # their marks count wherever they stand
    quoted = "> " + format_verdict(FIRST, "", name).strip()
    assert parse_verdict(f"Response A ends like this:\n\n> Thanks.\n{quoted}", name).choice is None
    own = parse_verdict(f"Response A is right.\n{quoted}", name)
    assert own.choice in (FIRST, None)
    assert name not in ("winner_line", "double_brackets", "prose_sentence") or own.choice is FIRST


@pytest.mark.parametrize("name", ["tagged_label", "labelled_scores", "cjk_sentence"])
def test_another_format_is_named(name: str) -> None:
    """The cure of answers that the format in use does not read."""
    other = other_format([WRITERS[name](choice, "so") for choice in (FIRST, SECOND) * 4])
    assert other is not None
    assert (other.name, other.num_readable, other.num_disputed) == (name, 8, 0)
