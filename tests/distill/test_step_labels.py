"""Step labels: the bad step of a judge whose mistakes are known, both orders, statuses, a killed run, bad input."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.config import StepsConfig
from rewardlab.distill.step_labels import label_steps, read_steps
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.models.loading import load_model
from rewardlab.prompts import load_template
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.hf import HFSampler
from rewardlab.samplers.openai_api import OpenAISampler
from rewardlab.types import Completion, FinishReason, Message, Order, PreferencePair, choice_of
from rewardlab.verdicts.parse import format_verdict

PLAIN = load_template("plain")
STEPS = ["The sky is up.", "The grass is down.", "The cat is here.", "So it goes.", "Done."]
KillError = type("KillError", (Exception,), {})


class KnownJudge(HFSampler):
    """Writes five steps; a judgment whose step b says "not" is, from then on, right once in ten; others, always.

    ``knows`` 0.5 is a judge that guesses whatever it has written. ``lean`` always names the response shown first.
    """

    def __init__(self, model: Any, processor: Any, preferred: dict[str, int], **how: Any) -> None:
        super().__init__(model, processor)
        self.preferred, self.calls = preferred, 0
        self.knows, self.lean, self.stop_at = how.get("knows", 1.0), how.get("lean", False), how.get("stop_at")

    def sample(
        self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams, prefixes: Sequence[Sequence[int]] | None = None
    ) -> list[list[Completion]]:
        self.calls += 1
        if self.stop_at == self.calls:
            raise KillError
        assert prefixes is not None
        rng = random.Random(params.seed)
        return [
            [self._write(p, tuple(prefix), n, rng) for n in range(params.num_samples)]
            for p, prefix in zip(prompts, prefixes, strict=True)
        ]

    def _write(self, prompt: tuple[Message, ...], prefix: tuple[int, ...], n: int, rng: random.Random) -> Completion:
        tokenizer = self.processor.tokenizer
        begun = tokenizer.decode(prefix)
        pair_id, order = next((name, o) for name in self.preferred for o in Order if f"{name} {o.value}" == self.asked(prompt))
        bad = int(pair_id) if n == 0 else 9  # the judgments that are labelled; step 9 is never reached
        written = [
            s.replace(" is ", " is not ").replace("Done", "not done").replace("So", "So not") if k == bad else s
            for k, s in enumerate(STEPS, 1)
        ]
        reasoning = "<think>" + " ".join(written)
        if not begun:
            begun, rest = "", reasoning
        else:
            rest = reasoning[len(begun) :] if n == 0 and reasoning.startswith(begun) else ""
        right = rng.random() < (0.1 if "not" in begun else self.knows)
        wanted = choice_of(self.preferred[pair_id], order)
        choice = choice_of(0, Order.GIVEN) if self.lean else wanted if right else wanted.swap()
        text = rest + format_verdict(choice, "").removeprefix("<think>")
        ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        return Completion(text, FinishReason.STOP, len(ids), 0, ids)

    def asked(self, prompt: tuple[Message, ...]) -> str:
        """The pair and order of a prompt, by its question and by which response comes first."""
        text = prompt[0].text
        name = text.split("pair ")[1].split("?")[0]
        return f"{name} {'given' if text.index('zero') < text.index('one') else 'swapped'}"


@pytest.fixture
def pairs() -> list[PreferencePair]:
    """Six pairs: the labelled judgments of pair b go wrong at step b, those of pair 6 do not."""
    return [PreferencePair(str(b), f"Which of pair {b}?", ("zero", "one"), b % 2) for b in range(1, 7)]


@pytest.fixture
def judge_of(tiny_checkpoint: Path, pairs: list[PreferencePair]) -> Any:
    model, processor = load_model(str(tiny_checkpoint), device="cpu")

    def make(**how: Any) -> GenerativeJudge:
        known = {pair.pair_id: pair.preferred or 0 for pair in pairs}
        return GenerativeJudge(KnownJudge(model, processor, known, **how), PLAIN)

    return make


CONFIG = StepsConfig.model_validate({"pairs_per_batch": 2})


def test_the_bad_step_is_found(pairs: list[PreferencePair], judge_of: Any, tmp_path: Path) -> None:
    """In both orders; labels, queries and statistics follow; never more queries than the bisection allows."""
    statistics = label_steps(pairs, CONFIG, judge_of(), tmp_path)
    rows = read_steps(tmp_path / "steps.jsonl")
    assert [(row["pair_id"], row["order"]) for row in rows] == [(str(b), o.value) for b in range(1, 7) for o in Order]
    for row in rows:
        bad = int(row["pair_id"])
        assert row["first_bad"] == (bad if bad <= 5 else None)
        assert row["labels"] == [1] * (bad - 1) + [-1] * (6 - bad)
        assert [row["text"][:end].rsplit(".", 2)[1] for end in row["ends"]]
        assert row["text"][: row["ends"][-1]].endswith("one.") or bad == 5
        assert 1 <= len(row["asked"]) <= 4
        assert all((right >= 15) == (k < bad) for k, right in row["asked"])
    assert statistics["share_with_bad_step"] == pytest.approx(10 / 12)
    assert statistics["first_bad"] == {str(b): 2 for b in range(1, 6)}
    assert statistics["statuses"] == {"labelled": 12, "no_footing": 0, "no_steps": 0}
    assert statistics["steps_per_judgment"] == 5
    assert statistics["num_completions"] == 20 * (12 + sum(len(row["asked"]) for row in rows))
    assert statistics["least_right"] == 15


@pytest.mark.parametrize("how", [{"knows": 0.5}, {"lean": True}])
def test_who_does_not_know_is_not_blamed(pairs: list[PreferencePair], judge_of: Any, tmp_path: Path, how: Any) -> None:
    """A guesser, and a judge of positions, who is right 20 times of 20 in one of the two orders."""
    statistics = label_steps(pairs, CONFIG, judge_of(**how), tmp_path)
    assert statistics["statuses"]["no_footing"] >= 10
    assert statistics["num_completions"] <= 20 * (12 + 2 * 4)
    if "lean" in how:
        assert statistics["statuses"]["labelled"] == 0
        with pytest.raises(DataError, match="no labelled judgment"):
            read_steps(tmp_path / "steps.jsonl")


def test_a_killed_run_goes_on(pairs: list[PreferencePair], judge_of: Any, tmp_path: Path) -> None:
    """With the same labels, asking only what was lost; another run's folder is refused."""
    label_steps(pairs, CONFIG, judge_of(), tmp_path / "whole")
    with pytest.raises(KillError):
        label_steps(pairs, CONFIG, judge_of(stop_at=6), tmp_path / "parts")
    assert not (tmp_path / "parts" / "steps.jsonl").exists()
    again = judge_of()
    statistics = label_steps(pairs, CONFIG, again, tmp_path / "parts")
    assert (tmp_path / "parts" / "steps.jsonl").read_text() == (tmp_path / "whole" / "steps.jsonl").read_text()
    assert statistics == json.loads((tmp_path / "whole" / "statistics.json").read_text())
    whole = judge_of()
    label_steps(pairs, CONFIG, whole, tmp_path / "third")
    assert again.sampler.calls < whole.sampler.calls
    with pytest.raises(ConfigError, match="alpha"):
        label_steps(pairs, CONFIG.model_copy(update={"alpha": 0.01}), judge_of(), tmp_path / "parts")


