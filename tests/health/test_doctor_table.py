"""Every config that ships has its machines in the table, and fits them."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.doctor_table import CONFIGS, MACHINES, Machines
from rewardlab.config import SCHEMAS, TrainConfig, load_config, stage_of
from rewardlab.health.plan import Plan, needs
from rewardlab.training.run.launcher import Launch, read_launch

DOES_NOT = ("policy/pairwise_rl", "8 x 80, zero3")  # as its own comment says


def test_no_config_is_left_out() -> None:
    shipped = {
        f"{folder}/{path.stem}" for folder in ("sft", "rm", "rl", "policy") for path in (CONFIGS / folder).glob("*.yaml")
    }
    assert shipped == {name for name, _ in MACHINES}


@pytest.mark.parametrize(("name", "machines"), MACHINES, ids=[f"{name}, {machines}" for name, machines in MACHINES])
def test_a_config_fits_its_machines(name: str, machines: Machines) -> None:
    path: Path = CONFIGS / f"{name}.yaml"
    config = load_config(SCHEMAS[stage_of(path)], path)
    assert isinstance(config, TrainConfig)
    launch = read_launch(CONFIGS / "accelerate" / f"{machines.launcher}.yaml")
    plan = Plan(Launch(machines.processes, launch.zero, launch.offload), machines.card, machines.model)
    memory = next(needs(config, plan))
    assert memory.outcome == ("failed" if (name, str(machines)) == DOES_NOT else "ok"), memory.message
