"""The long study in small: real trainers on a small long demonstration, and what is refused."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from eval.long_demo.build import LONG, LongConfig
from eval.long_demo.judgments import Teacher, verdict_only
from eval.studies.long import ARMS, RATE, SETTINGS, LongContext, check_runs, step_labels, step_metrics
from eval.studies.long_report import COMPARED, draw, markdown, summarize
from eval.studies.method_trials import KEPT, MethodContext
from eval.studies.study import Trial, config_digest, open_study, plan, read_records, work
from rewardlab.config import SFTConfig
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.demo.build import TRUTHS, build_base, build_pairs
from rewardlab.demo.pairs import pairs_of_split, read_truths
from rewardlab.errors import ConfigError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.sft import train_sft
from rewardlab.types import Completion, FinishReason, Judgment, Order, Outcome, Vote
from rewardlab.verdicts.parse import verdict_of

SMALL = replace(
    SETTINGS,
    budgets=(200, 400),
    warmup_steps=1,
    rollout_batch_size=16,
    batch_size=8,
    max_tokens=16,
    group=4,
    num_validation=2,
    num_test=4,
    num_votes=5,
    value_steps=2,
    value_batch_size=8,
    verify_pairs=24,
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seed 0's demonstration, with a base model of two steps that learnt to state a verdict."""
    run = tmp_path_factory.mktemp("long") / "0"
    config = LongConfig(
        num_train=48, num_test=6, num_validation=4, hidden=32, layers=1, vocab_size=600, base_steps=2, naming_steps=1
    )
    build_pairs(run / "demo", config)
    base, truths = build_base(run / "demo", config), read_truths(run / "demo" / TRUTHS)
    pairs = [
        replace(pair, attempts="2" if n % 2 else "1", judgment=verdict_only(truth, pair.shown(pair.order)))
        for n, (pair, truth) in enumerate(zip(read_pairs(run / "demo" / "train.parquet"), truths, strict=False))
    ]
    write_parquet(pairs, run / "distill" / "distilled.parquet")
    steps = {"max_steps": 30, "batch_size": 8, "micro_batch_size": 8, "gradient_checkpointing": False, "save_steps": 1000}
    train_sft(pairs, SFTConfig(model=str(base), template="plain", learning_rate=1e-2, **steps), run / "sft")
    return run.parent


def test_a_study_in_small(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arms with other pairs, from the base model and with a critic meet both budgets; the report compares them by seed."""
    monkeypatch.setattr("eval.studies.long.TAUGHT_STEPS", 2)
    monkeypatch.setattr("eval.studies.long.CHECK_STEPS", 2)
    context = LongContext(world, SMALL, tmp_path)
    start = open_study(context, tmp_path)
    arms = ("stable_reinforce", "from_base", "hard_votes", "vc_ppo", "process_dense", "process_value", "short", "checks_true")
    for trial in plan(ARMS, arms, [0], [RATE]):
        work(context, trial, tmp_path)
    records = read_records(tmp_path)
    assert {record["arm"] for record in records} == set(arms)
    for record in records:
        assert [row["num_tokens"] >= row["budget"] for row in record["budgets"]] == [True, True]
        assert {"1", "3", "5"} == record["budgets"][1]["votes"].keys() == record["plain"]["votes"].keys()
        assert len(record["series"]["cpu_s"]) == len(record["series"]["tokens"]) > 0
    summary = summarize(records, start, 1)
    row = summary["table"]["400"]["vc_ppo"]
    assert row["gain"].keys() == row["against"].keys() == set(COMPARED)
    assert "PPO" in markdown(summary)
    draw(summary, tmp_path / "long.png")
    assert (tmp_path / "long.png").stat().st_size > 10_000
    judge = GenerativeJudge(
        HFSampler.load(tmp_path / "starts" / "0" / KEPT / f"stable_reinforce-{RATE:g}-0"), load_template("plain")
    )
    assert len(judge.compare(read_pairs(world / "0" / "demo" / "test.parquet")[0]).votes) == 2


def test_a_training_that_ends_early_is_no_result(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few pairs for a batch: refused, not recorded as a judge that is never right."""
    context = LongContext(world, SMALL, tmp_path)
    monkeypatch.setattr(MethodContext, "undecided", lambda self: self.pairs[:2])
    with pytest.raises(ConfigError, match="4 prompts do not fill a batch of 16 rollouts"):
        context.run(Trial(0, "hard_votes", RATE))


def test_another_judge_is_refused(world: Path, tmp_path: Path) -> None:
    """Results of two judges of one seed are never mixed in a folder."""
    run = Path(shutil.copytree(world, tmp_path / "run"))
    LongContext(run, SMALL, tmp_path / "out").world(0)
    weights = run / "0" / "sft" / "final" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ConfigError, match="results of another judge"):
        LongContext(run, SMALL, tmp_path / "out").world(0)


