"""A judge's own right judgments: which are kept, what is refused before it is sampled, and a run that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rewardlab.config import SelfDistilConfig
from rewardlab.data.pairs import read_pairs
from rewardlab.data.texts import opening_of
from rewardlab.distill.self_distill import (
    least_correct_or_beyond,
    select_judgments,
    self_distill,
    set_hot_token,
)
from rewardlab.errors import ConfigError, DataError, EndpointError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import Choice, Completion, FinishReason, Order, PreferencePair, Verdict, Vote, choice_of
from rewardlab.types import VerdictStatus as Status
from rewardlab.verdicts.parse import format_verdict


def vote(pair: PreferencePair, order: Order, right: bool, text: str) -> Vote:
    choice = choice_of(pair.preferred or 0, order)
    said = Verdict(choice if right else choice.swap(), Status.OK)
    return Vote(order, said, Completion(f"<think>{text}</think>", FinishReason.STOP))


def test_a_guesser_teaches_nothing(demo_pairs: Any) -> None:
    """8 right of 16 is what a coin gets; 13 is not (binomial, 1 in 94). Different openings first."""
    pair = demo_pairs[0][0]
    assert least_correct_or_beyond(16, 0.05) == 12
    assert (least_correct_or_beyond(4, 0.05), least_correct_or_beyond(5, 0.05), least_correct_or_beyond(16, 1.0)) == (5, 5, 0)
    rules = SelfDistilConfig(samples=8, keep=2)
    texts = ["the same words every time it is asked so"] * 12 + ["other words"]
    votes = [vote(pair, list(Order)[n % 2], True, text) for n, text in enumerate(texts)]
    lost = [vote(pair, Order.GIVEN, False, "x")] * 3
    kept = select_judgments(pair, [*votes, *lost], rules)
    assert {opening_of(one.judgment) for one in kept} == {opening_of(texts[0]), opening_of(texts[-1])}
    assert [one.pair_id for one in kept] == [f"{pair.pair_id}#0", f"{pair.pair_id}#1"]
    assert select_judgments(pair, [*votes[:8], *lost, *lost, *lost[:2]], rules) == []


def test_self_distillation_goes_on_where_it_was_killed(demo_pairs: Any, tmp_path: Path) -> None:
    """A judge that knows half of the pairs and guesses at the rest; killed and continued, it gives the same set."""
    pairs = demo_pairs[0][:20]
    asked: list[int] = []

    def answer(prompt: Any, n: int) -> str:
        asked.append(n)
        for pair in pairs[:10]:
            for order in Order:
                if prompt == build_messages(pair, order=order, template=judge.template):
                    return format_verdict(choice_of(pair.preferred or 0, order), f"looked {n}")
        return format_verdict(Choice.FIRST, "a guess")

    judge = GenerativeJudge(ScriptedSampler(answer), load_template("plain"))
    rules = SelfDistilConfig(samples=4, keep=1)
    whole = self_distill(pairs, judge, rules, tmp_path / "whole", batch=6)
    kept = read_pairs(tmp_path / "whole" / "distilled.parquet")
    assert {pair.pair_id for pair in pairs[:10]} <= {pair.pair_id for pair in kept}
    assert whole["num_pairs_kept"] == len(kept) < 20
    assert (whole["num_votes"], whole["samples"]) == (20 * 8, 4)
    journal = tmp_path / "cut" / "journal.jsonl"
    journal.parent.mkdir()
    lines = (tmp_path / "whole" / "journal.jsonl").read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:3]) + lines[3][:40])
    asked.clear()
    self_distill(pairs, judge, rules, tmp_path / "cut", batch=6)
    assert read_pairs(tmp_path / "cut" / "distilled.parquet") == kept
    assert len(asked) == 8 * 8  # the two batches that were not there
    lost = GenerativeJudge(
        ScriptedSampler(lambda p, n: Completion("", FinishReason.ERROR, error="HTTP 503")), load_template("plain")
    )
    with pytest.raises(EndpointError, match="samples of a batch failed"):
        self_distill(pairs[:3], lost, rules, tmp_path / "lost")
    guess = GenerativeJudge(ScriptedSampler(lambda p, n: format_verdict(Choice.FIRST, "x")), load_template("plain"))
    with pytest.raises(DataError, match="no pair was right"):
        self_distill(pairs[:3], guess, rules, tmp_path / "none")


def test_what_could_keep_nothing_is_not_sampled(demo_pairs: Any, tmp_path: Path) -> None:
    """Of two samples not even two right ones are rare enough for a guesser."""
    judge = GenerativeJudge(ScriptedSampler(lambda p, n: pytest.fail("was asked")), load_template("plain"))
    for rules in (SelfDistilConfig(samples=1), SelfDistilConfig(samples=8, alpha=0.0)):
        with pytest.raises(ConfigError, match=r"nothing could be kept.*raise samples or alpha"):
            self_distill(demo_pairs[0][:3], judge, rules, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_self_distillation_is_of_one_judges_weights(demo_pairs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that were replaced under the judge's name are another judge's; a damaged journal is a sentence."""
    pairs, out = demo_pairs[0][:4], tmp_path / "out"
    judge = GenerativeJudge(ScriptedSampler(lambda p, n: format_verdict(Choice.FIRST, "x")), load_template("plain"))
    rules = SelfDistilConfig(samples=2, alpha=1.0)
    monkeypatch.setattr("rewardlab.judging.judge.judge_weights_id", lambda spec: "first")
    self_distill(pairs, judge, rules, out)
    journal = out / "journal.jsonl"
    whole = journal.read_text()
    journal.write_text(whole.replace('"given"', '"sideways"').replace('"swapped"', '"sideways"'))
    with pytest.raises(DataError, match=r"journal\.jsonl, line 2: corrupt"):
        self_distill(pairs, judge, rules, out)
    journal.write_text(whole)
    monkeypatch.setattr("rewardlab.judging.judge.judge_weights_id", lambda spec: "second")
    with pytest.raises(ConfigError, match="differs in weights"):
        self_distill(pairs, judge, rules, out)


@pytest.mark.slow
def test_a_hot_token_draws_apart(demo_pairs: Any) -> None:
    """The first token after <think> of a real model: many more different ones; over an API there is none to heat."""
    from rewardlab.samplers.base import SamplingParams
    from rewardlab.samplers.hf import HFSampler

    judge = GenerativeJudge(HFSampler.load(DEMO_JUDGE), load_template("plain"))
    prompts = [build_messages(demo_pairs[0][0], order=Order.GIVEN, template=judge.template)]
    params = SamplingParams(num_samples=64, temperature=0.05, max_tokens=12)
    cold = judge.sampler.sample(prompts, params)[0]
    set_hot_token(judge, 30.0)
    hot = judge.sampler.sample(prompts, params)[0]
    place = judge.sampler.hot.position  # type: ignore[attr-defined]
    assert len({one.token_ids[place] for one in hot}) >= 8 > 2 * len({one.token_ids[place] for one in cold})
    with pytest.raises(ConfigError, match="hf:PATH"):
        set_hot_token(GenerativeJudge(ScriptedSampler(lambda p, n: ""), judge.template), 30.0)
