"""What a loop is given: paths that hold anywhere, keys that its stages take, a launcher; and what its stages tell it."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.config import PolicyConfig, RLConfig, SFTConfig, load_config, parse_overrides
from rewardlab.errors import CheckpointError, ConfigError, RewardlabError
from rewardlab.training import hardening
from rewardlab.training.harden_plan import HardenPlan, check_plan, keys_of_policy, keys_of_rl, keys_of_sft, with_absolute_paths
from rewardlab.training.harden_record import read_round
from rewardlab.training.hardening import harden_judge
from tests.support.hardening import Commands, plan_in

LAUNCHER = "python -m torch.distributed.run --nproc_per_node 2"


@pytest.fixture
def plan(tmp_path: Path) -> HardenPlan:
    return plan_in(tmp_path)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = Commands()
    monkeypatch.setattr(hardening, "_command", made)
    return made


def value_of(line: list[str], option: str) -> str:
    return line[line.index(option) + 1]


def test_it_goes_on_from_another_folder(
    plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: Commands
) -> None:
    """Begun with paths relative to one folder, gone on with from another by absolute ones: the same plan, and what a stage and
    a server are given is there."""
    names = ("data", "held_out", "policy_config", "judge_config", "judge", "policy", "judge_file")
    (tmp_path / "policy_0").mkdir()
    plan = replace(plan, policy=str(tmp_path / "policy_0"), truth=f"judge:prob:{tmp_path / 'judge_0'}")
    (tmp_path / "place").mkdir()
    monkeypatch.chdir(tmp_path / "place")
    relative = {name: os.path.relpath(getattr(plan, name)) for name in names}
    first = replace(plan, **relative, truth="judge:prob:../judge_0", rounds=1)
    harden_judge(first, Path("out"))
    monkeypatch.chdir(tmp_path)
    earlier, commands.lines = commands.lines, []
    last = harden_judge(plan, Path("place/out"))
    assert commands.stages[0] == "policy"
    judge = tmp_path / "place" / "out" / "round_0" / "judge" / "final"
    assert value_of(commands.lines[0], "--judge") == f"prob:{judge}"
    for line in [*earlier, *commands.lines]:
        places = [value_of(line, option) for option in ("--data", "--model", "--policy", "--out") if option in line]
        assert places == [place for place in places if Path(place).is_absolute() and Path(place).exists()]
    assert Path(plan.judge_file).read_text() == f"prob:{judge}\n"
    assert Path(last.next_policy).is_dir()


def test_the_folder_may_be_moved(plan: HardenPlan, tmp_path: Path, commands: Commands) -> None:
    """Rounds are where the folder is; the file of a server names the judge where it is now; an interrupted stage, and an
    adapter, know the models of the folder by their new names, and other paths as they are."""
    plan = replace(plan, rounds=1)
    out, now = (tmp_path / "a" / "out", tmp_path / "b" / "ünder")
    harden_judge(plan, out)
    rest = [f"{tmp_path}/else{out}/x", f"{out}_2/x"]
    (out / "round_1" / "policy").mkdir(parents=True)
    for text, name in ((f"prob:{out}/round_0/judge/final", "run.json"), (f"{out}/round_0/base", "adapter_config.json")):
        (out / "round_1" / "policy" / name).write_text(json.dumps({"config": {"judge": text, "others": rest}}))
    log = out / "round_1" / "answers.jsonl"
    log.write_text(json.dumps({"identity": {"policy": f"hf:{out}/round_0"}}) + "\n" + json.dumps({"answer": f"{out}/x"}) + "\n")
    page = (out / "index.html").read_text()
    now.parent.mkdir()
    shutil.move(out, now)
    commands.lines.clear()
    last = harden_judge(plan, now)
    assert commands.lines == []
    assert last.next_judge == str(now / "round_0" / "judge" / "final")
    assert Path(plan.judge_file).read_text() == f"prob:{last.next_judge}\n"
    for text, name in ((f"prob:{now}/round_0/judge/final", "run.json"), (f"{now}/round_0/base", "adapter_config.json")):
        assert json.loads((now / "round_1" / "policy" / name).read_text()) == {"config": {"judge": text, "others": rest}}
    first, second = map(json.loads, (now / "round_1" / "answers.jsonl").read_text().splitlines())
    assert (first["identity"]["policy"], second["answer"]) == (f"hf:{now}/round_0", f"{out}/x")
    assert str(tmp_path / "a") not in page  # which is true anywhere
    shutil.move(now, out)  # and back: an escape in JSON is a path as well
    harden_judge(plan, out)
    assert (
        json.loads((out / "round_1" / "answers.jsonl").read_text().splitlines()[0])["identity"]["policy"] == f"hf:{out}/round_0"
    )
    assert json.loads((out / "round_1" / "policy" / "run.json").read_text())["config"]["judge"].startswith(
        f"prob:{out}/round_0"
    )


def test_no_server_follows_what_is_not_there(plan: HardenPlan, tmp_path: Path, commands: Commands) -> None:
    """The judge of the last round was deleted: the file stays, and a sentence names it."""
    out, file = tmp_path / "out", Path(plan.judge_file)
    harden_judge(replace(plan, rounds=1), out)
    named = file.read_text()
    (out / "round_0" / "judge").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="round_0/judge/final is no folder here; restore it"):
        harden_judge(plan, out)
    assert file.read_text() == named


def test_a_link_keeps_its_name(plan: HardenPlan, tmp_path: Path) -> None:
    """A cache has a set by a link whose name says what kind it is; what the link leads to has no such name. A hub id stays."""
    (tmp_path / "pairs.parquet").rename(tmp_path / "0a1b")
    (tmp_path / "pairs.parquet").symlink_to("0a1b")
    made = with_absolute_paths(replace(plan, sft_config="", judge_file="", truth="judge:openai:x@http://127.0.0.1:9/v1"))
    assert (made.data, made.policy, made.sft_config, made.judge_file) == (plan.data, "policy_0", "", "")
    assert made.truth == "judge:openai:x@http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("keys", "policy", "truth", "patience"),
    [
        ((), "warn", "exact", 5),
        (("health={policy: stop}", "signs={truth: none}"), "stop", "none", 5),
        (("health.policy=stop", "signs.truth=none"), "stop", "none", 5),
        (("health={patience: 7}", "signs={canaries: 3}"), "warn", "exact", 7),
    ],
)
def test_keys_in_either_form(plan: HardenPlan, keys: tuple[str, ...], policy: str, truth: str, patience: int) -> None:
    """What the user sets as a mapping the loop leaves alone, and sets what the mapping lacks; each stage takes the keys."""
    health = tuple(key for key in keys if key.startswith("health"))
    plan = replace(plan, policy_keys=keys, judge_keys=health, sft_keys=health)
    made = load_config(PolicyConfig, Path(plan.policy_config), parse_overrides(keys_of_policy(plan, 0)))
    assert (made.health.policy, made.signs.truth, made.health.patience) == (policy, truth, patience)
    for config in (
        load_config(RLConfig, Path(plan.judge_config), parse_overrides(keys_of_rl(plan, 0))),
        load_config(SFTConfig, None, parse_overrides(keys_of_sft(plan, 0))),
    ):
        assert (config.health.policy, config.health.patience, config.seed) == (policy, patience, 0)
    check_plan(plan)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"judge_keys": ("health={policy: stop}", "health.policy=stop")}, "health.policy is set twice"),
        ({"judge_keys": ("seed=1.5",)}, "seed"),
        ({"judge_keys": ("model=x",)}, "model is set twice"),
        ({"policy_keys": ("model=x",)}, "model is set twice"),
        ({"max_tokens": 0}, "max_completion_length"),
        ({"launcher": "accelerate 'launch"}, "--launcher accelerate 'launch: cannot be read"),
        ({"launcher": "no_such_program --num_processes 2"}, "there is no program no_such_program"),
        ({"sft_config": "s.yaml"}, "so give both the same"),
    ],
)
def test_what_a_later_stage_would_refuse(
    plan: HardenPlan, tmp_path: Path, commands: Commands, changes: dict[str, Any], message: str
) -> None:
    """Refused before a policy trains, with the keys that the stage would get."""
    (tmp_path / "s.yaml").write_text("template: plain\n")
    if "sft_config" in changes:
        changes = {"sft_config": str(tmp_path / "s.yaml")}
    with pytest.raises(ConfigError, match=message):
        harden_judge(replace(plan, **changes), tmp_path / "out")
    assert not commands.lines
    assert not (tmp_path / "out" / "plan.json").exists()


def test_a_judge_of_another_template(plan: HardenPlan, tmp_path: Path, commands: Commands) -> None:
    """RL would refuse it after the policy's training."""
    (tmp_path / "judge_0" / "rewardlab.json").write_text(json.dumps({"template": "plain", "template_hash": "0"}))
    with pytest.raises(CheckpointError, match="was trained on template 'plain'"):
        harden_judge(plan, tmp_path / "out")
    assert not commands.lines