def test_every_arm_has_a_config_and_an_arm_to_compare_with() -> None:
    """Each arm differs from the one it is compared with, in its config, its start, its pairs, its critic or its reward."""
    from eval.studies.methods import config_of

    configs = {name: config_of(arm, Trial(0, name, RATE), SETTINGS, model="m", template="plain") for name, arm in ARMS.items()}
    for name, arm in ARMS.items():
        assert arm.against in ARMS
        if name != "stable_reinforce":
            other = ARMS[arm.against]
            parts = ("start", "on_votes", "fit_steps", "consistency", "process", "checks")
            differs = any(getattr(arm, part) != getattr(other, part) for part in parts)
            assert differs or config_digest(configs[name]) != config_digest(configs[arm.against]), name


def test_metrics_of_steps(tmp_path: Path) -> None:
    """By hand: two careful judgments with all lines true, one without lines, one that waits."""
    from rewardlab.demo.pairs import write_truths

    pairs, truths = pairs_of_split(2, "test", seed=0, difficulty=LONG)
    write_truths(truths, tmp_path / TRUTHS)
    careful = Teacher(shallow=(0.0,) * 3, half=(0.0,) * 3, misled=(0.0,) * 3, slip=0.0)
    judgments = []
    for pair, truth in zip(pairs, truths, strict=True):
        votes = []
        for order in Order:
            text = careful.judge(truth, pair.shown(order), random.Random(0))
            if pair is pairs[1]:
                text = (
                    verdict_only(truth, pair.shown(order)) if order is Order.GIVEN else text.replace("<think>", "<think>wait. ")
                )
            completion = Completion(text, FinishReason.STOP, num_tokens=len(text.split()))
            votes.append(Vote(order, verdict_of(completion, "think_answer"), completion))
        judgments.append(Judgment(pair.pair_id, tuple(votes), Outcome.TIE, None))
    metrics = step_metrics(tmp_path, judgments, pairs)
    assert (metrics["waits"], metrics["no_lines"], metrics["lines_true"], metrics["all_true"]) == (0.25, 0.25, 1.0, 0.75)
    assert metrics["votes"] == {"1": 1.0}


def test_labels_of_steps() -> None:
    """By hand: all steps of a careful judgment are good; from a changed word on, none is."""
    [pair], [truth] = pairs_of_split(1, "test", seed=0, difficulty=LONG)
    careful = Teacher(shallow=(0.0,) * 3, half=(0.0,) * 3, misled=(0.0,) * 3, slip=0.0)
    text = careful.judge(truth, pair.shown(Order.GIVEN), random.Random(0))
    for wrong, bad in ((None, len(text)), ("correct", text.index("correct"))):
        said = text if wrong is None else text.replace(wrong, "wrong", 1)
        vote = Vote(Order.GIVEN, verdict_of(done := Completion(said, FinishReason.STOP), "think_answer"), done)
        row = step_labels({truth.image_sha256: truth}, pair, vote)
        assert len(row["ends"]) == len(row["labels"]) >= 7
        assert row["labels"] == [1 if end <= bad else -1 for end in row["ends"]]


