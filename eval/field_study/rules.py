"""What each public scorer of VL-RewardBench does with an answer: which order it shows, what it reads, whom it groups where.

Facts of the released code, not the code: the benchmark's ``cal.py`` (91b241e), R1-Reward's evaluation, Proxy-GRM's ``eval/``
(b6cf23d, alike at 4ba7876), UnifiedReward-Think's VL-RewardBench script (ed52f98), lmms-eval's task (161c7a1), VLMEvalKit's
dataset (23757c4).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.recordings import length_order
from rewardlab.benchmarks.vl_rewardbench import answer_number, official_group
from rewardlab.types import Choice, Order
from rewardlab.verdicts.parse import parse_verdict

OUT = None  # credit of an answer that a scorer leaves out of its denominator
Credit = float | None


@dataclass(frozen=True)
class Rule:
    """A scorer. ``order`` is the one it shows a row in, by the dice of its seed; ``credit`` what an answer in ``written`` form
    earns (0..1) where the response at a place is the better one; None: left out. ``strict``: a row recorded in the other order
    alone is left out, for the rule is the order. ``headline`` is the figure that it reports: overall or macro."""

    name: str
    order: Callable[[Row, random.Random], Order]
    credit: Callable[[str, Choice], Credit]
    written: str
    group: Callable[[str], str]
    headline: str
    shows: str
    failures: str
    strict: bool = False


def drawn(row: Row, dice: random.Random) -> Order:
    """Return an order drawn by a coin, as given below one half."""
    return Order.GIVEN if dice.random() < 0.5 else Order.SWAPPED


def length_rule(row: Row, dice: random.Random) -> Order:
    """Return the order of lmms-eval and VLMEvalKit: by the characters of both responses, odd or even."""
    return Order.SWAPPED if length_order(row.pair.responses) else Order.GIVEN


def better_first(row: Row, dice: random.Random) -> Order:
    """Return the order that shows the better response first."""
    return Order.GIVEN if row.pair.preferred == 0 else Order.SWAPPED


def case_blind_group(row_id: str) -> str:
    """Return the group by lower-case names in the id, its capitals left: RLHF-V and RLAIF-V become general."""
    if "mmmu" in row_id or "mathverse" in row_id:
        return "reasoning"
    return "hallucination" if any(name in row_id for name in ("hallucination", "rlhf", "rlaif")) else "general"


def unified_reward_group(row_id: str) -> str:
    """Return the group by what stands before the first dash or underscore; ``hallucination_pair`` (POVID) becomes general."""
    groups = {"RLAIF": "hallucination", "RLHF": "hallucination", "mathverse": "reasoning", "mmmu": "reasoning"}
    return groups.get(re.split(r"[-_]", row_id, maxsplit=1)[0], "general")


def _number(place: Choice) -> int:
    return 1 if place is Choice.FIRST else 2


def official_credit(text: str, better: Choice) -> Credit:
    """Right unless the pattern's number is the rejected answer's; out where the pattern finds none."""
    number = answer_number(text)
    return OUT if number is None else float(number != _number(better.swap()))


def _between_tags(text: str) -> str | None:
    """Return what ``<answer>(.*?)</answer>`` finds first, None where nothing; in time that grows with the length alone."""
    _, opened, rest = text.partition("<answer>")
    inside, closed, _ = rest.partition("</answer>")
    return inside if opened and closed else None


def r1_reward_credit(text: str, better: Choice) -> Credit:
    """The first is named by a number that equals 1 between the tags; whatever else is there names the second."""
    inside = _between_tags(text)
    try:
        is_first = inside is not None and float(inside) == 1
    except ValueError:
        is_first = False
    return float(is_first == (better is Choice.FIRST))


def proxy_grm_credit(text: str, better: Choice) -> Credit:
    """A 1 without a 2, or a 2 without a 1, in the tags; else the last 1 or 2 of the whole text, whatever it counts."""
    inside = _between_tags(text) or ""
    named = {digit for digit in "12" if digit in inside}
    digits = [named.pop()] if len(named) == 1 else re.findall("[12]", text)[-1:]
    return float(digits == [str(_number(better))])


def unified_reward_credit(text: str, better: Choice) -> Credit:
    """Right where "Answer X is better" stands anywhere in the output, the reasoning and quotations not excepted."""
    return float(f"Answer {_number(better)} is better" in text)


def lmms_eval_credit(text: str, better: Choice) -> Credit:
    """The official scorer's pattern, any other number wrong. Unread ones go to a language model and then to a coin: a half."""
    number = answer_number(text)
    return 0.5 if number is None else float(number == _number(better))


def vlmevalkit_credit(text: str, better: Choice) -> Credit:
    """A language model reads every answer, for which the strict reader stands here; what is not read is wrong."""
    return float(parse_verdict(text, "overall_judgment").choice is better)


RULES = (
    Rule(
        "official cal.py, K = 1",
        drawn,
        official_credit,
        "overall_judgment",
        official_group,
        "overall",
        "one order, drawn",
        "unread answers are left out of the denominator; any number but the rejected one's is right",
    ),
    Rule(
        "R1-Reward",
        better_first,
        r1_reward_credit,
        "think_answer",
        case_blind_group,
        "overall",
        "the better response always first",
        "an unread answer counts as one for the second",
        strict=True,
    ),
    Rule(
        "Proxy-GRM",
        drawn,
        proxy_grm_credit,
        "think_answer",
        case_blind_group,
        "overall",
        "one order, drawn without a seed",
        "an answer without a clear tag is read by its last 1 or 2",
    ),
    Rule(
        "UnifiedReward",
        drawn,
        unified_reward_credit,
        "answer_sentence",
        unified_reward_group,
        "overall",
        "one order, drawn (seed 0)",
        "the sentence counts wherever it stands, in the reasoning too",
    ),
    Rule(
        "lmms-eval",
        length_rule,
        lmms_eval_credit,
        "overall_judgment",
        official_group,
        "macro",
        "one order, by the responses' lengths",
        "an unread answer is a coin, here a half",
    ),
    Rule(
        "VLMEvalKit",
        length_rule,
        vlmevalkit_credit,
        "overall_judgment",
        official_group,
        "macro",
        "one order, by the responses' lengths",
        "an answer is read by a language model, here by the strict reader; unread is wrong",
    ),
)
