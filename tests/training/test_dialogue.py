"""Verified judgments: what their metrics say, and how a judge verifies when asked."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rewardlab.config import SFTConfig
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.models.checkpoints import write_card
from rewardlab.models.loading import load_processor
from rewardlab.prompts import load_template
from rewardlab.prompts.verification import CORRECT, REVISE, VERIFY, WRONG, read_verification
from rewardlab.rewards.rollout import Rollout, Scored, Trajectory
from rewardlab.samplers.base import SamplingParams, SelfVerifying
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.training.policy_gradient.rollouts.sampling import Samples, Sampling
from rewardlab.training.policy_gradient.rollouts.strategies import DialogueRollouts, longest_dialogue, verification_metrics
from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.rl import train_rl
from rewardlab.training.run.rows import PromptReader, dialogue_dataset
from rewardlab.training.sft import mentions_difference, train_sft, verification_dialogues
from rewardlab.types import Completion, FinishReason, Message, Order, Part, PreferencePair
from rewardlab.verdicts.places import reasoning_of
from tests.support.configs import short_rl_config
from tests.support.serving import in_process


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Response 1 says red. {CORRECT}", True),
        (f"... {WRONG.lower()}.", False),
        (f"{WRONG}? No: {CORRECT}.", None),
        ("It is fine.", None),
        ("", None),
        (f"{CORRECT} {CORRECT}", True),
    ],
)
def test_reading_a_verification(text: str, expected: bool | None) -> None:
    assert read_verification(text) is expected


def test_metrics_of_the_collapses() -> None:
    """A verifier that always says "correct" recognises every right judgment and no wrong one, and nothing is revised."""

    def values(*columns: Any) -> dict[str, float]:
        return {name: metric.value for name, metric in verification_metrics(*columns).items()}

    yes = values([True, True, False], [True, True, True], [True, True, False], [False] * 3)
    assert (yes["verify/correct_recognised"], yes["verify/wrong_recognised"], yes["verify/revised_frac"]) == (1.0, 0.0, 0.0)
    flips = values([True, False], [False, False], [False, True], [True, True])
    assert (flips["verify/gained_frac"], flips["verify/lost_frac"], flips["verify/final_accuracy"]) == (0.5, 0.5, 0.5)
    assert (flips["verify/mended_of_wrong"], flips["verify/lost_of_correct"], flips["verify/net_gain"]) == (1.0, 1.0, 0.0)
    assert values([True], [None], [True], [False])["verify/unclear_frac"] == 1.0


def test_only_a_judgment_that_is_clearly_found_wrong_is_revised(tiny_checkpoint: Path) -> None:
    """Not by a verification that is cut off or says neither: these earn nothing, and nor does a revision that was not made."""
    processor = load_processor(str(tiny_checkpoint))
    end = processor.tokenizer.eos_token_id
    said = [(WRONG, True), (WRONG, False), ("hm", True), (CORRECT, True)]
    verifications = [processor.tokenizer(text)["input_ids"] + [end] * ended for text, ended in said]
    turns: list[list[int]] = []

    def sample(prompt_ids: list[list[int]], images: Any, fields: Any, rows: Any) -> Samples:
        turns.append(list(rows))
        return [verifications[row] if len(turns) == 2 else [5, 6, end] for row in rows], None

    rollouts = DialogueRollouts(processor)
    sampling = Sampling(sample, lambda flag: flag, frozenset({end}), 9)
    trajectories = rollouts.complete([[7]] * 4, None, {}, sampling)
    assert turns == [[0, 1, 2, 3], [0, 1, 2, 3], [0]]
    assert [len(trajectory.parts) for trajectory in trajectories] == [3, 2, 2, 2]
    for trajectory in trajectories:
        numbers = [number for number, part in enumerate(trajectory.parts, 1) for _ in part]
        assert [number for number in trajectory.part_of_token if number] == numbers
        between = sum(end - begin for begin, end in trajectory.forced)
        assert trajectory.part_of_token.count(0) == between == len(trajectory.tokens) - len(numbers) > 0
    made = [Rollout({}, [7], trajectory, "") for trajectory in trajectories]

    def rewarded(value: float) -> Any:
        return rollouts.collect(made, lambda some: Scored([value] * len(some), [value] * len(some), [True] * len(some)))

    wrong, right = rewarded(0.0), rewarded(1.0)
    assert [rollout.turns[1] for rollout in right.rollouts] == [WRONG, WRONG, "hm", CORRECT]
    assert [rollout.turn_rewards for rollout in wrong.rollouts] == [(0, 1, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0)]
    assert [rollout.turn_rewards for rollout in right.rollouts] == [(1, 0, 1), (1, 0, 0), (1, 0, 0), (1, 1, 0)]
    for collected in (wrong, right):
        assert collected.metrics["verify/unclear_frac"].value == 0.5
        assert collected.metrics["verify/revised_frac"].value == 0.25


def test_a_revision_that_nothing_scores_earns_and_loses_nothing(tiny_checkpoint: Path) -> None:
    """It is none of a right judgment made wrong: the bonus is not taken off."""
    processor = load_processor(str(tiny_checkpoint))
    end = processor.tokenizer.eos_token_id
    turns = ([5, end], [*processor.tokenizer(WRONG)["input_ids"], end], [6, end])
    rollouts = DialogueRollouts(processor)
    rollouts._ends = frozenset({end})
    said = [*turns[0], 7, *turns[1], 7, *turns[2]]
    begins = [len(turns[0]), len(turns[0]) + 1 + len(turns[1])]
    made = [Rollout({}, [7], Trajectory(said, forced=tuple((begin, begin + 1) for begin in begins)), "")]

    def score(some: list[Rollout]) -> Scored:
        reward = None if some[0].trajectory.tokens == turns[2] else 1.0
        return Scored([reward], [1.0], [True])

    collected = rollouts.collect(made, score)
    assert collected.rollouts[0].turn_rewards == (1, 0, 0)
    assert collected.metrics["verify/revised_frac"].value == 1.0


def test_prompts_leave_room_for_a_whole_dialogue(
    demo_pairs: Any, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms: list[int] = []

    def stop(*args: Any, room: int, **kwargs: Any) -> Any:
        rooms.append(room)
        raise DataError("seen")

    monkeypatch.setattr("rewardlab.training.rl.drop_too_long", stop)
    method = {"advantage": "gae", "outliers": "keep", "preclip": None}
    for self_verify in (False, True):
        config = short_rl_config(tiny_checkpoint, self_verify=self_verify, **method)
        with pytest.raises(DataError, match="seen"):
            train_rl([replace(pair, attempts="2") for pair in demo_pairs[0][:8]], config, tmp_path / "rl")
    assert rooms == [8, longest_dialogue(load_processor(str(tiny_checkpoint)), 8)]


def test_votes_on_other_pairs_teach_no_verification(demo_pairs: Any, tiny_checkpoint: Path, tmp_path: Path) -> None:
    votes, pairs = tmp_path / "votes.jsonl", tmp_path / "pairs.parquet"
    write_parquet(demo_pairs[0][:2], pairs)
    votes.write_text(json.dumps({"identity": {"data": "of another file"}}) + "\n")
    config = SFTConfig(model=str(tiny_checkpoint), template="plain", learning_rate=1e-3, batch_size=1, micro_batch_size=1)
    with pytest.raises(DataError, match="its votes are not on the pairs of"):
        train_sft(pairs, config, tmp_path / "sft", votes=votes)


def test_votes_are_not_verified_by_one_token(demo_pairs: Any, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Of a template that asks for the verdict alone one token is learnt, of verifications, too."""
    config = SFTConfig(model=str(tiny_checkpoint), template="verdict", learning_rate=1e-3, batch_size=1, micro_batch_size=1)
    with pytest.raises(ConfigError, match="asks for the verdict alone, so only one token is trained"):
        train_sft(demo_pairs[0][:2], config, tmp_path / "sft", votes=tmp_path / "votes.jsonl")
    assert not (tmp_path / "sft").exists()