def test_a_launcher_starts_what_trains(plan: HardenPlan, tmp_path: Path, commands: Commands) -> None:
    """And nothing else. It is no part of the plan: other cards may go on."""
    (tmp_path / "s.yaml").write_text("learning_rate: 1.0e-5\n")
    plan = replace(plan, sft_config=str(tmp_path / "s.yaml"))
    harden_judge(replace(plan, rounds=1, launcher=LAUNCHER), tmp_path / "out")
    for stage, launcher in zip(commands.stages, commands.launchers, strict=True):
        assert launcher == (LAUNCHER.split() if stage in ("policy", "sft", "rl") else [])
    number = len(commands.lines)
    harden_judge(plan, tmp_path / "out")
    assert len(commands.lines) == 2 * number
    assert not any(commands.launchers[number:])


def test_the_loop_is_one_process(plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: Commands) -> None:
    """Under a launcher it says where that belongs, and leaves nothing."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"has started 2 of it; .*--launcher 'accelerate launch --num_processes 2'"):
        harden_judge(plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_whose_policy_a_round_hands_on(plan: HardenPlan, tmp_path: Path, commands: Commands) -> None:
    """A trained policy that is right as often as the one that the round began with is not that one."""
    commands.right.update(start_policy=50, round_0=50)
    harden_judge(replace(plan, rounds=1), tmp_path / "out")
    result = read_round(tmp_path / "out", 0)
    assert result is not None
    assert result.best == result.before
    assert result.next_policy == result.policy
    assert "(the start" not in (tmp_path / "out" / "index.html").read_text()


def test_a_reward_that_is_no_number(plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged as a text; the mean is of the last five that are numbers."""

    class Logs(Commands):
        def __call__(self, *words: Any, **how: Any) -> str:
            done = super().__call__(*words, **how)
            if words[0] == "policy":
                with (Path(words[words.index("--out") + 1]) / "metrics.jsonl").open("a") as file:
                    file.write(json.dumps({"step": 9, "reward": "nan", "answers/right": 1}) + "\n")
            return done

    monkeypatch.setattr(hardening, "_command", Logs())
    means = harden_judge(replace(plan, rounds=1), tmp_path / "out").policy_means
    assert means["reward"] == pytest.approx((0.4 + 0.5 + 0.6 + 0.7 + 0.8) / 5)
    assert means["answers/right"] == pytest.approx((4 * 0.5 + 1) / 5)


@pytest.mark.parametrize("failed", [0, 1])
def test_a_benchmark_that_failed(plan: HardenPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: int) -> None:
    """Says nothing about either judge: the loop ends with its words and its folder, and goes on once that is deleted."""

    class Fails(Commands):
        def __call__(self, *words: Any, is_read: bool = False, **how: Any) -> str:
            if is_read:
                runs = [{"accuracy": 0.9, "against_first": None, "failure": ""} for _ in range(2)]
                runs[failed] |= {"accuracy": None, "failure": "no vote is valid"}
                return json.dumps({"runs": runs})
            return super().__call__(*words, **how)

    monkeypatch.setattr(hardening, "_command", Fails())
    out, name = tmp_path / "out", ("bench_before", "bench_after")[failed]
    with pytest.raises(RewardlabError, match=rf"{name}: the benchmark failed \(no vote is valid\); delete it"):
        harden_judge(replace(plan, rounds=1), out)
    assert not (out / "round_0" / "round.json").exists()
    shutil.rmtree(out / "round_0" / name)
    rest = Commands()
    monkeypatch.setattr(hardening, "_command", rest)
    assert harden_judge(replace(plan, rounds=1), out).accepted
    assert rest.stages == ["bench"]
