"""Constraints of an instruction: what is counted, which forms there are, and truths that cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rewardlab.rewards.verifiable.extraction import AnswerStatus, Contract
from rewardlab.rewards.verifiable.rules import RULES, Domain, Problem, broken_constraints, parse_constraints, times, verify

LETTER = """The blue bird sings. Does it sing at 6.30, or later?

- It's well-known: 1,000 birds do!
- Nobody asked them"""


@pytest.mark.parametrize(
    ("constraint", "holds"),
    [
        ({"words": 19}, True),
        ({"words": [20, None]}, False),
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
        ({"words": 19, "exclude": ["asked"]}, False),
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
    assert times("été, étés", "été") == 1


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
        *('{"form": "xml"}', '{"times": {}}', '{"times": {" ": 1}}', '{"times": {"a": "b"}}', '{"starts": ""}'),
        *('{"commas": null}'),
    ],
)
def test_a_truth_that_cannot_be_read(truth: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_constraints(truth)
    result = verify(Problem(Domain.CONSTRAINTS, "q", truth, Contract.BOXED), "text", RULES)
    assert result.status is AnswerStatus.ERROR