def test_another_template_is_said(
    demo_pairs: Any, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SFT may teach a judge other words than its own; it does not do so in silence."""
    lines: list[str] = []
    monkeypatch.setattr("rewardlab.training.sft.log_line", lines.append)
    monkeypatch.setattr("rewardlab.training.sft.run_stage", lambda stage: tmp_path)
    judge = tmp_path / "judge"
    shutil.copytree(tiny_checkpoint, judge)
    write_card(judge, template=load_template("plain"), stage="sft")
    pairs = [replace(pair, judgment="<think>x</think><answer>1</answer>") for pair in demo_pairs[0][:2]]
    for template in ("plain", "r1_reward"):
        train_sft(pairs, SFTConfig(model=str(judge), template=template, learning_rate=1e-3, batch_size=1, micro_batch_size=1))
    assert [line for line in lines if "template" in line] == [
        f"{judge} was trained on template plain, and is taught r1_reward now; template=plain keeps it"
    ]


def test_the_room_of_a_dialogue(tiny_checkpoint: Path) -> None:
    """Three full turns of the policy's, and the user's two in the chat template's words."""
    processor = load_processor(str(tiny_checkpoint))
    end = processor.tokenizer.eos_token_id

    def sample(prompt_ids: list[list[int]], images: Any, fields: Any, rows: Any) -> Samples:
        verification = [*processor.tokenizer(WRONG)["input_ids"], end]
        return [[5] * (len(verification) - 1) + [end] if len(prompt_ids[0]) == 1 else verification for _ in rows], None

    (trajectory,) = DialogueRollouts(processor).complete(
        [[7]], None, {}, Sampling(sample, lambda flag: flag, frozenset({end}), 99)
    )
    assert len(trajectory.parts) == 3
    length = len(trajectory.parts[0])
    assert len(trajectory.tokens) <= longest_dialogue(processor, length) <= len(trajectory.tokens) + 2


PROMPT = (Message("user", (Part(text="Which is better?"),)),)


def verifying(answers: dict[int, str], finish: FinishReason = FinishReason.STOP) -> tuple[list[Any], SelfVerifying]:
    """A judge whose k-th turn is ``answers[k]``, and what it was asked."""
    asked: list[tuple[Message, ...]] = []

    def handler(prompt: tuple[Message, ...], draw: int) -> Completion:
        asked.append(prompt)
        return Completion(answers[len(prompt) // 2], finish, 5)

    return asked, SelfVerifying(ScriptedSampler(handler))


def test_a_judge_revises_only_what_it_finds_wrong() -> None:
    first, second = "<answer>1</answer>", "<answer>2</answer>"
    for said, final, turns in ((WRONG, second, 3), (CORRECT, first, 2), ("hm", first, 2)):
        asked, sampler = verifying({0: first, 1: said, 2: second})
        (drawn,) = sampler.sample([PROMPT], SamplingParams(num_samples=2))
        assert [one.text for one in drawn] == [final, final]
        assert drawn[0].num_tokens == 5 * turns
        assert drawn[0].turns == (first, said, second)[:turns]
        last = asked[-1]
        assert len(last) == 2 * turns - 1
        assert [m.text for m in last if m.role == "user"] == ["Which is better?", VERIFY, REVISE][:turns]
    assert "self-verifying" in sampler.name


def test_a_chat_with_it_is_not_verified() -> None:
    """Behind an endpoint its judgments are; a chat is what the model says."""
    first, second = "<think>x</think><answer>1</answer>", "<think>x</think><answer>2</answer>"
    asked, sampler = verifying({0: first, 1: WRONG, 2: second})
    with in_process(create_app(GenerativeJudge(sampler, load_template("plain")))) as client:
        chat = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]}).json()
        num_asked = len(asked)
        judged = client.post("/v1/judge", json={"question": "Which?", "responses": ["a", "b"]}).json()
    assert (chat["choices"][0]["message"]["content"], num_asked) == (first, 1)
    assert [vote["text"] for vote in judged["votes"]] == [second, second]