def test_the_pairs_own_judgments(pairs: list[PreferencePair], judge_of: Any, tmp_path: Path) -> None:
    """In the order each was written in; one without a closed reasoning has no steps."""
    wrong = "<think>The sky is up. It is not down. So one.</think><answer>1</answer>"
    own = [replace(pairs[0], judgment=wrong, order=Order.SWAPPED), replace(pairs[1], judgment="<answer>1</answer>"), pairs[2]]
    config = CONFIG.model_copy(update={"source": "pairs"})
    statistics = label_steps(own, config, judge_of(), tmp_path)
    (row,) = read_steps(tmp_path / "steps.jsonl")
    assert (row["order"], row["labels"], row["first_bad"]) == ("swapped", [1, -1, -1], 2)
    assert row["right"] == (choice_of(pairs[0].preferred or 0, Order.SWAPPED).value == "first")
    assert statistics["statuses"] == {"labelled": 1, "no_footing": 0, "no_steps": 1}
    with pytest.raises(DataError, match="carries a judgment"):
        label_steps(pairs, config, judge_of(), tmp_path / "none")


@pytest.mark.nightly
def test_a_real_judge(demo_pairs: Any, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """An untrained model has no footing anywhere; what it writes without a verdict is counted and right of nothing."""
    sampler = HFSampler(*load_model(str(tiny_checkpoint), device="cpu"))
    config = CONFIG.model_copy(update={"completions": 6, "alpha": 0.05, "max_tokens": 4})
    statistics = label_steps(demo_pairs[0][:3], config, GenerativeJudge(sampler, PLAIN), tmp_path)
    assert statistics["statuses"] == {"labelled": 0, "no_footing": 0, "no_steps": 6}
    assert statistics["invalid_completions"] == 1.0


def test_bad_input(pairs: list[PreferencePair], judge_of: Any, tmp_path: Path) -> None:
    """Said before anything is asked."""
    with pytest.raises(ConfigError, match="behind an API"):
        label_steps(pairs, CONFIG, GenerativeJudge(OpenAISampler("http://127.0.0.1:9", "m"), PLAIN), tmp_path / "a")
    with pytest.raises(DataError, match="no label"):
        label_steps([replace(pairs[0], preferred=None)], CONFIG, judge_of(), tmp_path / "a")
    assert not (tmp_path / "a").exists()
    for text in ("nonsense", "{}", "[1]"):
        (tmp_path / "steps.jsonl").write_text(text + "\n")
        with pytest.raises(DataError, match=r"not the steps\.jsonl"):
            read_steps(tmp_path / "steps.jsonl")
    with pytest.raises(DataError, match="cannot be read"):
        read_steps(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match="raise completions"):
        StepsConfig.model_validate({"completions": 5})
