"""Signs that a policy pleases its judge rather than gets better: the measures by hand, the checks, and what stops a run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardlab.config import HealthConfig, SignsConfig
from rewardlab.errors import HealthError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.rewards.pairwise import PairwiseReward
from rewardlab.rewards.policy_function import AnchoredReward
from rewardlab.rewards.policy_signs import (
    BEGINNING,
    LAST,
    TRENDS,
    JudgeChecks,
    KnownWordPairs,
    PolicySigns,
    answer_metrics,
    most_common,
    new_winners,
    orders_agree,
    repetition,
    winners_length,
)
from rewardlab.rewards.rollout import Rollout, Trajectory
from rewardlab.rewards.verifiable.extraction import Contract
from rewardlab.rewards.verifiable.rules import RULES
from rewardlab.rewards.verified import by_rules, exactly
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.training.policy import train_policy
from rewardlab.training.run.watchdog import Alarms, Signs
from rewardlab.types import Message, PreferencePair
from tests.support.images import png
from tests.training.test_policy import config_for, uncut

PLAIN = load_template("plain")
SIGNS = SignsConfig.model_validate({})
RED = png()


def test_novelty_by_hand() -> None:
    """Pairs of neighbouring words, the ends included; case and punctuation aside."""
    known = KnownWordPairs(["The star is red.", "It is ten."])
    assert known.novelty("the star IS red") == 0
    assert known.novelty("It is red") == 0  # each of its pairs is known
    assert known.novelty("The star is ten red.") == pytest.approx(1 / 6)  # "ten red"
    assert known.novelty("") == 1  # nothing at all is news
    assert KnownWordPairs(["", "a"]).novelty("...") == 0


@given(st.lists(st.text(max_size=20), max_size=8), st.text(max_size=20))
def test_novelty_is_a_share(texts: list[str], text: str) -> None:
    """Of whatever texts; none of one that is known."""
    known = KnownWordPairs([*texts, text])
    assert known.novelty(text) == 0
    assert 0 <= KnownWordPairs(texts).novelty(text) <= 1


def test_the_other_measures_by_hand() -> None:
    """Repeated triples, the answer that most prompts get, and how long winners are."""
    assert repetition("a b c a b c a") == pytest.approx(2 / 5)
    assert repetition("a b c") == repetition("") == 0
    assert most_common(["p", "p", "q", "r"], ["Yes", "yes.", "Yes!", "No"]) == pytest.approx(2 / 3)
    assert most_common(["p", "p"], ["x", "x"]) is None  # one prompt has one answer
    empty = answer_metrics([("p", "", -1.0), ("q", "", -1.0), ("r", "It is red.", 1.0)])
    assert empty["answers/most_common"] == pytest.approx(2 / 3), "a policy may end in saying nothing"
    assert winners_length(["a", "a b c", "a b", "c"], [0.1, 0.9, None, 0.2]) == pytest.approx(3.0)
    assert winners_length(["a", "b"], [0.5, 0.5]) is None
    assert winners_length([], []) is None
    assert new_winners([0.5, 0.5, 0.0, 0.5], [0.9, 0.1, 0.8, None]) == pytest.approx(1 / 3)  # new, and above 0.8
    assert new_winners([0.0, 0.0], [0.2, 0.4]) == 0.0
    assert new_winners([0.5] * 10, [0.9999] * 6 + [0.1] * 4) == 0.6  # most of them are paid the most there is
    assert new_winners([0.5] * 3, [1.0, 1.0, 1.0]) == 0.0  # none is paid better than others
    assert new_winners([0.5] * 3, [0.0, 0.0, 1.0]) == pytest.approx(1 / 3)
    assert new_winners([0.5], [None]) is None


def test_rightness() -> None:
    """By the words of the preferred response, or by the rule of the pair's category; unknown where neither says."""
    pair = PreferencePair("p", "How many?", ("It is ten.", "It is two."), 0, category="number")
    assert [exactly(pair, text) for text in ("it is  TEN", "ten", "It is ten!")] == [True, False, False]
    signed = replace(pair, responses=("x > 3", "x"))
    assert (exactly(signed, "x < 3"), exactly(signed, "x > 3.")) == (False, True)
    assert exactly(replace(pair, preferred=None), "x") is None
    ruled = by_rules(RULES, Contract.BOXED)
    number = replace(pair, responses=(r"So \boxed{10}", r"\boxed{2}"))
    assert (ruled(number, r"\boxed{10.0}"), ruled(number, r"\boxed{2}"), ruled(number, "10")) == (True, False, None)
    assert ruled(replace(number, responses=("about ten", "x")), r"\boxed{10}") is None  # no truth that the rule can read
    assert ruled(replace(number, category="chat"), r"\boxed{10}") is None