def test_a_cut_off_judgment_is_not_verified() -> None:
    """Its status is what it was: there is nothing to verify, and nothing is hidden by asking again."""
    asked, sampler = verifying({0: "<think>never ends"}, FinishReason.LENGTH)
    ((drawn,),) = sampler.sample([PROMPT], SamplingParams())
    assert drawn.finish is FinishReason.LENGTH
    assert len(asked) == 1


def write_votes(path: Path, *rows: tuple[int, str, str | None]) -> Path:
    """Votes of one order, choice and text each, as `rewardlab bench run` leaves them."""
    lines = [
        {"pass": "votes", "row": row, "votes": [{"order": order, "choice": choice, "text": f"said {choice}"}]}
        for row, order, choice in rows
    ]
    path.write_text("\n".join(json.dumps(line) for line in [{"identity": {}}, *lines, {"pass": "blank", "row": 0}]))
    return path


def judged_pairs(demo_pairs: Any, *preferred: int) -> list[PreferencePair]:
    """Pairs whose kept judgment repeats both responses."""
    return [
        replace(
            pair,
            judgment=f"<think>{' '.join(pair.responses)}</think><answer>{side + 1}</answer>",
            order=Order.GIVEN,
            preferred=side,
        )
        for pair, side in zip(demo_pairs[0], preferred, strict=False)
    ]


