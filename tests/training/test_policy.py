"""Training a policy on a judge's word: what is asked, what is paid, and that it learns what the judge prefers."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.config import PolicyConfig, load_yaml
from rewardlab.data.pair_table import text_identity
from rewardlab.errors import ConfigError, DataError, EndpointError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.margins import ProbabilityJudge
from rewardlab.models.checkpoints import VERDICT_TEMPERATURE, add_to_card, write_card
from rewardlab.prompts import load_template
from rewardlab.rewards.pairwise import LeastReward, PairwiseReward
from rewardlab.rewards.policy_function import AnchoredReward, anchors_of, best_of
from rewardlab.rewards.policy_signs import share_in_both_orders
from rewardlab.rewards.rollout import Rollout, Scored, Trajectory
from rewardlab.rewards.verifiable.extraction import AnswerStatus, Contract
from rewardlab.rewards.verifiable.hybrid import all_verifiers
from rewardlab.rewards.verifiable.rules import RULES, Domain, Problem, Verification
from rewardlab.rewards.verified import VerifiedReward, by_rules, check_truths
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.training import policy as policy_module
from rewardlab.training.policy import train_policy
from rewardlab.types import (
    BOTH_ORDERS,
    Choice,
    Completion,
    FinishReason,
    Order,
    PreferencePair,
    Verdict,
    VerdictStatus,
    Vote,
)
from rewardlab.verdicts.votes import reduce_votes
from tests.support.preferring_judge import Prefers
from tests.support.rewards import values_of

END = 7


def question(name: str) -> PreferencePair:
    return PreferencePair(name, "q", ("good", "bad"), 0)


def grade(text: str) -> float:
    return {"good": 0.9, "fair": 0.5, "bad": 0.1}[text]


def test_paid_by_the_chance_of_beating_the_anchor() -> None:
    """Worked by hand; thinking is not judged, equal texts are even and an empty answer has lost, without asking."""
    judge = Prefers(grade)
    reward = PairwiseReward(judge)  # type: ignore[arg-type]
    answers = ["good", "<think>bad</think> good", "fair", "bad", ""]
    paid, metrics = reward([question(str(n)) for n in range(5)], answers, [("<think>x</think>fair",)] * 5, 0)
    assert paid == pytest.approx([0.7, 0.7, 0.5, 0.3, 0.0], abs=1e-3)
    assert judge.asked == [("good", "fair"), ("good", "fair"), ("bad", "fair")]
    assert values_of(metrics)["judge/unreadable_frac"] == 0
    centred, _ = PairwiseReward(judge, phi="centered")([question("x")], ["good"], [("fair",)], 0)  # type: ignore[arg-type]
    assert centred == pytest.approx([0.2], abs=1e-3)


def test_the_judge_has_other_luck_at_each_step() -> None:
    judge = Prefers(grade)
    reward = PairwiseReward(judge, seed=5)  # type: ignore[arg-type]
    for step in (3, 4):
        reward([question("x")], ["good"], [("fair",)], step)
    assert judge.seeds == [8, 9]


def test_no_vllm_in_every_process() -> None:
    """Each would take nine tenths of a card that is there to train; the sentence says what to do in its place."""
    for judge in ("vllm:runs/rl/final", "prob:vllm:runs/rl/final"):
        with pytest.raises(ConfigError, match=r"too little for training; serve it .*openai:runs/rl/final@http"):
            policy_module.open_reward(PolicyConfig(judge=judge), [])


def test_a_group_is_compared_with_itself(tmp_path: Path) -> None:
    """Each against the others, every distinct pair of texts asked once: good beats fair .7 and bad .9, so .8."""
    judge = Prefers(grade)
    reward = PairwiseReward(judge)  # type: ignore[arg-type]
    pairs = [question("a"), question("b")]
    function = AnchoredReward(reward, pairs, None, ends=frozenset({END}), samples=tmp_path / "samples.jsonl")
    paid = called(function, ["good", "fair", "bad", "good", "good"], [[1, END]] * 5, ["a", "a", "a", "b", "b"]).rewards
    assert paid == pytest.approx([0.8, 0.5, 0.2, 0.5, 0.5], abs=1e-3)
    assert sorted(judge.asked) == [("fair", "bad"), ("good", "bad"), ("good", "fair")]


def test_what_cannot_be_read_is_not_paid() -> None:
    """Neither a reward nor a punishment nor one half."""
    judge = Prefers(grade, unreadable=frozenset({"bad"}))
    paid, metrics = PairwiseReward(judge)([question("a"), question("b")], ["good", "bad"], [("fair",), ("fair",)], 0)  # type: ignore[arg-type]
    assert paid[0] == pytest.approx(0.7)
    assert paid[1] is None
    assert values_of(metrics)["judge/unreadable_frac"] == 0.5
    one_order = PairwiseReward(Prefers(grade, orders=(Order.GIVEN,)))  # type: ignore[arg-type]
    assert one_order([question("a")], ["good"], [("fair",)], 0)[0] == [None]  # the other order failed: what is left is biased
    nothing = PairwiseReward(judge)([question("a"), question("b")], ["good", "good"], [("",), ()], 0)  # type: ignore[arg-type]
    assert nothing[0] == [None, None]  # no anchor, no win


def called(function: AnchoredReward, texts: list[str], ids: list[list[int]], names: list[str]) -> Scored:
    columns = zip(texts, ids, names, strict=True)
    return function([Rollout({"pair_id": name}, [], Trajectory(tokens), text) for text, tokens, name in columns], 0)


@pytest.mark.parametrize(("phi", "least"), [("probability", 0.0), ("centered", -0.5), ("logit", -4.0)])
def test_a_cut_off_answer_pays_the_least(tmp_path: Path, phi: str, least: float) -> None:
    """Though the judge would like it; under ``centered``, 0 would be parity."""
    pairs = [question("a"), question("b")]
    reward = PairwiseReward(Prefers(grade), phi=phi)  # type: ignore[arg-type]
    anchors = {"a": "fair", "b": "fair"}
    function = AnchoredReward(reward, pairs, anchors, ends=frozenset({END}), samples=tmp_path / "samples.jsonl")
    scored = called(function, ["good", "good"], [[1, END], [1, 2]], ["a", "b"])
    paid = scored.rewards
    assert paid[1] == least
    assert paid[0] is not None
    assert paid[0] > least
    assert scored.correct == [1.0, 0.0]
    kept = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [row["anchor"] for row in kept] == ["fair", "fair"]


@pytest.mark.parametrize(("phi", "overpaid"), [("probability", 0.2), ("centered", 0.2), ("logit", None)])
def test_reward_beyond_rightness(tmp_path: Path, phi: str, overpaid: float | None) -> None:
    """Good beats fair by 0.7, and one of two answers is right: 0.7 - 0.5, whether a half is taken off all rewards or not. A
    logit is on no scale with rightness."""
    pairs = [question("a"), question("b")]
    reward = PairwiseReward(Prefers(grade), phi=phi)  # type: ignore[arg-type]
    function = AnchoredReward(
        reward,
        pairs,
        {"a": "fair", "b": "fair"},
        ends=frozenset({END}),
        samples=tmp_path / "samples.jsonl",
        rightness=lambda pair, text: pair.pair_id == "a",
    )
    metrics = values_of(called(function, ["good", "good"], [[1, END]] * 2, ["a", "b"]).metrics)
    assert metrics.get("answers/overpaid") == (None if overpaid is None else pytest.approx(overpaid, abs=1e-3))
    assert metrics["answers/right"] == 0.5


def config_for(checkpoint: Path, **changes: Any) -> PolicyConfig:
    values: dict[str, Any] = {
        "model": str(checkpoint),
        "advantage": "grpo",
        "group_size": 4,
        "kl_coef": 0.0,
        "learning_rate": 1e-2,
        "lr_scheduler": "constant",
        "rollout_batch_size": 16,
        "batch_size": 16,
        "micro_batch_size": 16,
        "max_steps": 12,
        "save_steps": 4,
        "max_completion_length": 6,
        "gradient_checkpointing": False,
    }
    return PolicyConfig(**(values | changes))


def test_anchors(demo_pairs: Any, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The preferred response; the first policy's own answers, made once; none for a group."""
    pairs, template = demo_pairs[0][:4], load_template("answer")
    known = anchors_of(pairs, config_for(tiny_checkpoint), template, tmp_path)
    assert known == {pair.pair_id: pair.responses[pair.preferred] for pair in pairs}
    start = config_for(tiny_checkpoint, anchor="start")
    made = anchors_of(pairs, start, template, tmp_path)
    assert set(made or {}) == {pair.pair_id for pair in pairs}
    assert set((made or {}).values()) == {None}  # an untrained policy finishes none of its answers: cut off, they are no anchor
    kept = tmp_path / "anchors.jsonl"
    kept.write_text(kept.read_text().replace("null", '"x"'))
    assert set((anchors_of(pairs, start, template, tmp_path) or {}).values()) == {"x"}  # made once
    assert anchors_of(pairs, config_for(tiny_checkpoint, anchor="group"), template, tmp_path) is None
    best = config_for(tiny_checkpoint, anchor="best", anchor_samples=2)
    none = PairwiseReward(Prefers(grade))  # type: ignore[arg-type]
    assert set((anchors_of(pairs, best, template, tmp_path / "best", none) or {}).values()) == {None}
    with pytest.raises(DataError, match="anchor"):
        anchors_of([replace(pairs[0], preferred=None)], config_for(tiny_checkpoint), template, tmp_path)


