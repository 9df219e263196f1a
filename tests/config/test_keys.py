"""Every key of every schema is described, and a resolved config is a config."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from rewardlab.config import (
    SCHEMAS,
    RLConfig,
    SuiteConfig,
    config_keys,
    config_names,
    configs_folder,
    load_config,
    resolved_yaml,
    stage_of,
)
from rewardlab.config.judge import BenchEntry
from rewardlab.config.loading import read_yaml


@pytest.mark.parametrize("schema", [*SCHEMAS.values(), SuiteConfig, BenchEntry], ids=lambda schema: schema.__name__)
def test_every_key_has_a_description(schema: type[BaseModel]) -> None:
    """A sentence: a capital or a name in quotes first, a full stop last."""
    for key in config_keys(schema):
        assert key.description.endswith("."), key.name
        assert key.description[0].isupper() or key.description[0] == "`" or ": " in key.description, key.name
        assert "\n" not in key.description
        assert key.type


def test_keys_in_words() -> None:
    """Types, bounds and defaults of some, worked by hand."""
    keys = {key.name: key for key in config_keys(RLConfig)}
    assert (keys["learning_rate"].type, keys["learning_rate"].default) == ("float, > 0", "1.0e-06")
    assert keys["kl"].type == "k1_reward | k2_loss | k3_loss | k3_corrected"
    assert (keys["preclip"].type, keys["preclip"].default) == ("[float, float] | null", "[0.001, 1000.0]")
    assert (keys["lora"].type, keys["lora"].default, keys["lora.r"].default) == ("mapping | null", "null", "16")
    assert (keys["consistency"].type, keys["consistency"].default) == ("mapping", "")
    assert keys["gae_lambda"].type == "float, >= 0 and <= 1"
    recipe = {key.name: key for key in config_keys(SCHEMAS["recipes"])}
    assert recipe["name"].is_required
    assert not recipe["url"].is_required


STAGED = [name for name in config_names() if Path(name).stem in SCHEMAS or name.split("/")[0] in SCHEMAS]


@pytest.mark.slow
@pytest.mark.parametrize("name", STAGED)
def test_a_resolved_config_is_the_same_config(name: str, tmp_path: Path) -> None:
    """Read back, it equals what it was made of; each key that differs from the default is marked, and no other."""
    schema = SCHEMAS[stage_of(Path(name))]
    config = load_config(schema, name)
    text = resolved_yaml(config)
    path = tmp_path / "resolved.yaml"
    path.write_text(text)
    assert load_config(schema, path) == config
    marked = {line.split(":")[0] for line in text.split("\n") if "# DIFFERS" in line and line[0] != " "}
    nested = {key for key in schema.model_fields if isinstance(getattr(config, key), BaseModel)}
    plain = {*schema.model_fields} - nested
    required = {key for key, field in schema.model_fields.items() if field.is_required()}
    defaults = schema.model_construct(**{key: getattr(config, key) for key in required}).model_dump()
    assert marked == {key for key in plain - required if config.model_dump()[key] != defaults[key]}


def test_every_config_says_what_it_is() -> None:
    """In a comment at its top."""
    for name in config_names():
        text = (configs_folder() / f"{name}.yaml").read_text()
        assert text.startswith("# "), name
        assert read_yaml(text.split("\n---\n")[0]), name