def test_cold_start_dialogues(demo_pairs: Any, tmp_path: Path) -> None:
    """A right vote is verified as correct, a wrong one as wrong and then revised; one in the other order, or without a verdict,
    or on a pair without a judgment, teaches nothing."""
    judged = [*judged_pairs(demo_pairs, 0, 1), demo_pairs[0][2]]
    file = write_votes(
        tmp_path / "votes.jsonl",
        (0, "given", "first"),
        (0, "given", "second"),
        (0, "swapped", "first"),
        (0, "given", None),
        (1, "given", "first"),
        (1, "given", "second"),
        (2, "given", "first"),
    )
    rows = dialogue_dataset(PromptReader(judged, load_template("plain")), verification_dialogues(judged, file))
    said = [row["completion"][0]["content"] for row in rows]
    reasons = [reasoning_of(pair.judgment) for pair in judged[:2]]
    assert said == [
        f"{reasons[0]} Response 1 is better, and the judgment names Response 1. {CORRECT}.",
        f"{reasons[0]} Response 1 is better, and the judgment names Response 2. {WRONG}.",
        judged[0].judgment,
        f"{reasons[1]} Response 2 is better, and the judgment names Response 2. {CORRECT}.",
        f"{reasons[1]} Response 2 is better, and the judgment names Response 1. {WRONG}.",
        judged[1].judgment,
    ]
    assert [turn["role"] for turn in rows[2]["prompt"]] == ["user", "assistant", "user", "assistant", "user"]
    assert rows[2]["prompt"][1]["content"] == [{"type": "text", "text": "said second"}]
    assert [read_verification(text) for text in said] == [True, False, None, True, False, None]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(2, "given", "first")], "kept judgment"),
        ([(0, "given", "first"), (1, "given", "second")], "all 2 votes that can be verified are right"),
        ([(0, "given", "second")], "all 1 votes that can be verified are wrong"),
        ([(3, "given", "first")], "give the votes on this --data"),
    ],
)
def test_votes_that_teach_no_verification(
    demo_pairs: Any, tmp_path: Path, rows: list[tuple[int, str, str]], message: str
) -> None:
    judged = [*judged_pairs(demo_pairs, 0, 1), demo_pairs[0][2]]
    with pytest.raises(DataError, match=message):
        verification_dialogues(judged, write_votes(tmp_path / "votes.jsonl", *rows))


def test_as_many_right_votes_as_wrong_ones(demo_pairs: Any, tmp_path: Path) -> None:
    """Of eight right and two wrong votes two each: the right ones of the pairs that also have a wrong one."""
    judged = judged_pairs(demo_pairs, 0, 0, 0, 0)
    cast = [(row, "given", choice) for row, choices in enumerate(("fff", "ffs", "fff", "s")) for choice in choices]
    choice_of_letter = {"f": "first", "s": "second"}
    file = write_votes(tmp_path / "votes.jsonl", *((row, order, choice_of_letter[c]) for row, order, c in cast))
    dialogues = [dialogue for dialogue in verification_dialogues(judged, file) if dialogue.answer is not None]
    found = [(dialogue.number, read_verification(dialogue.answer or "")) for dialogue in dialogues]
    assert found == [(1, True), (1, True), (1, False), (3, False)]