@pytest.mark.nightly
def test_pairwise_ppo(demo_pairs: Any, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped recipe, scaled: its critic is pre-trained, trained with the policy, and kept."""
    shipped = load_yaml(Path(__file__).parents[2] / "configs" / "policy" / "pairwise_rl.yaml")
    method = {name: value for name, value in shipped.items() if name not in ("model", "judge")}
    judge = PairwiseReward(Prefers(lambda text: min(len(text), 20) / 20, unreadable=frozenset({""})))  # type: ignore[arg-type]
    monkeypatch.setattr(policy_module, "open_reward", lambda config, pairs: judge)
    monkeypatch.setattr(AnchoredReward, "__call__", uncut(AnchoredReward.__call__))
    changes = {**method, "group_size": 1, "value_pretrain_steps": 2, "max_steps": 2, "save_steps": 2}
    changes["health"] = {"policy": "warn"}  # of a critic that was fitted in two steps
    final = train_policy(demo_pairs[0][:16], config_for(tiny_checkpoint, **changes), tmp_path / "run")
    assert (final / "model.safetensors").exists()
    assert (tmp_path / "run" / "value" / "critic" / "config.json").exists()
    assert (final / "critic" / "config.json").exists() or (tmp_path / "run" / "critic" / "config.json").exists()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any("value/explained_variance" in line for line in lines)


def test_a_run_is_of_its_judges_temperature(
    demo_pairs: Any, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A judge that was calibrated between two starts is another one, though its path is the same: the run is not resumed."""
    judge = tmp_path / "judge"
    shutil.copytree(tiny_checkpoint, judge)
    monkeypatch.setattr(AnchoredReward, "__call__", uncut(AnchoredReward.__call__))
    config = config_for(
        tiny_checkpoint, judge=f"prob:hf:{judge}", anchor="group", judge_max_tokens=4, max_steps=2, save_steps=2
    )

    write_card(judge, template=load_template("plain"), stage="sft", verdict_temperature={"tau": 2.0})
    shutil.rmtree(train_policy(demo_pairs[0][:4], config, tmp_path / "run"))  # as one that was killed before its end
    add_to_card(judge, verdict_temperature={"tau": 1.5})
    with pytest.raises(ConfigError, match=r"other settings or data \(data\)"):
        train_policy(demo_pairs[0][:4], config, tmp_path / "run")
    assert VERDICT_TEMPERATURE in (tmp_path / "run" / "run.json").read_text()


def test_the_best_of_several_is_the_anchor() -> None:
    """Knock-out under a judge, by score under a scalar head; what cannot be read takes nobody's place; none of none."""
    pairs = [question(name) for name in "abcd"]
    candidates = [["fair", "bad", "good"], ["bad"], [], ["fair", "odd"]]
    marks = {"good": 0.9, "fair": 0.5, "bad": 0.1, "odd": 1.0}
    judge = Prefers(marks.__getitem__, unreadable=frozenset({"odd"}))
    assert best_of(pairs, candidates, PairwiseReward(judge)) == ["good", "bad", None, "fair"]  # type: ignore[arg-type]
    assert len(judge.asked) == 3

    class Scalar:
        least = parity = None

        def __call__(self, questions: Any, responses: list[str], anchors: Any, step: int) -> tuple[list[float], Any]:
            return [marks[text] for text in responses], {}

    assert best_of(pairs, candidates, Scalar()) == ["good", "bad", None, "odd"]  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_a_policy_learns_what_its_judge_likes(
    demo_pairs: Any, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A judge that prefers short answers: an untrained policy, which never stops, comes to write shorter ones."""
    judge = PairwiseReward(Prefers(lambda text: -min(len(text), 20) / 20))  # type: ignore[arg-type]
    monkeypatch.setattr(policy_module, "open_reward", lambda config, pairs: judge)
    monkeypatch.setattr(AnchoredReward, "__call__", uncut(AnchoredReward.__call__))
    final = train_policy(
        demo_pairs[0][:16],
        # That all prompts come to have one answer is a sign, and here what is wanted.
        config_for(tiny_checkpoint, anchor="group", seed=seed, max_steps=30, learning_rate=2e-2, health={"policy": "warn"}),
        tmp_path / "run",
    )
    lines = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    lengths = [sum(len(row["text"]) for row in lines[n : n + 20]) / 20 for n in (0, len(lines) - 20)]
    assert lengths[1] < 0.8 * lengths[0]
    assert (final / "model.safetensors").exists()


def uncut(call: Callable[..., Any]) -> Callable[..., Any]:
    """An untrained policy ends none of its answers; here they count as ended."""

    def ended(self: Any, rollouts: Any, step: int) -> Any:
        end = next(iter(self._ends))
        return call(self, [replace(r, trajectory=Trajectory([*r.token_ids, end])) for r in rollouts], step)

    return ended


def test_a_rule_pays_where_it_can_and_the_judge_where_not() -> None:
    """A number by its rule, format or not; another category by the judge; without a judge that is refused before training."""
    number = PreferencePair("n", "how many?", ("7", "8"), 0, category="number")
    verified = VerifiedReward(RULES, PairwiseReward(Prefers(grade)), contract=Contract.BOXED, thinking=True)  # type: ignore[arg-type]
    said = [
        "<think>x</think>\\boxed{7}",
        "<think>x</think>\\boxed{8}",
        "\\boxed{7}",
        "<think>x</think>between 0 and 10",
        "good",
    ]
    paid, metrics = verified([number] * 4 + [question("q")], said, [("7",)] * 4 + [("fair",)], 0)
    assert paid == [1.0, 0.0, 0.0, 0.0, pytest.approx(0.7, abs=1e-3)]
    assert values_of(metrics)["verifier/share"] == 0.8
    assert (
        sum(value for name, value in values_of(metrics).items() if name.startswith("verifier/") and name != "verifier/share")
        == 1
    )
    assert verified.check([number, question("q")]) == {"rule": 1, "judge": 1}
    with pytest.raises(DataError, match="1 of 2 pairs"):
        VerifiedReward(RULES, None, contract=Contract.BOXED, thinking=True).check([number, question("q")])
    with pytest.raises(ValueError, match="phi probability"):
        config_for(Path("x"), verified=True, phi="logit")


def test_pairs_with_a_truth_of_their_own() -> None:
    """Tests of a program and constraints, with a label or without; a truth that cannot be read, and a label against its own
    truth, are refused before training."""
    code = PreferencePair(
        "c", "Add one.", ("```\nprint(int(input()) + 1)\n```", "no"), 0, category="code", truth='[["4", "5"]]'
    )
    short = PreferencePair("s", "Say hello.", ("Hello", "Hi"), None, category="constraints", truth='{"words": 1}')
    verified = VerifiedReward(all_verifiers(), None, contract=Contract.BOXED, thinking=False)
    assert verified.check([code, short]) == {"rule": 2, "judge": 0}
    said = ["```\nprint(5)\n```", "```\nprint(6)\n```", "print(5)", "Hello", "Hello you", ""]
    paid, metrics = verified([code] * 3 + [short] * 3, said, [()] * 6, 0)
    assert paid == [1, 0, 0, 1, 0, 0]
    counts = {name: value for name, value in values_of(metrics).items() if value}
    assert counts["verifier/missing"] == pytest.approx(1 / 6)
    assert counts["verifier/ok"] == pytest.approx(4 / 6)
    assert by_rules(all_verifiers(), Contract.BOXED)(short, "Hello") is True
    for pair, sentence in [
        (replace(code, truth="def"), "cannot read the truth 'def': tests are no JSON"),
        (replace(short, truth='{"word": 1}'), "cannot read the truth .*: constraint 'word'"),
        (replace(code, preferred=1), "its preferred response earns 0 by its own truth"),
        (replace(code, category="coding"), "no rule reads those of category 'coding'"),
        (replace(code, truth=" "), "1 of 1 pairs can be checked by no rule; .* a `truth` if it is code or constraints"),
    ]:
        with pytest.raises(DataError, match=sentence):
            verified.check([pair])


def test_a_truth_beside_a_plain_answer() -> None:
    """The preferred response need not mark its answer, and may earn less than 1 by its truth; without a truth of its own a
    program is for the judge."""
    verified = VerifiedReward(all_verifiers(), PairwiseReward(Prefers(grade)), contract=Contract.BOXED, thinking=True)  # type: ignore[arg-type]
    number = PreferencePair("n", "how many?", ("7", "8"), 0, category="number", truth="7")
    box = PreferencePair("b", "where?", ("\\boxed{[0,0,10,9]}", "there"), 0, category="grounding", truth="[0,0,10,10]")
    program = PreferencePair("c", "Add one.", ("```\nx\n```", "no"), 0, category="code")
    assert verified.check([number, box, program]) == {"rule": 2, "judge": 1}
    assert text_identity(number) != text_identity(replace(number, truth="8"))  # a run with other truths is another run
    assert text_identity(replace(number, truth="", category="a")) == text_identity(replace(number, truth="", category="b"))


def test_rules_pay_side_by_side() -> None:
    """Two calls of a rule meet: one after the other, neither would return."""
    meet = threading.Barrier(2, timeout=20)

    def slow(problem: Problem, answer: str) -> Verification:
        meet.wait()
        return Verification(1.0, AnswerStatus.OK, answer)

    number = PreferencePair("n", "how many?", ("7", "8"), 0, category="count")
    reward = VerifiedReward({Domain.COUNT: slow}, None, contract=Contract.BOXED, thinking=False)
    assert reward([number] * 2, ["\\boxed{7}"] * 2, [()] * 2, 0)[0] == [1, 1]
    assert reward.check([number, replace(number, pair_id="m")]) == {"rule": 2, "judge": 0}


def test_truths_without_a_rule_are_for_rewards_alone() -> None:
    """A metric does not know such answers; a reward would ignore the truth, so it refuses the pair."""
    poem = PreferencePair("p", "Rhyme.", ("a", "b"), 0, category="poem", truth="a rhyme")
    assert check_truths([poem], RULES, Contract.BOXED, own_only=True) == 0
    with pytest.raises(DataError, match="no rule reads those of category 'poem'"):
        check_truths([poem], RULES, Contract.BOXED)


def test_other_categories_are_another_run() -> None:
    number = PreferencePair("n", "how many?", ("7", "8"), 0, category="count")
    assert policy_module._rules_of([number]) == policy_module._rules_of([replace(number, question="q")])
    assert policy_module._rules_of([number]) != policy_module._rules_of([replace(number, category="number")])


@pytest.mark.nightly
def test_endless_programs_do_not_hold_the_others() -> None:
    code = PreferencePair(
        "c", "Add one.", ("```\nprint(int(input()) + 1)\n```", "no"), 0, category="code", truth='[["4", "5"]]'
    )
    reward = VerifiedReward(all_verifiers(), None, contract=Contract.BOXED, thinking=False)
    replies = [code.responses[0], *["```\nwhile True: pass\n```"] * 3]
    assert reward([code] * 4, replies, [()] * 4, 0)[0] == [1, 0, 0, 0]


def test_rules_alone(tmp_path: Path) -> None:
    """A config without a judge: its reward, its anchors; nothing would pay without rules either."""
    short = PreferencePair("s", "Say hello.", ("Hello", "Hi"), None, category="constraints", truth='{"words": 1}')
    config = config_for(tmp_path, judge=None, verified=True, thinking=False)
    reward = policy_module.open_reward(config, [short])
    assert reward([short], ["Hello"], [()], 0)[0] == [1.0]
    assert policy_module.anchors_of([short], config, load_template("answer"), tmp_path, reward) == {"s": None}
    with pytest.raises(ValueError, match="nothing pays"):
        config_for(tmp_path, judge=None)
    with pytest.raises(DataError, match="1 of 1 pairs can be checked by no rule"):
        policy_module.open_reward(config, [question("q")])
    with pytest.raises(DataError, match="does not say which response is preferred"):
        policy_module.anchors_of([short], config_for(tmp_path), load_template("answer"), tmp_path)


def test_a_rule_has_a_kl_coefficient_of_its_own() -> None:
    """Through the rows of a run: 0 where a rule pays, the method's where the judge does; without the key all have one."""
    number = PreferencePair("n", "how many?", ("7", "8"), 0, category="number")
    unlabelled = replace(number, pair_id="u", preferred=None)  # of the same category, but the rule has no truth for it
    pairs = [number, question("q"), unlabelled]
    verified = VerifiedReward(RULES, PairwiseReward(Prefers(grade)), contract=Contract.BOXED, thinking=True)  # type: ignore[arg-type]
    rows = policy_module.policy_rows(pairs, load_template("answer"))

    def coefficients(config: PolicyConfig, reward: Any = verified) -> list[float] | None:
        kl_coef_of = policy_module.kl_coef_by_route(config, reward, pairs)
        return None if kl_coef_of is None else [kl_coef_of(row) for row in rows.read([{"row": n} for n in range(3)])]

    by_route = config_for(Path("x"), verified=True, kl="k2_loss", kl_coef=1e-5, verified_kl_coef=0.0)
    assert coefficients(by_route) == [0.0, 1e-5, 1e-5]
    assert coefficients(config_for(Path("x"), verified=True, kl="k2_loss", kl_coef=1e-5)) is None


def test_the_truth_of_a_worked_response() -> None:
    """What stands in its final place, not all of it; a truth that its own rule cannot read is refused before training."""
    worked = PreferencePair("w", "how many?", ("<think>3 + 4</think>So there are \\boxed{7}.", "8"), 0, category="number")
    verified = VerifiedReward(RULES, None, contract=Contract.BOXED, thinking=True)
    assert verified.check([worked])["rule"] == 1
    assert verified([worked], ["<think>x</think>\\boxed{7}"], [("7",)], 0)[0] == [1.0]
    prose = replace(worked, responses=("There are several of them.", "8"))
    with pytest.raises(DataError, match=r"cannot read the truth 'There are several.*is not a number; mark the .* as .boxed"):
        verified.check([prose])


def test_a_judge_that_is_gone_ends_the_run() -> None:
    """Failed requests in a row, over calls; an answer between them begins the count anew."""
    is_down = True

    def answer(prompt: Any, draw: int) -> str | Completion:
        return Completion("", FinishReason.ERROR, error="503 away") if is_down else "<think>x</think><answer>1</answer>"

    reward = PairwiseReward(GenerativeJudge(ScriptedSampler(answer), load_template("plain")))

    def ask(number: int) -> list[float | None]:
        return reward([question("a")] * number, [f"new {n}" for n in range(number)], [("fair",)] * number, 0)[0]

    assert ask(9) == [None] * 9  # in both orders: 18 requests
    is_down = False
    assert None not in ask(1)
    is_down = True
    assert ask(9) == [None] * 9
    with pytest.raises(EndpointError, match="20 requests in a row failed, the last with '503 away'"):
        ask(1)


@pytest.mark.parametrize(
    ("given", "swapped", "share"),
    [("1", "2", 1.0), ("tie", "2", 0.75), ("tie", "1", 0.25), ("tie", "tie", 0.5), ("1", "", None)],
)
def test_a_tie_is_half_a_win(given: str, swapped: str, share: float | None) -> None:
    """Of its own order alone: the other's position bias is not paid in full."""
    verdicts = {"1": Verdict(Choice.FIRST, VerdictStatus.OK), "2": Verdict(Choice.SECOND, VerdictStatus.OK)}
    verdicts |= {"tie": Verdict(None, VerdictStatus.TIE), "": Verdict(None, VerdictStatus.NO_VERDICT)}
    stop = Completion("", FinishReason.STOP)
    votes = [Vote(order, verdicts[word], stop) for order, word in zip(BOTH_ORDERS, (given, swapped), strict=True)]
    assert share_in_both_orders(reduce_votes("a", votes)) == share


def test_several_judges_pay_the_least() -> None:
    """What one of them cannot compare pays nothing; the first one's metrics stand, and how far they are apart."""
    scores = ({"good": 0.9, "new": 0.9}, {"good": 0.8}, {"good": 0.8, "new": 0.8, "odd": 0.8})
    judges = [Prefers(lambda text, of=of: of.get(text, 0.5)) for of in scores]  # type: ignore[misc]
    judges[2] = Prefers(lambda text: scores[2].get(text, 0.5), unreadable=frozenset({"odd"}))
    rewards = [PairwiseReward(judge) for judge in judges]  # type: ignore[arg-type]
    questions = [question(name) for name in "abc"]
    paid, metrics = LeastReward(rewards)(questions, ["good", "new", "odd"], [("fair",)] * 3, 0)
    assert paid[:2] == pytest.approx([0.65, 0.5], abs=1e-3)  # .7, .65, .65 and .7, .5, .65
    assert paid[2] is None
    assert metrics["judge/unreadable_frac"].value == pytest.approx(1 / 9)  # of three comparisons by each of three
    assert metrics["judge/spread"].value == pytest.approx((0.05 + 0.2) / 2, abs=1e-3)
    assert "reward/win_rate" not in metrics  # the first one's alone
    with pytest.raises(ValueError, match="on one scale"):
        LeastReward([rewards[0], PairwiseReward(judges[1], phi="logit")])  # type: ignore[arg-type]


def test_several_judges_are_opened(finished_run: Path, tmp_path: Path, demo_pairs: Any) -> None:
    """Each at its temperature. A policy trains under two checkpoints, and logs how far they are apart."""
    shutil.copytree(finished_run / "rl" / "final", tmp_path / "other")
    judges = {"judge": f"prob:{finished_run / 'rl' / 'final'}", "other_judges": [f"prob@2:{tmp_path / 'other'}"]}
    base = finished_run / "rl" / "final"
    config = config_for(base, **judges, judge_max_tokens=8, max_steps=1, max_completion_length=8, anchor="preferred")
    reward = policy_module.open_reward(config, demo_pairs[0][:8])
    assert isinstance(reward, LeastReward)
    again = config.model_copy(update={"other_judges": [f"prob:{finished_run / 'rl' / '..' / 'rl' / 'final'}"]})
    with pytest.raises(ConfigError, match="twice"):
        policy_module.open_reward(again, demo_pairs[0][:8])
    first, second = (each.judge for each in reward.rewards)
    assert isinstance(first, ProbabilityJudge)
    assert isinstance(second, ProbabilityJudge)
    assert (first.verdict_temperature, second.verdict_temperature) == (1.0, 2.0)
    pairs = demo_pairs[0][:2]
    worse, better = [pair.responses[1] for pair in pairs], [(pair.responses[0],) for pair in pairs]
    paid, metrics = reward(pairs, worse, better, 0)
    alone = [each(pairs, worse, better, 0)[0] for each in reward.rewards]
    assert alone[0] != alone[1]
    assert paid == [min(scores) for scores in zip(*alone, strict=True)]  # type: ignore[type-var]
    assert metrics["judge/spread"].value > 0
    train_policy(demo_pairs[0][:16], config, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert "judge/spread" in rows[0]


@pytest.mark.parametrize(
    ("judges", "message"),
    [
        ({"judge": "prob:a", "other_judges": ["rm:b"]}, "rm:b is a scalar head"),
        ({"judge": "prob:a", "other_judges": ["prob:b", "prob:a"]}, "name a judge twice"),
    ],
)
def test_judges_that_cannot_be_compared(judges: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PolicyConfig(**judges)
