"""The loop of a judge and its policy: what each round runs, who is accepted, and that it goes on wherever it was stopped."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.cli import main
from rewardlab.config import PolicyConfig, load_config, parse_overrides
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.errors import ConfigError, RewardlabError
from rewardlab.training import hardening
from rewardlab.training.harden_plan import HardenPlan
from rewardlab.training.hardening import harden_judge
from rewardlab.training.policy_answers import add_answers, latest_as_good, share_right
from tests.support.hardening import BAD_USAGE, PAIRS, Commands, parse_words, plan_in
from tests.support.shell import run_main

# Asked are the policy that it begins with, a checkpoint, the last one; then come the negatives.
ROUND = ["policy", "data", "data", "data", "data", "rl", "bench", "bench"]
ROUNDS = ROUND + ROUND


@pytest.fixture
def plan(tmp_path: Path) -> HardenPlan:
    return plan_in(tmp_path)


def test_two_rounds(plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first new judge is accepted, named in the file and pays the second round; the second is worse, and stays out."""
    commands = Commands()
    monkeypatch.setattr(hardening, "_command", commands)
    out = tmp_path / "out"
    last = harden_judge(plan, out)
    assert commands.stages == ROUNDS
    first = out / "round_0" / "judge" / "final"
    assert last.next_judge == str(first)
    assert last.next_policy == str(out / "round_1" / "policy" / "final")
    assert Path(plan.judge_file).read_text() == f"prob:{first.resolve()}\n"
    second = commands.lines[len(ROUND)]
    assert second[second.index("--judge") + 1] == f"prob:{first}"
    assert second[second.index("--model") + 1] == str(out / "round_0" / "policy" / "final")
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [row["accepted"] for row in rounds] == [True, False]
    assert rounds[0]["policy_means"] == {"reward": pytest.approx(0.6), "answers/right": 0.5, "answers/novelty": 0.1}
    assert [(row["before"]["right"], row["best"]["right"]) for row in rounds] == [(50, 60), (130, 70)]  # asked again
    assert list(rounds[0]["checkpoints"]) == ["checkpoint-4", "final"]
    taught = read_pairs(out / "round_1" / "data.parquet")
    assert [pair.pair_id for pair in taught[:4]] == ["round_0/0", "round_0/1", "round_1/0", "round_1/1"]
    assert len(taught) == 8  # as many labelled pairs of the set beside them, as the plan says
    page = (out / "index.html").read_text()
    assert "2 rounds so far" in page
    assert '<span>60.0 <span class="interval">[50.2, 69.1], 1 not known' in page  # 60 of 100
    assert "no, it is worse" in page
    limits = re.findall(r'<polyline class="limit" points="([\d.]+),[\d.]+ ([\d.]+),', page)
    assert limits == [("0", "30"), ("0", "46.67"), ("53.33", "100")]  # the key; steps 1 to 8 and 9 to 16 of 1 to 16
    assert '<path class="borders" d="M46.67 0v100"/>' in page


