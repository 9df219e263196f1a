"""``key=value``: what the values are, what is laid over what, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rewardlab.config import DistillConfig, RLConfig, SFTConfig, find_config, load_config, parse_overrides
from rewardlab.config.loading import read_yaml, write_yaml
from rewardlab.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("-1", -1),
        ("1e5", 1e5),
        (".5", 0.5),
        ("1_000", 1000),
        ("0x10", 16),
        ("off", "off"),
        ("no", "no"),
        ("true", True),
        ("null", None),
        ("", None),
        ("[2, '3', unsolved]", [2, "3", "unsolved"]),
        ("{r: 8, alpha: 1.0}", {"r": 8, "alpha": 1.0}),
        ("2026-01-02", "2026-01-02"),
        ("12:30", "12:30"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("a=b", "a=b"),
        ("010", "010"),
    ],
)
def test_values_are_yaml_1_2(text: str, value: Any) -> None:
    """Numbers, null, lists and mappings, as YAML 1.2 has them; off and no are text, 3e-4 is a number."""
    parsed = parse_overrides([f"key={text}"])["key"]
    assert parsed == value
    assert type(parsed) is type(value)


def test_a_dump_is_read_back() -> None:
    """What is written is read as it was, by PyYAML too."""
    value = {"a": [0.1, 1e-6, 1.5e22, -3, None, True, "off", "3e-4", "010", "1:30", "2026-01-02"], "b": {"c": ""}}
    assert read_yaml(write_yaml(value)) == value
    assert yaml.safe_load(write_yaml(value)) == value


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["learning_rate"], "expected KEY=VALUE"),
        (["=3"], "expected KEY=VALUE"),
        (["--seed=3"], "expected KEY=VALUE"),
        (["a..b=3"], "expected KEY=VALUE"),
        (["seed=1", "seed=2"], "seed is set twice"),
        (["freeze=[a"], "not valid YAML"),
        (["lora={r: 1, r: 2}"], "the key 'r' appears twice"),
        (["freeze=&x [*x]"], "recursive"),
        (["freeze=" + "[" * 3000], "cannot be read"),
        (["seed=" + "1" * 5000], "cannot be read"),
        *(([f"seed=!!{tag} x"], "cannot be read") for tag in ("int", "bool", "timestamp")),
    ],
)
def test_what_is_no_assignment_is_refused(assignments: list[str], message: str) -> None:
    """In a sentence with what was given."""
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        parse_overrides(assignments)


def test_changes_over_a_file_and_options_beside_them(tmp_path: Path) -> None:
    """Of a mapping only the keys named change; None is a value in changes, and no option; part of what was null begins as its
    defaults."""
    path = tmp_path / "mine.yaml"
    path.write_text("consistency: {model: m, weight: 0.2}\nhealth.policy: warn\nkl: k2_loss\nkl_coef: 0.1\nclip_high: 0.3\n")
    changes = {"consistency.weight": 0, "lora.r": 8, "clip_high": None, "health": {"patience": 7}}
    config = load_config(RLConfig, path, changes, model=None, seed=3)
    assert (config.consistency.model, config.consistency.weight) == ("m", 0)
    assert config.lora is not None
    assert (config.lora.r, config.lora.alpha) == (8, 32)
    assert (config.clip_high, config.kl, config.seed) == (None, "k2_loss", 3)
    assert (config.health.policy, config.health.patience) == ("warn", 7)
    assert load_config(RLConfig, None, **{"consistency.weight": 0}) == load_config(
        RLConfig, None, {"consistency": {"weight": 0}}
    )
    assert load_config(RLConfig, None).model == "Qwen/Qwen2.5-VL-7B-Instruct"


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"seed": 1}, {"seed": 2}, "seed is set twice, by seed="),
        ({"budget": {"usd": 1}}, {"budget.usd": 2}, "budget.usd is set twice"),
        ({"budget": None}, {"budget.usd": 2}, "budget is set twice"),
        ({"budget": None, "budget.usd": 2}, {}, "budget.usd is set as well as budget"),
        ({"budget.usd": 2, "budget": None}, {}, "budget is set twice"),
        ({"buget.usd": 2}, {}, "unknown key 'buget'; did you mean 'budget'"),
    ],
)
def test_a_key_has_one_value(changes: dict[str, Any], options: dict[str, Any], message: str) -> None:
    """Neither the order of the command line nor an option decides between two."""
    with pytest.raises(ConfigError) as caught:
        load_config(DistillConfig, None, changes, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("consistency.wieght", "'consistency.weight'?"),
        ("consistency_weight", "'consistency.weight'?"),
        ("learnign_rate", "'learning_rate'?"),
        ("patience", "'health.patience'"),
        ("kl_beta", "'kl"),
    ],
)
def test_an_unknown_key_has_the_nearest(key: str, near: str) -> None:
    """Three at most, by the whole key or by its last part."""
    with pytest.raises(ConfigError) as caught:
        load_config(RLConfig, None, {key: 1})
    message = str(caught.value)
    assert near in message
    assert message.count("'") <= 8


def test_a_part_that_is_no_mapping_is_refused_with_its_keys() -> None:
    with pytest.raises(ConfigError, match=r"covariance: expected a mapping of keys among kind, fraction, .*; got 'clip'"):
        load_config(RLConfig, None, {"covariance": "clip"})


def test_a_key_far_from_all_has_a_pointer_and_no_list() -> None:
    """One that is near to none."""
    with pytest.raises(ConfigError) as caught:
        load_config(RLConfig, None, {"zzzzzz": 1})
    assert str(caught.value) == "options: unknown key 'zzzzzz'; `rewardlab configs keys rl` lists those there are"


def test_short_names_are_of_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """grpo for RL is rl/grpo; a name that two stages share needs a stage; the nearest are named."""
    monkeypatch.chdir(tmp_path)
    assert load_config(RLConfig, "grpo") == load_config(RLConfig, "rl/grpo")
    assert find_config("qwen2_5_vl_7b", "sft") == find_config("sft/qwen2_5_vl_7b")
    assert find_config("stable_reinforce") == find_config("rl/stable_reinforce")
    with pytest.raises(ConfigError, match="give one of rm/qwen2_5_vl_7b, sft/qwen2_5_vl_7b"):
        find_config("qwen2_5_vl_7b")
    with pytest.raises(ConfigError, match="did you mean sft/qwen2_5_vl_7b or"):
        find_config("qwen2_5_vl_7", "sft")
    with pytest.raises(ConfigError, match="did you mean rl/grpo"):
        load_config(SFTConfig, "grpo")
    (tmp_path / "grpo").write_text("seed: 5")
    assert load_config(RLConfig, "grpo").seed == 5


def test_a_file_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    """Also where one of them is dotted."""
    path = tmp_path / "twice.yaml"
    for text, message in [("seed: 1\nseed: 2", "'seed' appears twice"), ("lora: {r: 1}\nlora.r: 2", "lora.r is set twice")]:
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_config(SFTConfig, path)