@pytest.mark.parametrize(
    ("reasoning", "expected"),
    [
        ("It is Red, as Response 1 says.", True),
        ("Response 2 is clearer.", False),
        ("The star. The star. The star.", False),
        ("reddish", False),
        ("", False),
    ],
)
def test_which_reasonings_verify(reasoning: str, expected: bool) -> None:
    """Those with a word that one response has and the other has not."""
    for responses in (("The star is red.", "The star is blue."), ("The star is blue.", "The star is red.")):
        assert mentions_difference(reasoning, responses) is expected


def test_a_teachers_mere_preference_verifies_nothing(demo_pairs: Any, tmp_path: Path) -> None:
    judged = judged_pairs(demo_pairs, 0, 0)
    judged[1] = replace(judged[1], judgment="<think>Response 1 sounds nicer.</think><answer>1</answer>")
    file = write_votes(tmp_path / "votes.jsonl", *((row, "given", choice) for row in (0, 1) for choice in ("first", "second")))
    assert {dialogue.number for dialogue in verification_dialogues(judged, file)} == {0}


def test_training_on_dialogues(demo_pairs: Any, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SFT on verifications, then RL on verified judgments, through the real trainers. What is trained on is what was sampled:
    in every turn the decoder's log-probs are those of the whole dialogue read at once, image and positions included."""
    texts = [f"<think>{pair.responses[0]}</think><answer>1</answer>" for pair in demo_pairs[0][:8]]
    pairs = [replace(p, judgment=text, attempts="2") for p, text in zip(demo_pairs[0], texts, strict=False)]
    votes = tmp_path / "votes.jsonl"
    cast = [{"order": pair.order.value, "choice": "first", "text": "<answer>1</answer>"} for pair in pairs]
    lines = [{"pass": "votes", "row": row, "votes": [vote]} for row, vote in enumerate(cast)]
    votes.write_text("\n".join(json.dumps(line) for line in [{"identity": {}}, *lines]))
    common: dict[str, Any] = {"template": "plain", "lr_scheduler": "constant", "gradient_checkpointing": False}
    judge = str(finished_run / "rl" / "final")
    sft = SFTConfig(model=judge, max_steps=1, learning_rate=1e-5, batch_size=8, micro_batch_size=8, data_workers=0, **common)
    started = train_sft(pairs, sft, tmp_path / "sft", votes=votes)
    method: dict[str, Any] = {"advantage": "gae", "self_verify": True, "outliers": "keep", "preclip": None}
    config = short_rl_config(started, max_completion_length=48, health={"policy": "warn"}, **method, **common)
    drawn: list[list[list[float]]] = []
    sample, add_advantages = PolicyTrainer._sample_decoder, PolicyTrainer._add_advantages

    def sample_and_keep(self: Any, *args: Any, **kwargs: Any) -> Any:
        tokens, logprobs = sample(self, *args, **kwargs)
        assert logprobs is not None
        drawn.append(logprobs)
        return tokens, logprobs

    def add_and_compare(self: Any, padded: Any, rollouts: Any) -> Any:
        result = add_advantages(self, padded, rollouts)
        with torch.no_grad():
            whole_NT = self._logprobs(self.model, result, 8)[0]
        batch = result.to_trl()
        for turn, logprobs in enumerate(drawn[:2], 1):
            rows = [row for row in range(8) if (batch["turns"][row] == turn).any()]
            assert len(rows) == len(logprobs) > 0
            for row, own in zip(rows, logprobs, strict=True):
                torch.testing.assert_close(whole_NT[row, batch["turns"][row] == turn], torch.tensor(own), atol=1e-4, rtol=0)
        return result

    monkeypatch.setattr(PolicyTrainer, "_sample_decoder", sample_and_keep)
    monkeypatch.setattr(PolicyTrainer, "_add_advantages", add_and_compare)
    train_rl(pairs, config, tmp_path / "rl")
    samples = [json.loads(line) for line in (tmp_path / "rl" / "samples.jsonl").read_text().splitlines()]
    assert all(row["text"] in row["turns"] for row in samples)
    assert max(len(row["turns"]) for row in samples) >= 2
    first = json.loads((tmp_path / "rl" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["reward/format"] > 0.5
    assert {"verify/accuracy", "judging/advantage/max_abs", "verifying/advantage/max_abs"} <= set(first)