def test_the_policy_goes_on_from_its_best_checkpoint(plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may be the one that the round began with; the negatives are those of the last one."""
    commands = Commands(right=(50, 40, 50))
    monkeypatch.setattr(hardening, "_command", commands)
    harden_judge(plan, tmp_path / "out")
    models = [line[line.index("--model") + 1] for line in commands.lines if line[0] == "policy"]
    assert models == ["policy_0", "policy_0"]
    asked = [line[line.index("--policy") + 1] for line in commands.lines if line[0] == "data"]
    worse, last = (str(tmp_path / "out" / f"round_{n}" / "policy") for n in (0, 1))
    earlier = "checkpoint-4"
    first, second = (["policy_0", f"{place}/{earlier}", *[f"{place}/final"] * 2] for place in (worse, last))
    assert asked == first + second
    rounds = [json.loads(line) for line in (tmp_path / "out" / "rounds.jsonl").read_text().splitlines()]
    assert [row["next_policy"] for row in rounds] == ["policy_0", "./round_1/policy/final"]
    assert [(row["before"]["right"], row["best"]["right"]) for row in rounds] == [(50, 50), (100, 50)]
    assert "(the start&#39;s)" in (tmp_path / "out" / "index.html").read_text()
    better = Commands(right=(50, 40, 50))
    better.earlier = 30
    monkeypatch.setattr(hardening, "_command", better)
    harden_judge(plan, tmp_path / "other")
    models = [line[line.index("--model") + 1] for line in better.lines if line[0] == "policy"]
    assert models == ["policy_0", str(tmp_path / "other" / "round_0" / "policy" / "checkpoint-4")]
    rounds = [json.loads(line) for line in (tmp_path / "other" / "rounds.jsonl").read_text().splitlines()]
    assert [(row["before"]["right"], row["best"]["right"]) for row in rounds] == [(50, 70), (120, 80)]


def test_the_loop_goes_back_to_an_older_policy(plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that each lose less than a standard error do not add up: the best of all rounds is what counts."""
    commands = Commands(right=(70, 66, 58))
    monkeypatch.setattr(hardening, "_command", commands)
    harden_judge(plan, tmp_path / "out")
    rounds = [json.loads(line) for line in (tmp_path / "out" / "rounds.jsonl").read_text().splitlines()]
    # 66 is near enough to 70. Of the second round 58 is near 66 (124 of 200), and not near 70; 62 of 124 is neither.
    assert [row["next_policy"] for row in rounds] == ["./round_0/policy/final", "policy_0"]
    assert rounds[1]["before"]["right"] == 124
    assert rounds[1]["best"]["right"] == 70


def test_what_no_stage_would_take(plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before a policy trains: a key of SFT's that is none, the loop's own judge named again, fewer rounds than there
    are. The judge of the config's default may be one of the others."""
    commands = Commands()
    monkeypatch.setattr(hardening, "_command", commands)
    (tmp_path / "s.yaml").write_text("learning_rate: 1.0e-5\n")
    write_parquet([*PAIRS[:5], replace(PAIRS[5], preferred=None)], tmp_path / "open.parquet")
    write_parquet([PAIRS[0], PAIRS[0]], tmp_path / "twice.parquet")
    for changes, message in (
        ({"sft_config": str(tmp_path / "s.yaml"), "sft_keys": ("nonsense=1",)}, "nonsense"),
        ({"policy_keys": (f"other_judges=[prob:{plan.judge}]",)}, "twice"),
        ({"held_out": plan.data}, "holds the pairs of --data"),
        ({"held_out": str(tmp_path / "open.parquet")}, "1 of 6 pairs have no label"),
        ({"held_out": str(tmp_path / "twice.parquet")}, "share a pair_id"),
        ({"truth": "judge:prob:./NOT_THERE"}, "no such folder"),
        ({"truth": "judge:openai:x@http://127.0.0.1:9/v1"}, "127.0.0.1:9"),
    ):
        with pytest.raises(RewardlabError, match=message):
            harden_judge(replace(plan, **changes), tmp_path / "out")
    assert not commands.lines
    default = PolicyConfig.model_fields["judge"].default
    harden_judge(replace(plan, policy_keys=(f"other_judges=[{default}]",)), tmp_path / "out")
    with pytest.raises(ConfigError, match="more than 1 rounds already"):
        harden_judge(replace(plan, rounds=1), tmp_path / "out")


def test_an_older_policy_is_known_by_all_its_answers(plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was right in 70 of 100, and in 50 when it was asked again: 60 %, which the third round's 58 % is as good as."""

    class Lucky(Commands):
        def __call__(self, *words: Any, **how: Any) -> str:
            self.right["round_1"] = 50 if "before" in str(words[-1]) else 58
            return super().__call__(*words, **how)

    commands = Lucky(right=(50, 70, 58))
    commands.right["round_2"] = 58
    monkeypatch.setattr(hardening, "_command", commands)
    harden_judge(replace(plan, rounds=3), tmp_path / "out")
    rounds = [json.loads(line) for line in (tmp_path / "out" / "rounds.jsonl").read_text().splitlines()]
    assert rounds[1]["before"]["right"] == 120
    assert [row["next_policy"] for row in rounds] == [f"./round_{n}/policy/final" for n in range(3)]


def test_the_latest_as_good() -> None:
    """Of 100 answers a share near a half has a standard error of 5 points, a difference of two 7."""
    row = {"questions": 100, "wrong": 0, "unknown": 0}
    policies = {name: {**row, "right": right} for name, right in (("a", 40), ("b", 52), ("c", 46), ("d", 44))}
    assert latest_as_good(policies) == "c"
    assert latest_as_good({**policies, "e": {**row, "right": 60}}) == "e"
    assert latest_as_good({name: {**counts, "right": 0} for name, counts in policies.items()}) == "a"


def test_what_is_not_known_to_be_right_is_no_success(plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy whose answers no rule can read any more is not gone on with, nor one of which nothing is known."""
    lucky, usual = (
        {"questions": 100, "right": 1, "wrong": 99, "unknown": 0, "paid": n, "reward": r} for n, r in ((1, 1.0), (99, 0.2))
    )
    assert add_answers(lucky, usual) == {
        "questions": 200,
        "right": 2,
        "wrong": 198,
        "unknown": 0,
        "paid": 100,
        "reward": pytest.approx(0.208),
    }
    assert share_right({"questions": 1000, "right": 2, "wrong": 0, "unknown": 998}) == 0.002
    assert share_right({"questions": 0, "right": 0, "wrong": 0, "unknown": 0}) == 0.0
    commands = Commands(right=(0, 0, 0))
    monkeypatch.setattr(hardening, "_command", commands)
    harden_judge(plan, tmp_path / "out")
    assert [line[line.index("--model") + 1] for line in commands.lines if line[0] == "policy"] == ["policy_0"] * 2


@pytest.mark.parametrize(
    ("keys", "save_steps"),
    [
        (("max_steps=100",), 26),
        (("max_steps=3",), 2),
        (("epochs=200",), 10),
        (("epochs=200", "iterations=4"), 40),
        (("epochs=200", "anchor=group"), 20),
    ],
)
def test_checkpoints_are_whole(
    plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...], save_steps: int
) -> None:
    """At multiples of a batch of rollouts, two steps here; six questions in groups of four make 37.5 steps in 200 epochs, 150
    where each batch of rollouts is trained on four times, and questions without a label as many. The policy's config takes the
    keys, and answers are sampled as it does."""
    commands = Commands()
    monkeypatch.setattr(hardening, "_command", commands)
    Path(plan.policy_config).write_text("rollout_batch_size: 256\nbatch_size: 128\ngroup_size: 4\ntemperature: 0.7\n")
    if "anchor=group" in keys:
        unlabelled = [replace(pair, pair_id=f"unlabelled_{pair.pair_id}", preferred=None) for pair in PAIRS]
        write_parquet([*PAIRS, *unlabelled], Path(plan.data))
    harden_judge(replace(plan, rounds=1, policy_keys=keys), tmp_path / "out")
    words = commands.lines[0]
    given = [word for word in words if "=" in word]
    assert f"save_steps={save_steps}" in given
    assert load_config(PolicyConfig, Path(plan.policy_config), parse_overrides(given)).save_steps == save_steps
    asked = commands.lines[1]
    assert asked[asked.index("--temperature") + 1] == "0.7"


def test_any_size_of_batches(plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps to a batch of rollouts do not divide the config's own steps between checkpoints, which the loop replaces."""
    commands = Commands()
    monkeypatch.setattr(hardening, "_command", commands)
    Path(plan.policy_config).write_text("rollout_batch_size: 384\nbatch_size: 128\ngroup_size: 4\n")
    harden_judge(replace(plan, rounds=1, policy_keys=("max_steps=40",)), tmp_path / "out")
    assert "save_steps=12" in commands.lines[0]


@pytest.mark.parametrize("size", ["0", "many"])
def test_sizes_that_are_none(plan: HardenPlan, tmp_path: Path, size: str) -> None:
    """A sentence that names the key."""
    with pytest.raises(ConfigError, match="batch_size"):
        harden_judge(replace(plan, policy_keys=(f"batch_size={size}",)), tmp_path / "out")


def test_with_sft(plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge is taught its own right judgments of the round's pairs, and RL begins with what comes of it."""
    commands = Commands()
    monkeypatch.setattr(hardening, "_command", commands)
    out, config = tmp_path / "out", tmp_path / "s.yaml"
    config.write_text("learning_rate: 1.0e-5\n")
    harden_judge(replace(plan, rounds=1, sft_config=str(config), sft_keys=("max_steps=7",)), out)
    assert commands.stages == [*ROUND[:5], "self-distil", "sft", "rl", "bench", "bench"]
    distil, sft, rl = commands.lines[5:8]
    assert distil[distil.index("--data") + 1] == str(out / "round_0" / "data.parquet")
    assert distil[distil.index("--judge") + 1] == f"hf:{plan.judge}"
    assert "health.policy=warn" in sft
    assert (sft[sft.index("--model") + 1], sft[-1]) == (plan.judge, "max_steps=7")
    assert rl[rl.index("--model") + 1] == str(out / "round_0" / "sft" / "final")


def test_the_commands_take_the_lines(plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line of a loop with all its stages is parsed by the command that it starts, and a mistyped option is not."""
    commands = Commands()
    monkeypatch.setattr(hardening, "_command", commands)
    (tmp_path / "s.yaml").write_text("learning_rate: 1.0e-5\n")
    harden_judge(replace(plan, sft_config=str(tmp_path / "s.yaml")), tmp_path / "out")
    stages = {"policy", "data negatives", "self-distil", "sft", "rl", "bench run", "bench compare"}
    assert commands.names == stages
    for line in (*commands.lines, ["bench", "compare", "a", "b", "--json"]):
        assert parse_words(line) in stages
        option = next(word for word in line if word.startswith("--"))
        with pytest.raises(BAD_USAGE, match="No such option"):
            parse_words([f"{option}x" if word == option else word for word in line])


@pytest.mark.parametrize("killed_at", range(len(ROUNDS)))
def test_it_goes_on(plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int) -> None:
    """Killed before any command, the same call does what is left, and nothing twice."""
    killed, rest = Commands(killed_at=killed_at), Commands()
    monkeypatch.setattr(hardening, "_command", killed)
    with pytest.raises(RewardlabError, match="killed"):
        harden_judge(plan, tmp_path / "out")
    monkeypatch.setattr(hardening, "_command", rest)
    harden_judge(plan, tmp_path / "out")
    assert killed.stages + rest.stages == ROUNDS
    page, done = tmp_path / "out" / "index.html", Commands()
    written = page.read_text()
    page.unlink()  # as after a kill between the last round's record and its page
    monkeypatch.setattr(hardening, "_command", done)
    harden_judge(plan, tmp_path / "out")
    assert done.stages == []
    assert page.read_text() == written


def test_nothing_wrong_was_paid(plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No negative, no training: the judge stays."""
    commands = Commands(negatives=0)
    monkeypatch.setattr(hardening, "_command", commands)
    assert harden_judge(plan, tmp_path / "out").next_judge == plan.judge
    assert commands.stages == ROUND[:5] * 2
    assert "none was trained" in (tmp_path / "out" / "index.html").read_text()


def test_too_few_for_a_batch(plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an error: the loop works, and the policy is hardly ever paid for a wrong answer."""
    commands = Commands(negatives=1)
    monkeypatch.setattr(hardening, "_command", commands)
    plan = replace(plan, rounds=1, judge_keys=("rollout_batch_size=64", "batch_size=64", "micro_batch_size=64"))
    assert harden_judge(plan, tmp_path / "out").next_judge == plan.judge
    assert commands.stages == ROUND[:5]


def test_keys_of_the_user_count_before_the_loops(plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And may be others when the loop goes on; where it does, the file names the last judge, and no older one meanwhile."""
    commands = Commands()
    monkeypatch.setattr(hardening, "_command", commands)
    harden_judge(replace(plan, policy_keys=("health.policy=stop", "seed=9")), tmp_path / "out")
    policy = commands.lines[0]
    assert [word for word in policy if word.startswith(("health", "seed"))] == ["health.policy=stop", "seed=9"]
    assert "signs.truth=exact" in policy
    assert "health.policy=warn" in commands.lines[5]
    written: list[str] = []
    monkeypatch.setattr(hardening, "write_atomic", lambda path, text: written.append(text))
    harden_judge(plan, tmp_path / "out")
    assert written == []


def test_another_run_is_refused(plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other settings are another run; more rounds are not."""
    monkeypatch.setattr(hardening, "_command", Commands())
    harden_judge(replace(plan, rounds=1), tmp_path / "out")
    with pytest.raises(ConfigError, match=r"other settings \(truth\)"):
        harden_judge(replace(plan, truth="rules"), tmp_path / "out")
    more = Commands()
    monkeypatch.setattr(hardening, "_command", more)
    harden_judge(plan, tmp_path / "out")
    assert more.stages == ROUNDS[len(ROUND) :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"truth": "foo"}, "expected exact, rules or judge:SPEC"),
        ({"truth": "judge:nope"}, "nope"),
        ({"judge_config": "configs/sft/mine.yaml"}, "is a config of `rewardlab sft`"),
        ({"policy_keys": ("nonsense=1",)}, "nonsense"),
    ],
)
def test_a_plan_that_is_refused_leaves_nothing(
    plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    """The mended one begins in the same folder."""
    commands = Commands()
    monkeypatch.setattr(hardening, "_command", commands)
    with pytest.raises(ConfigError, match=message):
        harden_judge(replace(plan, **change), tmp_path / "out")
    assert commands.lines == []
    harden_judge(plan, tmp_path / "out")
    assert commands.stages == ROUNDS


@pytest.mark.parametrize("name", ["plan.json", "round_0/round.json", "start_policy/policy.json"])
def test_a_damaged_file(plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A sentence names it; where it is deleted the loop writes it again, and does nothing else anew."""
    monkeypatch.setattr(hardening, "_command", Commands())
    out = tmp_path / "out"
    harden_judge(replace(plan, rounds=1), out)
    whole = (out / name).read_text()
    (out / name).write_text("{")
    if "policy" in name:
        (out / "round_0" / "round.json").unlink()
    with pytest.raises(RewardlabError, match=f"{name}: damaged"):
        harden_judge(replace(plan, rounds=1), out)
    (out / name).unlink()
    again = Commands()
    monkeypatch.setattr(hardening, "_command", again)
    harden_judge(replace(plan, rounds=1), out)
    assert json.loads((out / name).read_text()) == json.loads(whole)
    assert again.stages == (["data"] if "policy" in name else [])  # all else is there


def test_a_small_mix(plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than one labelled pair for all negatives is one; a judge file that is a folder is said to be one."""
    monkeypatch.setattr(hardening, "_command", Commands(negatives=4))
    harden_judge(replace(plan, rounds=1, mix=0.02), tmp_path / "out")
    assert len(read_pairs(tmp_path / "out" / "round_0" / "data.parquet")) == 5
    with pytest.raises(ConfigError, match="is a folder"):
        harden_judge(replace(plan, judge_file=str(tmp_path)), tmp_path / "other")


@pytest.mark.parametrize(("low", "high", "says"), [(-0.05, 0.05, True), (-0.02, 0.02, False)])
def test_a_gate_that_sees_little(
    plan: HardenPlan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    low: float,
    high: float,
    says: bool,
) -> None:
    """A wide interval of the difference is said, in points; a narrow one is not."""

    class Wide(Commands):
        def __call__(self, *words: Any, is_read: bool = False, **how: Any) -> str:
            if is_read:
                run = {"accuracy": 0.9, "against_first": {"interval": (low, high)}, "failure": ""}
                return json.dumps({"runs": [run, run]})
            return super().__call__(*words, **how)

    monkeypatch.setattr(hardening, "_command", Wide())
    harden_judge(replace(plan, rounds=1), tmp_path / "out")
    assert ("too few pairs to see a loss of accuracy below some 5 points" in capsys.readouterr().err) is says


def test_the_judge_is_a_folder(tmp_path: Path) -> None:
    """Its neighbours take prob:FOLDER; here that is said, and nothing is written."""
    write_parquet(PAIRS, tmp_path / "pairs.parquet")
    words = ["harden", "--data", str(tmp_path / "pairs.parquet"), "--held-out", str(tmp_path / "pairs.parquet")]
    words += ["--policy", "p", "--judge", f"prob:{tmp_path}", "--truth", "exact", "--out", str(tmp_path / "out")]
    done = run_main(main, *words)
    assert (done.returncode, "expected the folder alone, without prob:" in done.stderr) == (2, True)
    assert not (tmp_path / "out").exists()
