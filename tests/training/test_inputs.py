"""What a training function is given from Python: a data file, a config's name, keys of it; the same as the command line's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rewardlab
from rewardlab.config import RLConfig, SFTConfig, load_config
from rewardlab.data.pairs import write_jsonl, write_parquet
from rewardlab.errors import ConfigError, DataError
from rewardlab.training.run.inputs import config_of, pairs_of


def test_configs_by_name_with_differences() -> None:
    config = config_of(RLConfig, "rl/grpo", group_size=4, seed=None)
    assert config == load_config(RLConfig, "rl/grpo", group_size=4)
    assert config_of(RLConfig, config) is config
    assert config_of(SFTConfig, None) == SFTConfig()
    with pytest.raises(ConfigError, match="group_size: the RLConfig is complete"):
        config_of(RLConfig, config, group_size=8)
    with pytest.raises(ConfigError, match="did you mean 'group_size'"):
        config_of(RLConfig, None, groupsize=8)


def test_pairs_of_a_file(demo_pairs: Any, tmp_path: Path) -> None:
    pairs = demo_pairs[0][:3]
    write_jsonl(pairs, tmp_path / "pairs.jsonl")
    assert (
        list(pairs_of(str(tmp_path / "pairs.jsonl"), 8, "none")) == pairs == rewardlab.load_pairs(str(tmp_path / "pairs.jsonl"))
    )
    assert pairs_of(pairs, 8, "none") is pairs
    with pytest.raises(DataError, match="no such file"):
        pairs_of(tmp_path / "none.jsonl", 8, "none")


def test_two_pairs_of_one_id_are_refused(demo_pairs: Any, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Their rollouts would be one group, and have one baseline."""
    pairs = [demo_pairs[0][0], replace(demo_pairs[0][1], pair_id=demo_pairs[0][0].pair_id)]
    with pytest.raises(DataError, match="appears twice; every pair needs its own"):
        rewardlab.train_rl(pairs, "rl/grpo", tmp_path / "rl", model=str(tiny_checkpoint), template="plain")
    assert not (tmp_path / "rl").exists()


def test_a_judge_in_one_line(tiny_checkpoint: Path, demo_pairs: Any, tmp_path: Path) -> None:
    """From a file to a checkpoint that opens and compares; a key that is none is refused before anything is read."""
    write_parquet(demo_pairs[0][:16], tmp_path / "pairs.parquet")
    how: dict[str, Any] = {"model": str(tiny_checkpoint), "template": "verdict", "max_steps": 2, "batch_size": 4}
    how |= {"micro_batch_size": 4, "gradient_checkpointing": False, "data_workers": 0}
    how = {name: value for name, value in how.items() if name in SFTConfig.model_fields}
    final = rewardlab.train_sft(str(tmp_path / "pairs.parquet"), out=str(tmp_path / "run"), **how)
    verdict = rewardlab.open_judge(f"hf:{final}").compare_many(demo_pairs[0][:1])[0]
    assert len(verdict.votes) == 2
    assert all(vote.probability is None or 0 <= vote.probability <= 1 for vote in verdict.votes)
    with pytest.raises(ConfigError, match="unknown key 'lr'"):
        rewardlab.train_sft("none.parquet", out=tmp_path / "other", lr=1)
