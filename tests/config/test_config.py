"""Every YAML that ships loads; what is wrong in one is said with its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rewardlab.config import (
    SCHEMAS,
    MethodConfig,
    PolicyConfig,
    PRMConfig,
    RLConfig,
    RMConfig,
    SFTConfig,
    StepsConfig,
    find_config,
    find_configs,
    load_config,
    load_yaml,
    name_of_config,
)
from rewardlab.demo.build import DemoConfig
from rewardlab.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = sorted(path for path in CONFIGS.rglob("*.yaml") if path.parent.name != "launch")  # a Kubernetes Job is no run's


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_shipped_configs_load(path: Path) -> None:
    """configs/STAGE/*.yaml and configs/*/STAGE.yaml."""
    name = path.stem if path.stem in (*SCHEMAS, "demo") else path.parent.name
    if name == "accelerate":  # a key that accelerate does not know is an error to it
        from accelerate.commands.config.config_args import load_config_from_file

        assert load_config_from_file(str(path)).num_processes >= 1
        return
    assert DemoConfig.load(path) if name == "demo" else load_config(SCHEMAS[name], path)


@pytest.mark.parametrize("path", sorted((CONFIGS / "rl").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_is_the_same_method_for_a_policy(path: Path) -> None:
    """Every field that makes the method, taken over into a policy's config, means what it means for a judge."""
    judge, fields = load_config(RLConfig, path), set(MethodConfig.model_fields) - {"model", "template"}
    method = {name: value for name, value in load_yaml(path).items() if name in fields}
    if judge.window:
        with pytest.raises(ValueError, match="needs complete answers"):
            PolicyConfig(**method)
        return
    rates = {"learning_rate", "value_learning_rate", "template"}
    policy = PolicyConfig(**method)
    assert {name for name in fields if getattr(policy, name) != getattr(judge, name)} <= rates


def test_defaults_are_the_paper() -> None:
    """arXiv 2505.02835, section 5: what a reader of the paper would look for."""
    rl, sft = RLConfig(), SFTConfig()
    assert (sft.learning_rate, sft.batch_size, sft.epochs) == (1e-5, 256, 1.0)
    assert (rl.learning_rate, rl.rollout_batch_size, rl.batch_size, rl.group_size) == (1e-6, 256, 128, 1)
    assert (rl.kl_coef, rl.preclip, rl.outlier_sigma, rl.attempts) == (0.0, (1e-3, 1e3), 3.0, ["2", "3", "unsolved"])


@pytest.mark.parametrize(
    ("schema", "text", "message"),
    [
        (SFTConfig, "learning_rat: 1", "unknown key 'learning_rat'"),
        (RLConfig, "consistency: {wieght: 1}", "unknown key 'consistency.wieght'"),
        (SFTConfig, "learning_rate: fast", "learning_rate"),
        (SFTConfig, "batch_size: 10\nmicro_batch_size: 4", "multiple of micro_batch_size"),
        (StepsConfig, "completions: 5", "raise completions"),
        (StepsConfig, "judgments_per_order: 21", "cannot exceed completions"),
        (PRMConfig, "lora: {}", "lora: null"),
        (RLConfig, "process_reward: x\nadvantage: rloo\ngroup_size: 2", "process_reward"),
        (RLConfig, "batch_size: 100", "multiple of batch_size"),
        (RMConfig, "batch_size: 9\nmicro_batch_size: 3", "make it even"),
        (RMConfig, "lora: {}", "whole model"),
        (RLConfig, "preclip: [2, 3]", "both sides of 1"),
        (RLConfig, "entropy: {target: 0.5, coef: 2}", "entropy.coef 2 is more than its maximum"),
        (RLConfig, "save_steps: 3", "multiple of 2"),
        (RLConfig, "attempts: ['4']", "attempts"),
        (SFTConfig, "- a list", "expected"),
        (SFTConfig, "a: [", "YAML"),
    ],
)
def test_what_is_wrong_is_named(schema: type, text: str, message: str, tmp_path: Path) -> None:
    """With the file it stands in."""
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(schema, path)
    assert message in str(caught.value)
    assert "bad.yaml" in str(caught.value)


def test_an_unknown_key_of_the_demonstration(tmp_path: Path) -> None:
    """The same for the demonstration's own config; and a file that is not there."""
    (tmp_path / "w.yaml").write_text("num_trian: 3")
    with pytest.raises(ConfigError, match="num_trian"):
        DemoConfig.load(tmp_path / "w.yaml")
    with pytest.raises(ConfigError, match=r"missing\.yaml"):
        load_config(SFTConfig, tmp_path / "missing.yaml")


def test_configs_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any folder: an existing path first, then a name. Every name that ships works; for another the nearest are named."""
    monkeypatch.chdir(tmp_path)
    for path in CONFIGS.rglob("*.yaml"):
        name = path.relative_to(CONFIGS).with_suffix("").as_posix()
        assert find_config(name) == find_config(f"{name}.yaml") == path
        assert name_of_config(path) == name
    assert load_config(RLConfig, "rl/rloo").group_size == load_config(RLConfig, CONFIGS / "rl" / "rloo.yaml").group_size
    (tmp_path / "rl").mkdir()
    (tmp_path / "rl" / "rloo.yaml").write_text("seed: 7")
    assert load_config(RLConfig, "rl/rloo.yaml").seed == 7
    assert name_of_config(tmp_path / "rl" / "rloo.yaml") == str(tmp_path / "rl" / "rloo.yaml")
    with pytest.raises(ConfigError, match="did you mean rl/grpo"):
        find_config("rl/grop")
    assert find_config("configs/rl/grpo.yaml") == CONFIGS / "rl" / "grpo.yaml", "as the shipped files name each other"
    with pytest.raises(ConfigError, match=r"no such file.*`rewardlab configs list` names them all"):
        find_config("qqqqqqqq")
    assert find_configs("tiny") == CONFIGS / "tiny"
    assert find_configs(tmp_path) == tmp_path
    with pytest.raises(ConfigError, match="no such folder; expected one of yours, or one that ships: accelerate, "):
        find_configs("tyni")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"advantage": "rloo", "group_size": 1, "anchor": "start"}, "group_size"),
        ({"advantage": "grpo", "group_size": 4, "kl": "k1_reward", "kl_coef": 0.1}, "k2_loss"),
        ({"anchor": "group", "group_size": 1}, "anchor group"),
    ],
)
def test_a_policy_is_held_to_its_method(changes: dict[str, Any], message: str) -> None:
    """What a judge's method is refused, a policy's is."""
    with pytest.raises(ValueError, match=message):
        PolicyConfig(**changes)
