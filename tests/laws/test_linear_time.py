"""What meets foreign text takes time in proportion to its length, whatever the text.

Not the published scorers' own expressions (``rewardlab/benchmarks``): they are theirs, and read finished recordings.

CPU seconds of 10,000 characters against those of 1,250: linear is 8 times, quadratic 64. Only what takes long is timed again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from eval.field_study.rules import proxy_grm_credit, r1_reward_credit
from rewardlab.benchmarks.rewardbench2.listwise import read_choice, read_score
from rewardlab.curation.decontaminate import is_refusal_text
from rewardlab.curation.quality import leaks_label
from rewardlab.data.images import from_data_url
from rewardlab.data.set_checks import mentions_media
from rewardlab.data.texts import opening_of, words_of
from rewardlab.data.urls import AllowedUrls
from rewardlab.errors import DataError, MediaError
from rewardlab.prompts import load_template
from rewardlab.prompts.sanitize import sanitize, without_tokens
from rewardlab.prompts.verification import read_verification
from rewardlab.rewards.consistency import read_consistency
from rewardlab.rewards.steps import judgment_steps, step_ends
from rewardlab.rewards.verifiable.extraction import Contract, extract, solution_of
from rewardlab.serving.conversations import split_sequence, strip_markup
from rewardlab.serving.jobs import is_refusal
from rewardlab.serving.limits import Limits
from rewardlab.serving.strict_json import parse_json
from rewardlab.types import Choice, Completion, FinishReason
from rewardlab.verdicts.formats import READERS
from rewardlab.verdicts.lists import read_ordering
from rewardlab.verdicts.other_formats import other_format
from rewardlab.verdicts.parse import follows_format
from rewardlab.verdicts.places import reasoning_of

SHORT, TIMES = 1_250, 8
FAST_S = 0.01  # what takes no longer at 10,000 characters is not looked at again
MOST = 24  # times as long as of an eighth: three times what is linear, three eighths of what is quadratic


def _split(text: str) -> Any:
    try:
        return split_sequence(text)
    except DataError:
        return None


def _data_url(text: str) -> Any:
    try:
        return from_data_url(f"data:image/png;base64,{text}")
    except MediaError:
        return None


def _completion(text: str) -> Completion:
    return Completion(text, FinishReason.STOP, 0, 0)


FUNCTIONS: dict[str, Callable[[str], Any]] = {
    **{
        f"sanitize:{name}": lambda text, name=name: sanitize(text, load_template(name).text)
        for name in ("r1_reward", "plain", "overall_judgment")
    },
    **{f"verdict:{name}": read for name, read in READERS.items()},
    **{f"extract:{contract}": lambda text, contract=contract: extract(text, contract) for contract in Contract},
    "without_tokens": lambda text: without_tokens(text, ["<|im_end|>", "</s>", "  "]),
    "other_format": lambda text: other_format([text]),
    "follows_format": follows_format,
    "reasoning_of": reasoning_of,
    "solution_of": lambda text: solution_of(text, thinking=True),
    "read_verification": read_verification,
    "read_consistency": read_consistency,
    "read_choice": lambda text: read_choice(_completion(text)),
    "read_score": lambda text: read_score(_completion(text)),
    "read_ordering": lambda text: read_ordering(text, 8),
    "step_ends": step_ends,
    "judgment_steps": judgment_steps,
    "mentions_media": mentions_media,
    "words_of": words_of,
    "opening_of": opening_of,
    "leaks_label": leaks_label,
    "is_refusal_text": is_refusal_text,
    "strip_markup": strip_markup,
    "split_sequence": _split,
    "r1_reward_credit": lambda text: r1_reward_credit(text, Choice.FIRST),
    "proxy_grm_credit": lambda text: proxy_grm_credit(text, Choice.FIRST),
    "allowed_url": lambda text: AllowedUrls(["http://host/"]).allows(f"http://host/{text}"),
    "data_url": _data_url,
    "parse_json": lambda text: parse_json(json.dumps({"label": "{" + text, "text": text}).encode(), Limits()),
    "is_refusal": lambda text: is_refusal([text]),
}
CHARACTERS = " \n\t\u2028<>[](){}\\$*_#.!…?,;:-–=\"'`“01aA猫。"
MARKS = (
    *("</", "< ", "[[", "]]", "\\{", "**", ". ", "1.", "1) ", "\n1. ", "<think>", "</think>", "<answer>", "</answer>"),
    *("<answer>1</answer>", "<|", "<|im_start|>assistant\n", "[/INST]", "\\boxed{", "\n[Response 1]", "\n[Question]\n"),
)
WORDS = (
    *("a ", "12", "Human: ", "USER:", "ASSISTANT: ", "Response 1 ", "Response A is ", "is better ", "the better ", "not that "),
    *(
        "Overall Judgment ",
        "Therefore ",
        "I am ",
        "i'm ",
        "so ",
        "the ",
        "the label ",
        "as per ",
        "image ",
        "this image ",
        "in the ",
    ),
    *("described in the a ", "Winner: ", "the two a a ", "verdict is ", "if ", "than ", "The judgment is "),
)
STARTS = ("", "<", "<think>a</think>", "\\boxed{", "Overall Judgment: ")
ENDS = ("", "x")


def _seconds(function: Callable[[str], Any], text: str) -> float:
    begun = time.process_time()
    function(text)
    return time.process_time() - begun


def _growth(function: Callable[[str], Any], start: str, unit: str, end: str) -> float:
    """How many times as long a text of eight times the length takes; 1 where that takes no time to speak of."""
    short, long = (start + unit * (size // len(unit)) + end for size in (SHORT, SHORT * TIMES))
    if _seconds(function, long) < FAST_S:
        return 1.0
    return min(_seconds(function, long) for _ in range(2)) / max(min(_seconds(function, short) for _ in range(3)), 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_time_grows_with_the_length_alone(name: str) -> None:
    function = FUNCTIONS[name]
    slow = {
        (start, unit, end): growth
        for start in STARTS
        for unit in (*CHARACTERS, *MARKS, *WORDS)
        for end in ENDS
        if (growth := _growth(function, start, unit, end)) > MOST
    }
    assert slow == {}
