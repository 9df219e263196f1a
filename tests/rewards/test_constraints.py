"""Constraints of an instruction: what is counted, which forms there are, and truths that cannot be read."""

from __future__ import annotations

import json
import time
import unicodedata
from typing import Any

import pytest

from rewardlab.rewards.verifiable.extraction import AnswerStatus, Contract
from rewardlab.rewards.verifiable.rules import (
    COUNTS,
    RULES,
    Domain,
    Problem,
    broken_constraints,
    folded_text,
    parse_constraints,
    times,
    verify,
)

LETTER = """The blue bird sings. Does it sing at 6.30, or later?

- It's well-known: 1,000 birds do!
- Nobody asked them"""


@pytest.mark.parametrize(
    ("constraint", "holds"),
    [
        ({"words": 20}, True),
        ({"words": [21, None]}, False),
        ({"sentences": [4, 4]}, True),
        ({"sentences": 3}, False),
        ({"lines": 3, "paragraphs": 2, "bullets": 2, "commas": 2}, True),
        ({"characters": [None, 20]}, False),
        ({"include": ["BLUE  bird", "them"]}, True),
        ({"include": ["sin"]}, False),
        ({"exclude": ["sin", "red"]}, True),
        ({"exclude": ["Bird"]}, False),
        ({"starts": "the blue", "ends": "Them"}, True),
        ({"ends": "them."}, False),
        ({"times": {"it": 2, "birds": [1, 2]}}, True),
        ({"times": {"it": 1}}, False),
        ({"form": "lowercase"}, False),
        ({"words": 20, "exclude": ["asked"]}, False),
    ],
)
def test_constraints(constraint: dict[str, Any], holds: bool) -> None:
    assert (not broken_constraints(parse_constraints(json.dumps(constraint)), LETTER)) == holds


def test_forms() -> None:
    for form, right, wrong in [
        ("json", '{"a": [1]}', "{'a': 1}"),
        ("json", "[1]", "7"),
        ("lowercase", "all small, 7", "All small"),
        ("uppercase", "LOUD!", "LOUd"),
        ("quoted", '"so"', '"'),
    ]:
        assert [broken_constraints({"form": form}, text) for text in (right, wrong)] == [[], ["form"]], form


def test_other_scripts() -> None:
    """Full stops and commas of Chinese and Japanese; letters with accents are of one word."""
    assert not broken_constraints({"sentences": 2, "commas": 1}, "今天下雨，明天晴。我们走吧。")
    assert not broken_constraints({"words": 3, "include": ["naïve"]}, "A naïve café")
    assert times(folded_text("ÉTÉ, étés"), "été") == 1
    assert not broken_constraints({"words": 5, "include": ["蓝色"]}, "天空是蓝色")
    assert broken_constraints({"exclude": ["蓝色"]}, "天空是蓝色的。") == ["exclude"]
    assert not broken_constraints({"words": 2}, "नमस्ते दुनिया")
    assert not broken_constraints({"include": ["blue"]}, "a _blue_ sky")


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        *(({"words": [None, 50]}, f"word{joint}" * 500) for joint in ("-", ",", ".", "'", "_", "/", "\u200b ", "\u00ad-")),
        *(({"sentences": 1}, text) for text in ("One.Two.Three", "**One.** **Two.**", "One.1 Two.1", "One.» Two", "One\nTwo")),
        *(({"sentences": 1}, text) for text in ("One．Two．", "एक। दो।", "One.[1] Two.[2] Three", "One.😀 Two")),
        ({"exclude": ["blue"]}, "a bl\u200bue sky"),
        ({"exclude": ["naïve"]}, unicodedata.normalize("NFD", "a naïve sky")),
        *(({"exclude": ["blue"]}, f"a bl{mark}ue sky") for mark in "\u034f\ufe0f\u3164\x00\u0332*"),
        ({"exclude": ["blue"]}, "a \U0001d41b\U0001d425\U0001d42e\U0001d41e sky"),
        ({"exclude": ["café"]}, "a cafe\u2060\u0301"),
        ({"exclude": ["it's"]}, "so it’s"),
        ({"words": [10, None]}, "\u3164 " * 11 + "a"),
        ({"words": [None, 3]}, "1,2,3,4,5,6"),
        ({"characters": [500, None]}, f"a{' ' * 600}b"),
        ({"lines": [3, None]}, "a\n---\n\u2800\nb"),
        *(({"paragraphs": 1}, f"a{gap}b") for gap in ("\r\n\r\n", "\n\u00a0\n")),
        ({"bullets": 0}, "+ a\n– c"),
        ({"form": "json"}, "[NaN]"),
        ({"form": "quoted"}, '"a" and "b"'),
        ({"starts": "I am"}, "I amble"),
    ],
)
def test_what_would_evade_a_constraint(constraint: dict[str, Any], text: str) -> None:
    problem = Problem(Domain.CONSTRAINTS, "q", json.dumps(constraint), Contract.BOXED)
    assert verify(problem, text, RULES).score == 0


@pytest.mark.parametrize("text", ["a" + "." * 30_000 + "1", "a" + "\u0301\u0323" * 30_000, "a." * 30_000, "a " * 30_000])
def test_long_responses_take_no_time(text: str) -> None:
    started = time.process_time()
    everything = {name: [1, None] for name in COUNTS} | {"exclude": ["b " * 90], "ends": "b", "form": "json"}
    broken_constraints(everything, text)
    assert time.process_time() - started < 3


def test_text_that_is_no_end_of_a_sentence() -> None:
    """A domain, an abbreviation in capitals, a number, and JSON that holds a line separator."""
    assert not broken_constraints({"sentences": 1}, "See www.example.com for the U.S.A. at 6.30")
    assert not broken_constraints({"form": "json"}, '{"a": "x\u2028y"}')


def test_lists_are_no_sentences() -> None:
    assert not broken_constraints({"sentences": 0, "bullets": 2}, "1. 7\n2. 8")
    assert parse_constraints('{"words": 3, "include": null}') == {"words": 3}


def test_all_of_a_response_is_read_in_every_contract() -> None:
    problem = Problem(Domain.CONSTRAINTS, "Be short.", '{"words": [null, 4], "exclude": ["no"]}', Contract.BOXED)
    found = {
        text: verify(problem, text, RULES)
        for text in ("Two words", r"\\boxed{one} two three four five", "", " .. ", "x" * 70_000)
    }
    assert [result.score for result in found.values()] == [1, 0, 0, 0, 0]
    statuses = ["ok", "ok", "empty", "empty", "too_long"]
    assert [result.status for result in found.values()] == list(map(AnswerStatus, statuses))


@pytest.mark.parametrize(
    "truth",
    [
        *("", "7", "[]", "{}", '{"word": 3}'),
        *('{"words": "3"}', '{"words": [3]}', '{"words": [null, null]}', '{"words": [5, 2]}', '{"words": -1}'),
        *('{"words": true}', '{"words": 1.5}', '{"include": []}', '{"include": "blue"}', '{"include": [" "]}'),
        *('{"words": 0}', '{"characters": [100000, null]}', '{"words": 5, "words": 6}'),
        *('{"form": "xml"}', '{"times": {}}', '{"times": {" ": 1}}', '{"times": {"a": "b"}}', '{"starts": ""}'),
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_a_truth_that_cannot_be_read(truth: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_constraints(truth)
    result = verify(Problem(Domain.CONSTRAINTS, "q", truth, Contract.BOXED), "text", RULES)
    assert result.status is AnswerStatus.ERROR