def names_red(prompt: tuple[Message, ...], draw: int) -> str:
    """Names the response with the word red where the picture is red, else the first."""
    text = prompt[0].text
    first, second = text.split("Response 1:")[1].split("Response 2:")
    sees = RED in prompt[0].images
    return f"<think>x</think><answer>{2 if sees and 'red' in second and 'red' not in first else 1}</answer>"


def pair_of(n: int, picture: bytes = RED) -> PreferencePair:
    return PreferencePair(f"p{n}", "Which?", (f"red {n}", f"blue {n}"), 0, (picture,))


def test_checks_by_hand() -> None:
    """A judge that needs the picture, of pairs that it should know, beside one that names the first."""
    judge = GenerativeJudge(ScriptedSampler(names_red), PLAIN)
    first = GenerativeJudge(ScriptedSampler(lambda prompt, draw: "<think>x</think><answer>1</answer>"), PLAIN)
    checks = JudgeChecks(judge, sample=3, second_judge=first, canaries=[pair_of(n) for n in range(9)], num_canaries=4)
    reward = PairwiseReward(judge, checks=checks)
    pairs = [pair_of(n) for n in range(5)]
    values, metrics = reward(pairs, [f"red {n}" for n in range(5)], [["green"]] * 5, 7)
    assert values == pytest.approx([1.0] * 5, abs=1e-3)
    got = {name: (metric.value, metric.weight) for name, metric in metrics.items() if name.startswith("judge/")}  # type: ignore[union-attr]
    assert got["judge/order_agreement"] == (1.0, 5)
    assert got["judge/blank_gap"] == (0.5, 3)  # without the picture it names the first, in both orders
    assert got["judge/second_gap"] == (0.5, 3)
    assert got["judge/canaries"] == (1.0, 8)
    again = JudgeChecks(judge, sample=0, num_canaries=0)
    assert again([], 1) == {}


def test_canaries_are_the_same_at_every_batch() -> None:
    """Other pairs would be easier or harder: a judge that is as it was would look like another. Only labelled ones count."""
    seen: list[str] = []

    def answer(prompt: tuple[Message, ...], draw: int) -> str:
        seen.append(prompt[0].text)
        return "<think>x</think><answer>1</answer>"

    pairs = [replace(pair_of(n), preferred=None if n % 2 else 0) for n in range(40)]
    checks = JudgeChecks(GenerativeJudge(ScriptedSampler(answer), PLAIN), sample=0, canaries=pairs, num_canaries=5)
    by_step = []
    for step in range(3):
        seen.clear()
        checks([], step)
        by_step.append(sorted(seen))
    assert by_step[0] == by_step[1] == by_step[2]
    assert len(by_step[0]) == 10


def test_answers_that_were_cut_off_are_no_news(tmp_path: Path) -> None:
    """They are not right, and say nothing of what the policy writes."""
    pairs = [pair_of(0), pair_of(1)]
    judge = GenerativeJudge(ScriptedSampler(names_red), PLAIN)
    function = AnchoredReward(
        PairwiseReward(judge),
        pairs,
        {"p0": "blue 0", "p1": "blue 1"},
        ends=frozenset({7}),
        samples=tmp_path / "samples.jsonl",
        known=KnownWordPairs(["red 0", "red 1"]),
        rightness=exactly,
    )
    texts = [("p0", "red 0", [1, 7]), ("p1", "red 1", [1, 7]), ("p0", "strange words " * 9, [1, 2]), ("p1", "<think>", [1, 2])]
    rollouts = [Rollout({"pair_id": name}, [], Trajectory(tokens), text) for name, text, tokens in texts]
    metrics = {name: metric.value for name, metric in function(rollouts, 0).metrics.items() if name.startswith("answers/")}  # type: ignore[union-attr]
    assert (metrics["answers/novelty"], metrics["answers/repetition"], metrics["answers/right"]) == (0, 0, 0.5)


def test_agreement_needs_both_orders() -> None:
    """A tie agrees with nothing; an order without a verdict says nothing."""
    for answers, expected in ((("1", "2"), True), (("1", "1"), False), (("1", "hm"), None)):
        said = iter(answers)
        judge = GenerativeJudge(ScriptedSampler(lambda p, d, s=said: f"<think>x</think><answer>{next(s)}</answer>"), PLAIN)  # type: ignore[misc]
        assert orders_agree(judge.compare(pair_of(0))) is expected


