"""Every config that ships has its machines in the table, and fits them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eval.doctor_table import CONFIGS, MACHINES, Machines, examine
from rewardlab.config import SCHEMAS, TrainConfig, load_config, stage_of
from rewardlab.health.plan import Plan, needs
from rewardlab.training.run.parallel import Launch, read_launch

DOES_NOT = ("policy/pairwise_rl", "8 x 80, zero3")  # as its own comment says


def test_no_config_is_left_out() -> None:
    shipped = {
        f"{folder}/{path.stem}" for folder in ("sft", "dpo", "rm", "rl", "policy") for path in (CONFIGS / folder).glob("*.yaml")
    }
    assert shipped == {name for name, _ in MACHINES}


@pytest.mark.parametrize(("name", "machines"), MACHINES, ids=[f"{name}, {machines}" for name, machines in MACHINES])
def test_a_config_fits_its_machines(name: str, machines: Machines) -> None:
    path: Path = CONFIGS / f"{name}.yaml"
    config = load_config(SCHEMAS[stage_of(path)], path, {"model": machines.model})
    assert isinstance(config, TrainConfig)
    launch = read_launch(CONFIGS / "accelerate" / f"{machines.launcher}.yaml")
    plan = Plan(Launch(machines.processes, launch.zero, launch.offload), machines.card)
    memory = next(needs(config, plan))
    assert memory.outcome == ("failed" if (name, str(machines)) == DOES_NOT else "ok"), memory.message


def test_a_key_is_changed_where_there_is_one() -> None:
    """With held-out pairs judged a row needs more; a config without the key has no row."""
    changes = ["evaluation.fraction=0.02"]
    name, machines = MACHINES[0]
    plain, changed = (examine(name, machines, CONFIGS, added) for added in ((), changes))
    assert plain is not None
    assert changed is not None
    assert changed.gib > plain.gib
    assert examine("policy/pairwise_rl", machines, CONFIGS, changes) is None


@pytest.mark.parametrize("name", ["rl/ppo", "rl/vapo", "sft/qwen2_5_vl_7b_qlora", "rl/grpo"])
def test_every_config_can_be_evaluated(name: str) -> None:
    """At once, or with as many judgments side by side as the doctor says."""
    machines = dict(MACHINES)[name]
    row = examine(name, machines, CONFIGS, ["evaluation.fraction=0.02"])
    assert row is not None
    if not row.fits:
        cure = re.search(r"planned: .*?(evaluation.batch_size=\d+)", row.text)
        assert cure, row.text
        cured = examine(name, machines, CONFIGS, ["evaluation.fraction=0.02", cure[1]])
        assert cured is not None
        assert cured.fits
