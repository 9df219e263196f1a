"""Checklists in two turns, their checks and then their verification: as they are asked, learnt, rewarded and read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.config import DistillConfig, SFTConfig
from rewardlab.demo.pairs import make_pairs
from rewardlab.distill.pipeline import identity_of
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.engines import open_generative_judge
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.models.loading import load_processor
from rewardlab.prompts import Template, load_template
from rewardlab.rewards.rollout import Rollout, Scored
from rewardlab.samplers.hf import user_turn
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.jobs import ChatJob
from rewardlab.training.policy_gradient.rollouts.sampling import Samples, Sampling
from rewardlab.training.policy_gradient.rollouts.strategies import TurnRollouts
from rewardlab.training.rl import train_rl
from rewardlab.training.run.rows import PromptReader, dialogue_dataset
from rewardlab.training.sft import sft_dialogues, train_sft
from rewardlab.types import Choice, Completion, FinishReason, Message, Part, PreferencePair, choice_of
from rewardlab.verdicts.checklist import ClaimCheck, ClaimFinding, join_turns, split_turns, write_checks
from rewardlab.verdicts.turns import CheckTurns
from tests.support.checklist_judge import checking
from tests.support.configs import WITH_CRITIC, short_rl_config

TURNS = load_template("checklist_turns")


def checklist(pair: PreferencePair) -> PreferencePair:
    assert pair.preferred is not None
    right = choice_of(pair.preferred, pair.order)
    checks = [
        ClaimCheck(choice, "is right", ClaimFinding.TRUE if choice is right else ClaimFinding.FALSE, reason="seen")
        for choice in Choice
    ]
    digit = 1 if right is Choice.FIRST else 2
    return replace(pair, judgment=f"<think>{write_checks(checks)}\n</think><answer>{digit}</answer>")


@pytest.fixture(scope="module")
def pairs() -> list[PreferencePair]:
    return [checklist(replace(pair, attempts="2")) for pair in make_pairs(16, seed=1, held_out=False)[0]]


def test_a_judgment_is_the_one_of_its_turns(pairs: list[PreferencePair]) -> None:
    for pair in pairs:
        first, second = split_turns(pair.judgment)
        assert first.startswith("Checks:\n1. Response 1: is right")
        assert second.startswith("<think>Verification:\n1. seen: ")
        assert join_turns(first, second) == pair.judgment
    for text in ("", "<think>a</think><answer>1</answer>", pairs[0].judgment.replace("2. ", "3. "), f"x{pairs[0].judgment}"):
        with pytest.raises(ValueError, match="no judgment with checks"):
            split_turns(text)
    emphasised = pairs[0].judgment.replace("Verification:", "**Verification:**")  # which the reader accepts
    assert split_turns(emphasised) == split_turns(pairs[0].judgment)


def test_a_chat_has_one_turn() -> None:
    """A served judge of two turns answers other chats as its model does."""
    judge = GenerativeJudge(ScriptedSampler(lambda prompt, draw: f"{len(prompt)} turn"), TURNS)
    job = ChatJob((Message("user", (Part("Hello"),)),), judge.params(1))
    assert [completion.text for [completion] in job.run([job], judge, judge)] == ["1 turn"]


def test_the_second_turn_is_asked_after_the_first(pairs: list[PreferencePair]) -> None:
    """The judge says what it would in one turn; a first turn that was cut off, and a second that failed, are no verdicts."""
    asked: list[tuple[Message, ...]] = []

    def answer(prompt: tuple[Message, ...], draw: int) -> str | Completion:
        asked.append(prompt)
        if "cut" in prompt[0].text and len(prompt) == 1:
            return Completion("Checks:", FinishReason.LENGTH, num_tokens=3)
        if "down" in prompt[0].text and len(prompt) > 1:
            return Completion("", FinishReason.ERROR, error="HTTP 503")
        return split_turns(checking(prompt[:1], draw))[len(prompt) > 1]

    judge = GenerativeJudge(ScriptedSampler(answer), TURNS).greedy()
    pair = PreferencePair("p", "Which is greater?", ("I say 3.", "I say 1."), None)
    judged = judge.compare(pair, num_votes=2)
    assert [vote.winner for vote in judged.votes] == [0] * 4
    assert judged.votes[0].completion.text == checking(asked[0], 0)
    assert [message.role for message in asked[-1]] == ["user", "assistant", "user"]
    assert asked[-1][-1].text == TURNS.followup
    cut = judge.compare(replace(pair, question="Which is cut?"))
    assert {vote.verdict.status for vote in cut.votes} == {"truncated"}
    assert {vote.completion.num_tokens for vote in cut.votes} == {3}
    down = judge.compare(replace(pair, question="Which is down?"))
    assert [(vote.verdict.status, vote.completion.error) for vote in down.votes] == [("error", "HTTP 503")] * 2


def test_a_followup_is_a_part_of_the_template() -> None:
    assert TURNS.hash != replace(TURNS, followup="").hash
    assert Template("x", TURNS.text, "checklist").hash == replace(TURNS, followup="").hash


def test_each_turn_is_learnt_after_those_before_it(pairs: list[PreferencePair]) -> None:
    rows = dialogue_dataset(PromptReader(pairs, TURNS), sft_dialogues(pairs[:1], TURNS))
    first, second = split_turns(pairs[0].judgment)
    learnt = [row["completion"][0]["content"] for row in rows]
    assert learnt == [first, second]
    assert [message["role"] for message in rows[0]["prompt"]] == ["user"]
    assert [message["content"][-1]["text"] for message in rows[1]["prompt"][1:]] == [first, TURNS.followup]
    bad = [replace(pairs[0], judgment="<think>a</think><answer>1</answer>")]
    with pytest.raises(DataError, match=rf"{pairs[0].pair_id}: its judgment is none for template checklist_turns"):
        list(dialogue_dataset(PromptReader(bad, TURNS), sft_dialogues(bad, TURNS)))


def test_a_rollout_has_both_turns(tiny_checkpoint: Path) -> None:
    """Three completions: ended, cut, ended. The user's turn is context, without a second end token before it; the reward reads
    the judgment of both turns."""
    processor = load_processor(str(tiny_checkpoint))
    tokenizer = processor.tokenizer
    end = tokenizer.eos_token_id
    inserted, _ = user_turn(processor, TURNS.followup)
    inserted = inserted[1:] if inserted[0] == end else inserted

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    firsts, seconds = [[*ids("one"), end], ids("two"), [*ids("three"), end]], [[*ids("<think>four"), end], ids("<think>five")]
    calls: list[Any] = []

    def sample(prompt_ids: list[list[int]], images: Any, fields: Any, rows: Any) -> Samples:
        calls.append((prompt_ids, list(rows)))
        return (firsts if len(calls) == 1 else seconds), None

    rollouts = TurnRollouts(processor, CheckTurns(TURNS.followup))
    made = rollouts.complete([[7], [8], [9]], None, {}, Sampling(sample, lambda flag: flag, frozenset({end}), 6))
    assert calls[1] == ([[7, *firsts[0], *inserted], [9, *firsts[2], *inserted]], [0, 2])
    assert made[0].tokens == [*firsts[0], *inserted, *seconds[0]]
    assert made[0].forced == ((len(firsts[0]), len(firsts[0]) + len(inserted)),)
    assert made[1].forced == ()
    texts: list[str] = []

    def score(some: Any) -> Scored:
        texts.extend(rollout.text for rollout in some)
        return Scored([1.0] * 3, [1.0] * 3, [True] * 3)

    rollouts.collect([Rollout({}, [7], part, "") for part in made], score)
    assert texts == ["<think>one\nfour", "two", "<think>three\nfive"]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (WITH_CRITIC, "template checklist_turns has several turns, and advantage gae takes one"),
        ({"hot_token": {}}, "template checklist_turns has several turns, and hot_token takes one"),
        ({"overlong_margin": 8}, "overlong_margin: template checklist_turns has several turns"),
        ({"template": "plain", "follows_weight": 0.5}, "follows_weight: template plain has no checks"),
        ({"template": "plain", "consistency": {"reader": "blind"}}, "consistency.reader=blind reads checks"),
        ({"template": "best"}, "template best rates responses or orders a list, and rl takes verdicts on pairs"),
    ],
)
def test_what_rl_refuses(changes: dict[str, Any], name: str, pairs: list[PreferencePair], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=name):
        train_rl(pairs, short_rl_config("hf", **{"template": "checklist_turns", **changes}), tmp_path / "rl")


def test_who_else_needs_one_turn(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a teacher takes one"):
        identity_of(DistillConfig(template="checklist_turns"), "")
    with pytest.raises(ConfigError, match="verifying votes takes one"):
        train_sft([], SFTConfig(template="checklist_turns"), tmp_path / "sft", votes=tmp_path / "votes.jsonl")
    with pytest.raises(ConfigError, match="verify: takes one"):
        open_generative_judge("verify:openai:m@http://localhost", template="checklist_turns")


@pytest.mark.nightly
def test_a_run(tiny_checkpoint: Path, pairs: list[PreferencePair], tmp_path: Path) -> None:
    """Fine-tuned, judging and rewarded: a tiny model has learnt both turns, though not which response is right, and RL reads
    them. The trainer's log-probs of all trained tokens are the sampler's: both read the inserted turn."""
    steps = {"batch_size": 8, "micro_batch_size": 8, "max_steps": 60, "learning_rate": 1e-2, "lr_scheduler": "constant"}
    config = SFTConfig(model=str(tiny_checkpoint), template="checklist_turns", data_workers=0, save_steps=100, **steps)
    started = train_sft(pairs, config, tmp_path / "sft")
    judge = open_generative_judge(f"hf:{started}", temperature=0.0, max_tokens=64)
    votes = [vote for pair in pairs[:2] for vote in judge.compare(replace(pair, judgment="")).votes]
    assert {vote.completion.text for vote in votes} <= {pair.judgment for pair in pairs}
    rl = short_rl_config(started, template="checklist_turns", max_completion_length=64, importance={}, max_steps=2)
    train_rl(pairs, rl, tmp_path / "rl")
    metrics = json.loads((tmp_path / "rl" / "metrics.jsonl").read_text().splitlines()[0])
    assert metrics["reward/format"] > 0.2
    assert metrics["verdict/ok"] > 0.2
    assert 0 < metrics["importance/gap"] < 1e-3