def test_a_seed_without_its_demonstration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0" / "sft").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"eval\.long_demo\.quickstart --out .*1 --seed 1"):
        check_runs(tmp_path, 2)


def test_claims_by_hand() -> None:
    """Effects of made-up rows: a difference, a ratio, the judge before RL, a missing value, one seed, none."""
    from eval.studies.claims import CLAIMS, Claim, claims_markdown, cpu_to_level, effect_of, summarize_claims

    rows = {
        "": {seed: {"accuracy": 0.5, "length": 100.0} for seed in range(3)},
        "a": {seed: {"accuracy": 0.6 + seed / 100, "length": 200.0, "vote_5": 0.5} for seed in range(3)},
        "b": {0: {"accuracy": 0.9, "length": None}},
        "c": {seed: {"accuracy": (0.6, 0.61, 0.9)[seed]} for seed in range(3)},  # two runs are those of "a"
    }
    effects = [
        effect_of(Claim("", "", *claim), rows)
        for claim in (
            ("a", ""),
            ("a", "", "accuracy", -1),
            ("a", "", "length"),
            ("a", "a", "vote_5", 1, "accuracy"),
            ("b", "a"),
            ("c", "a"),
        )
    ]
    assert [effect["finding"] for effect in effects] == ["holds", "reversed", "holds", "reversed", "one seed", "not tested"]
    assert effects[0]["effect"]["mean"] == pytest.approx(0.11)
    assert effects[0]["effect"]["interval"] == pytest.approx(
        [0.11 - 0.01 * 4.3027 / 3**0.5, 0.11 + 0.01 * 4.3027 / 3**0.5], 1e-4
    )
    assert effects[2]["effect"]["mean"] == pytest.approx(2.0)
    assert effect_of(Claim("", "", "b", "a", "length"), rows) == {
        "effect": None, "seeds": 1, "missing": 1, "finding": "no value"
    }  # fmt: skip
    tokens = [20_000 * (n + 1) for n in range(6)]
    series = {"tokens": tokens, "right": [0.7, None, 0.7, 0.7, 0.8, 0.8], "cpu_s": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}
    record = {"series": series, "start": None, "plain": {"accuracy": 0.71}}
    assert cpu_to_level(record) == 5.0  # 0.767 on average, after 0.733; the middle of 4, 5 and 6
    assert cpu_to_level({**record, "start": {"accuracy": 0.72}}) is None  # of the judge that the arm starts from
    text = claims_markdown(summarize_claims({"long": {"": rows[""], "stable_reinforce": rows["a"]}}, ["facts"]))
    assert (
        "| RL shortens judgments (by 15 %) | `stable_reinforce`, `before` | 2.00 [2.00, 2.00] times the tokens | 3 | reversed |"
        in text
    )
    assert "7 claims are measured (no value: 4, reversed: 2, holds: 1), 67 are not yet." in text
    assert "| DAPO | DAPO is better than GRPO | `dapo`, `grpo` |\n" in text.partition("Not measured yet:")[2]
    assert len({claim.text + claim.arm for claim in CLAIMS}) == len(CLAIMS)


def test_every_arm_has_a_claim() -> None:
    from eval.studies.claims import CLAIMS, LONG, POLICY, STABILITY
    from eval.studies.policy import ARMS as POLICIES
    from eval.studies.stability import ARMS as STABILITIES

    known = {LONG: ARMS.keys() | {""}, POLICY: POLICIES.keys() | {""}, STABILITY: STABILITIES.keys()}
    assert all({claim.arm, claim.against} <= known[claim.study] for claim in CLAIMS)
    assert {name for claim in CLAIMS if claim.study == LONG for name in (claim.arm, claim.against)} == known[LONG]