def test_a_trend_is_a_mean_beyond_its_limit() -> None:
    """One batch is no sign, and what was so from the beginning is none."""
    signs = PolicySigns(SIGNS.model_copy(update={"max_novelty": 0.06}))
    rows = [0.5] * BEGINNING + [0.5, 0.5, 0.6, 0.5, 0.55, 0.58, 0.61]
    seen = [signs.of({"answers/novelty": value})["novel_answers"] for value in rows]
    assert [n for n, sentence in enumerate(seen) if sentence] == [len(rows) - 1]
    assert "58.0% of the word pairs" in seen[-1]
    assert "50.0% at first" in seen[-1]
    fallen = PolicySigns(SIGNS)
    seen = [fallen.of({"judge/canaries": value})["canaries"] for value in [0.9] * BEGINNING + [0.7] * LAST]
    assert [bool(sentence) for sentence in seen] == [False] * (BEGINNING + LAST - 1) + [True]


def test_every_limit_has_a_trend() -> None:
    """And null switches it off."""
    limits = {name for name in SignsConfig.model_fields if name.startswith("max_")}
    assert limits == {trend.limit for trend in TRENDS.values()}
    off = PolicySigns(SignsConfig.model_validate({**dict.fromkeys(limits), "truth": "exact", "second_judge": "hf:x"}))
    for value in [0.0] * BEGINNING + [1.0] * 9:
        assert not any(off.of({trend.metric: value for trend in TRENDS.values()}).values())


def test_the_watchdog_knows_them_at_once() -> None:
    """A mean needs no patience; judge training has none of these signs."""
    row: dict[str, Any] = {"loss": 1.0, "answers/novelty": 0.0}
    rows = [*[row] * BEGINNING, *[row | {"answers/novelty": 0.5}] * LAST]
    alarms = Alarms(HealthConfig(), limits=SIGNS)
    assert [list(alarms.of(each, n)) for n, each in enumerate(rows)] == [[]] * (len(rows) - 1) + [["novel_answers"]]
    assert "novel_answers" not in Signs(HealthConfig()).of(row)
    assert all(math.isfinite(getattr(SIGNS, trend.limit)) for trend in TRENDS.values())


def test_requests_that_fail_are_no_wrong_answers() -> None:
    """A judge that is as it was, behind an endpoint that fails, is no other judge. Where most canaries fail nothing is said."""
    failing: set[str] = set()

    def answer(prompt: tuple[Message, ...], draw: int) -> str:
        return names_red(prompt, draw) if not any(word in prompt[0].text for word in failing) else "I cannot tell."

    pairs = [pair_of(n) for n in range(4)]
    checks = JudgeChecks(GenerativeJudge(ScriptedSampler(answer), PLAIN), sample=0, canaries=pairs, num_canaries=4)
    for some, expected in ((set[str](), (1.0, 8)), ({"red 0"}, (1.0, 6)), ({"red 0", "red 1", "red 2"}, None)):
        failing = some
        metric = checks([], 0).get("judge/canaries")
        assert (metric if metric is None else (metric.value, metric.weight)) == expected  # type: ignore[union-attr]


def test_a_run_logs_and_obeys_them(
    demo_pairs: Any, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in metrics.jsonl of a real run under a real judge, and one beyond its limit ends it with a sentence."""
    monkeypatch.setattr(AnchoredReward, "__call__", uncut(AnchoredReward.__call__))
    calls = count()
    monkeypatch.setattr(KnownWordPairs, "novelty", lambda self, text: float(next(calls) >= 16 * BEGINNING))
    judge = {"judge": f"prob:hf:{tiny_checkpoint}", "judge_max_tokens": 4, "anchor": "group"}
    signs = {"truth": "exact", "second_judge": f"prob:hf:{tiny_checkpoint}", "sample": 2, "canaries": 2}
    health = {"max_invalid_frac": 1.0}  # the judge is untrained, and cannot be read
    config = config_for(tiny_checkpoint, max_steps=12, signs=signs, health=health, **judge)
    with pytest.raises(HealthError, match=r"of the word pairs in answers occur in no answer of the set, 0\.0% at first"):
        train_policy(demo_pairs[0][:16], config, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    names = {"novelty", "repetition", "most_common", "right", "overpaid"}
    assert {f"answers/{name}" for name in names} <= rows[0].keys()
    assert all("judge/canaries" not in row for row in rows), "an untrained judge names nothing, which is not wrong"
    assert BEGINNING < rows[-1]["step"] <= BEGINNING + LAST + 1
    events = [json.loads(line) for line in (tmp_path / "run" / "health.jsonl").read_text().splitlines()]
    assert [event["signs"] for event in events] == [["novel_answers"]]
