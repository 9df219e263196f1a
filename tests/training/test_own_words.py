"""A judge trained on a template of one's own goes through every stage and is asked in its words where the file is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.errors import CheckpointError
from rewardlab.judging.engines import open_generative_judge
from rewardlab.models.checkpoints import template_for
from rewardlab.prompts import load_template
from tests.support import scaled_runs

WORDS = "Which is better?\n{question}\nA: {first}\nB: {second}\nEnd with <answer>1</answer> or <answer>2</answer>."


def test_own_words_travel(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SFT of an adapter, merged; RL from it with the file deleted; judged from another folder, with and without --template."""
    (tmp_path / "mine.txt").write_text(WORDS)
    monkeypatch.chdir(tmp_path)
    name = "think_answer:mine.txt"
    words = load_template(name)
    once = {"template": name, "max_steps": 1, "save_steps": 1}
    scaled_runs.run("sft", tiny_checkpoint, tmp_path / "sft", lora={"r": 4}, **once)
    (tmp_path / "mine.txt").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    load_template.cache_clear()
    merged = tmp_path / "merged"
    result = CliRunner().invoke(app, ["merge", str(tmp_path / "sft" / "final"), "--out", str(merged)])
    assert result.exit_code == 0, result.output
    scaled_runs.run("rl", merged, tmp_path / "rl", **once)
    final = tmp_path / "rl" / "final"
    assert template_for(final, None) == words
    pair = scaled_runs.pairs()[0]
    for template in (None, name):
        judge = open_generative_judge(f"hf:{final}", template=template, max_tokens=4)
        assert judge.template == words
        assert len(judge.compare(pair).votes) == 2
    with pytest.raises(CheckpointError, match=words.hash):
        open_generative_judge(f"hf:{final}", template="plain")
