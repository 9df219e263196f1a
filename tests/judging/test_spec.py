"""Specifications of judges: every form that is explained is read, what is read is written back, the rest is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardlab.errors import ConfigError
from rewardlab.judging.spec import DEMO_JUDGE, ENGINES, OTHERS, JudgeSpec, judge_weights_id, spec_help
from rewardlab.models.checkpoints import weights_id
from rewardlab.samplers.base import HEADS

READ = [
    ("hf:runs/rl/final", JudgeSpec("hf", "runs/rl/final"), "runs/rl/final"),
    ("vllm:Qwen/Qwen2.5-VL-7B-Instruct", JudgeSpec("vllm", "Qwen/Qwen2.5-VL-7B-Instruct"), "Qwen/Qwen2.5-VL-7B-Instruct"),
    ("openai:gpt-4o@http://a:1/v1,http://b/v1", JudgeSpec("openai", "gpt-4o@http://a:1/v1,http://b/v1"), None),
    ("prob:runs/rl/final", JudgeSpec("hf", "runs/rl/final", by_probability=True), "runs/rl/final"),
    ("prob@1:runs/rl/final", JudgeSpec("hf", "runs/rl/final", by_probability=True, verdict_temperature=1.0), "runs/rl/final"),
    ("prob@0.25:vllm:x", JudgeSpec("vllm", "x", by_probability=True, verdict_temperature=0.25), "x"),
    ("prob@3:demo", JudgeSpec("hf", str(DEMO_JUDGE), by_probability=True, verdict_temperature=3.0), str(DEMO_JUDGE)),
    ("prob:vllm:x", JudgeSpec("vllm", "x", by_probability=True), "x"),
    ("verify:hf:x", JudgeSpec("hf", "x", verifies=True), "x"),
    ("verify:openai:m@http://a", JudgeSpec("openai", "m@http://a", verifies=True), None),
    ("demo", JudgeSpec("hf", str(DEMO_JUDGE)), str(DEMO_JUDGE)),
    ("verify:prob:demo", JudgeSpec("hf", str(DEMO_JUDGE), by_probability=True, verifies=True), str(DEMO_JUDGE)),
    ("prob:hf:demo", JudgeSpec("hf", "demo", by_probability=True), "demo"),
    ("baseline:longest", JudgeSpec("baseline", "longest"), None),
    ("replay:votes.jsonl", JudgeSpec("replay", "votes.jsonl"), None),
    ("rm:runs/rm/final", JudgeSpec("rm", "runs/rm/final"), None),
    ("openai:gpt-4o", JudgeSpec("openai", "gpt-4o"), None),
    ("http://a:8000", JudgeSpec("http", "http://a:8000"), None),
    ("https://a/judge", JudgeSpec("http", "https://a/judge"), None),
    ("panel:hf:x,http://a", JudgeSpec("panel", "hf:x,http://a"), None),
    ("pool:hf:x;openai:m@http://a,http://b", JudgeSpec("pool", "hf:x;openai:m@http://a,http://b"), None),
]


@pytest.mark.parametrize(("text", "spec", "checkpoint"), READ)
def test_read(text: str, spec: JudgeSpec, checkpoint: str | None) -> None:
    """What is read is written back as it was."""
    assert JudgeSpec.parse(text, *OTHERS) == spec
    assert str(spec) == text
    assert spec.checkpoint == (None if checkpoint is None else Path(checkpoint))


def test_hf_may_be_left_out_after_prob() -> None:
    """prob:PATH is prob:hf:PATH."""
    assert JudgeSpec.parse("prob:hf:x") == JudgeSpec.parse("prob:x")


@given(st.sampled_from(sorted(ENGINES)), st.text(min_size=1).filter(str.strip), st.booleans(), st.booleans())
def test_round_trip(engine: str, target: str, by_probability: bool, verifies: bool) -> None:
    """Any specification is read back from its own text, but one whose PATH after prob: begins as an engine."""
    writes = engine != HEADS
    spec = JudgeSpec(engine, target, by_probability and ENGINES[engine].is_local and writes, verifies and writes)
    if not (spec.by_probability and engine == "hf" and target.partition(":")[0] in ENGINES):
        assert JudgeSpec.parse(str(spec)) == spec


@pytest.mark.parametrize(
    "text",
    [
        "http:x",
        "prob:http://a",
        "verify:http://a",
        "panel:",
        "prob:panel:hf:x",
        "",
        "gpt",
        "hf:",
        "hf: ",
        "prob:",
        "verify:",
        "verify:x",
        "verify:baseline:longest",
        "verify:verify:hf:x",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    """With all that is known, in one sentence."""
    with pytest.raises(ConfigError, match="unknown judge") as error:
        JudgeSpec.parse(text, *OTHERS)
    assert spec_help(*OTHERS) in str(error.value)
    assert all(f"{name}:" in str(error.value) for name in (*ENGINES, *OTHERS, "prob", "verify"))


def test_what_no_engine_answers_for_is_taken_where_it_can_be() -> None:
    """A baseline is no judge to serve, and a scalar head none to benchmark."""
    for text in ("baseline:longest", "replay:x", "rm:x", "http://a", "panel:hf:x,hf:y", "pool:hf:x,hf:y"):
        with pytest.raises(ConfigError, match="unknown judge"):
            JudgeSpec.parse(text)
    with pytest.raises(ConfigError, match="gives no verdict probabilities"):
        JudgeSpec.parse("prob:openai:m@http://a")


@pytest.mark.parametrize("number", ["", "x", "0", "-1", "inf", "nan"])
def test_a_temperature_is_a_positive_number(number: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a temperature; expected a positive number, as in prob@1:PATH"):
        JudgeSpec.parse(f"prob@{number}:runs/rl/final")


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_a_temperature_is_read_back(tau: float) -> None:
    """To the last digit."""
    spec = JudgeSpec("hf", "x", by_probability=True, verdict_temperature=tau)
    assert JudgeSpec.parse(str(spec)) == spec


def test_members() -> None:
    """Between commas; between semicolons where there is one, for members that hold commas."""
    for text, members in {
        "panel:hf:x, http://a": ("hf:x", "http://a"),
        "panel:openai:m@http://a,http://b;hf:x": ("openai:m@http://a,http://b", "hf:x"),
        "pool:openai:m@http://a,http://b;": ("openai:m@http://a,http://b",),
        "panel:,": (),
    }.items():
        assert JudgeSpec.parse(text, *OTHERS).members == members


def test_weights(tmp_path: Path) -> None:
    """The weights' id is that of the checkpoint that a specification names, whatever stands before it; of nothing else."""
    (tmp_path / "model.safetensors").write_bytes(b"x")
    known = weights_id(tmp_path)
    assert known
    for text in (f"hf:{tmp_path}", f"vllm:{tmp_path}", f"prob:{tmp_path}", f"prob:vllm:{tmp_path}", f"verify:hf:{tmp_path}"):
        assert judge_weights_id(text) == known
    assert judge_weights_id("scripted") == judge_weights_id("openai:m@http://a") == judge_weights_id("hf:none") == ""
