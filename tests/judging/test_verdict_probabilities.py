"""Where a verdict stands, how likely either one is there, and the judge that weighs this instead of counting votes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import CheckpointError, ConfigError
from rewardlab.judging.engines import open_generative_judge
from rewardlab.judging.margins import ProbabilityJudge
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.hf import HFSampler, verdict_token_ids
from rewardlab.types import BOTH_ORDERS, Choice, Completion, FinishReason, Message, Order, Outcome, Verdict, VerdictStatus, Vote
from rewardlab.verdicts.parse import parse_verdict, until_verdict
from rewardlab.verdicts.votes import judgment_by_probability

VERDICT, PLAIN = load_template("verdict"), load_template("plain")


@pytest.mark.parametrize(
    ("text", "beginning"),
    [
        ("<think>a</think><answer>1</answer>", "<think>a</think><answer>"),
        ("<think>a</think>\n<answer> 2 </answer>\n", "<think>a</think>\n<answer> "),
        ("<think>a</think><answer>1</answer>\nno: <answer>2</answer>", "<think>a</think><answer>1</answer>\nno: <answer>"),
        ("<think>say <answer> or</think><answer>2</answer>", "<think>say <answer> or</think><answer>"),
        ("<answer>1</answer>", "<answer>"),
        ("<think>a</think><answer>1 or 2</answer>", None),
        ("<think>a</think><answer>1", None),
        ("", None),
    ],
)
def test_where_the_verdict_stands(text: str, beginning: str | None) -> None:
    """Right before the 1 or 2 that is read; an answer whose verdict cannot be read has no such place."""
    assert until_verdict(text, "think_answer") == beginning
    if beginning is not None:
        other = {"1": "2", "2": "1"}[text[len(beginning)]]
        turned = beginning + other + text[len(beginning) + 1 :]
        assert parse_verdict(turned, "think_answer").choice is parse_verdict(text, "think_answer").choice.swap()  # type: ignore[union-attr]


def test_the_bare_convention() -> None:
    """1 or 2 and nothing else; its verdict stands at the very beginning."""
    assert [parse_verdict(t, "bare").choice for t in ("1", " 2\n", "12", "1.", "first")] == [
        Choice.FIRST, Choice.SECOND, None, None, None,
    ]  # fmt: skip
    assert parse_verdict("12", "bare").status is VerdictStatus.NOT_A_CHOICE
    assert until_verdict("", "bare") == ""


@pytest.fixture(scope="module")
def sampler(tiny_checkpoint: Path) -> HFSampler:
    return HFSampler.load(tiny_checkpoint, batch_size=4, device="cpu")


def test_margins_equal_a_plain_forward(sampler: HFSampler, demo_pairs: Any) -> None:
    """Six prompts of different length, one without an image, in batches of four; each alone, unpadded, through the model."""
    pairs = [*demo_pairs[0][:5], replace(demo_pairs[0][5], images=())]
    prompts = [build_messages(pair, order=Order.GIVEN, template=PLAIN) for pair in pairs]
    beginnings = ["<answer>", "<think>red</think><answer>", "", "<think>x y z</think><answer>", "<answer>", "<answer>"]
    margins, coverage = sampler.verdict_margins(prompts, beginnings)
    one, two = (sampler.processor.tokenizer.convert_tokens_to_ids(label) for label in "12")
    for n, (prompt, beginning) in enumerate(zip(prompts, beginnings, strict=True)):
        inputs = sampler.encode([prompt], [beginning])
        if beginning:
            ids = sampler.processor.tokenizer.encode(beginning, add_special_tokens=False)
            assert inputs["input_ids"][0, -len(ids) :].tolist() == ids
        with torch.no_grad():
            logits = sampler.model(**inputs).logits[0, -1].double()
        assert margins[n].item() == pytest.approx((logits[one] - logits[two]).item(), abs=1e-4)
        assert coverage[n].item() == pytest.approx(logits.softmax(0)[[one, two]].sum().item(), abs=1e-6)


def test_a_sampled_verdict_has_the_probability_that_is_read(sampler: HFSampler, demo_pairs: Any) -> None:
    """The log-prob of a token the sampler drew first, and the margin read there, come from the same logits."""
    prompt = build_messages(demo_pairs[0][0], order=Order.GIVEN, template=VERDICT)
    margin, coverage = sampler.verdict_margins([prompt], [""])
    one = verdict_token_ids(sampler.processor.tokenizer, Choice.FIRST)[0]
    sampler = HFSampler(sampler.model, sampler.processor, batch_size=2000)
    found = {
        c.token_ids[0]: c.logprobs[0]
        for c in sampler.sample([prompt], SamplingParams(num_samples=2000, max_tokens=1, seed=1))[0]
    }
    assert one in found
    assert math.exp(found[one]) == pytest.approx((coverage * margin.sigmoid()).item(), rel=1e-3)


def test_a_verdict_of_several_tokens_is_refused(sampler: HFSampler) -> None:
    """Its probability is not that of one token."""

    class Spells:
        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return [ord(character) for character in f"<{text}>"]

    with pytest.raises(CheckpointError, match="several tokens"):
        verdict_token_ids(Spells(), Choice.FIRST)
    assert len(verdict_token_ids(sampler.processor.tokenizer, Choice.SECOND)) >= 1


class Scripted:
    """Says what it is told, with the margin and coverage that ``margin_of`` gives."""

    name = "scripted"

    def __init__(self, text: str, margin_of: Any) -> None:
        self.text, self.margin_of, self.asked = text, margin_of, []

    def check(self) -> None: ...

    @property
    def is_batch_invariant(self) -> bool:
        return True

    def sample(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[list[Completion]]:
        return [[Completion(self.text, FinishReason.STOP, 3)] * params.num_samples for _ in prompts]

    def verdict_margins(self, prompts: Sequence[tuple[Message, ...]], beginnings: Sequence[str]) -> Any:
        self.asked += beginnings
        rows = [self.margin_of(prompt[0].text, n) for n, prompt in enumerate(prompts)]
        return torch.tensor([m for m, _ in rows], dtype=torch.float64), torch.tensor([c for _, c in rows])


def first_slot(bias: float, coverage: float = 0.9) -> Any:
    """Likes "red" by 1 and the first slot by ``bias``."""

    def margin_of(text: str, _: int) -> tuple[float, float]:
        return (1 if "Response 1: red" in text else -1) + bias, coverage

    return margin_of


@pytest.fixture
def pair(demo_pairs: Any) -> Any:
    return replace(demo_pairs[0][0], responses=("red", "blue"), preferred=0)


def test_a_slot_bias_leaves_the_judgment_alone(pair: Any) -> None:
    """Margin 1 with a bias of 5: both votes name the first slot, and the probability is still sigmoid(1) = .731."""
    judge = ProbabilityJudge(Scripted("", first_slot(5.0)), VERDICT)
    judged = judge.compare(pair, num_votes=7)
    assert [vote.verdict.choice for vote in judged.votes] == [Choice.FIRST, Choice.FIRST]
    assert judged.share_0 == pytest.approx(0.7310586)
    assert judged.outcome is Outcome.RESPONSE_0
    assert judge.compare(pair.swap()).share_0 == pytest.approx(1 - 0.7310586)
    assert judge.sampler.asked == [""] * 4
    one = judge.compare_many([pair], orders=[(Order.SWAPPED,)], num_votes=1, seed=0)[0]
    assert one.share_0 == pytest.approx(1 / (1 + math.exp(4)))  # asked in one order, the bias stays: -(-1 + 5)


def test_rationales_are_averaged(pair: Any) -> None:
    """Two rationales in each order, .9 and .5 for the first slot shown: .7 there and .3 seen from response 0: even."""

    def margin_of(_: str, n: int) -> tuple[float, float]:
        return (math.log(9), 0.0)[n % 2], 0.9

    judge = ProbabilityJudge(Scripted("<think>a</think><answer>2</answer>", margin_of), PLAIN)
    judged = judge.compare(pair, num_votes=2)
    assert judge.sampler.asked == ["<think>a</think><answer>"] * 4
    assert judged.share_0 == pytest.approx(0.5)
    only = judge.compare_many([pair], orders=[(Order.GIVEN,)], num_votes=2, seed=0)[0]
    assert only.share_0 == pytest.approx(0.7)
    assert [vote.verdict.status for vote in only.votes] == [VerdictStatus.OK, VerdictStatus.TIE]


@pytest.mark.parametrize(
    ("text", "coverage", "rule"),
    [("<think>cut", 0.9, "unclosed_think"), ("<think>a</think><answer>1</answer>", 0.4, "low_coverage")],
)
def test_no_verdict_is_no_coin_flip(pair: Any, text: str, coverage: float, rule: str) -> None:
    """Neither an answer without a verdict nor a model about to write something else has a probability."""
    judged = ProbabilityJudge(Scripted(text, first_slot(0.0, coverage)), PLAIN).compare(pair)
    assert {(vote.verdict.status, vote.verdict.rule) for vote in judged.votes} == {(VerdictStatus.NO_VERDICT, rule)}
    assert (judged.outcome, judged.share_0) == (Outcome.NO_VALID_VOTE, None)


def test_one_unreadable_order_leaves_no_probability() -> None:
    """The other order alone would carry its bias."""
    done = Completion("", FinishReason.STOP)
    votes = [Vote(order, Verdict(Choice.FIRST, VerdictStatus.OK), done, 3.0) for order in BOTH_ORDERS]
    assert judgment_by_probability("p", votes[:1]).share_0 == pytest.approx(1 / (1 + math.exp(-3)))
    votes[1] = Vote(Order.SWAPPED, Verdict(None, VerdictStatus.NO_VERDICT), done)
    assert judgment_by_probability("p", votes).outcome is Outcome.NO_VALID_VOTE
    assert judgment_by_probability("p", []).share_0 is None


def test_an_untrained_judge_is_benchmarked_as_invalid(tiny_checkpoint: Path, demo_pairs: Any, tmp_path: Path) -> None:
    """Its first token is hardly ever a verdict: nothing is right, everything is counted, in the votes and in the control."""
    write_parquet(demo_pairs[0][:6], tmp_path / "pairs.parquet")
    settings = bench_settings("pairs", tmp_path / "pairs.parquet", f"prob:{tiny_checkpoint}", template="verdict")
    report = run_bench(settings, tmp_path / "out")[0].to_json()
    assert report["accuracy"]["micro"] == 0
    assert report["invalid_rate"] == report["controls"]["blank"]["invalid_rate"] == 1
    rows = [json.loads(line) for line in (tmp_path / "out" / "votes.jsonl").read_text().splitlines()[1:]]
    assert {vote["rule"] for row in rows for vote in row["votes"]} == {"low_coverage"}
    assert {len(row["votes"]) for row in rows} == {2}


def test_which_judge_a_spec_opens(tiny_checkpoint: Path) -> None:
    """prob: weighs; hf: counts votes, but of a checkpoint that gives the verdict alone."""
    assert isinstance(open_generative_judge(f"prob:{tiny_checkpoint}", template="plain"), ProbabilityJudge)
    assert not isinstance(open_generative_judge(f"hf:{tiny_checkpoint}", template="plain"), ProbabilityJudge)
    assert isinstance(open_generative_judge(f"hf:{tiny_checkpoint}", template="verdict"), ProbabilityJudge)
    with pytest.raises(ConfigError, match="prob:PATH"):
        open_generative_judge("what:x")
