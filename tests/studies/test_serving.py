"""The measurements of the endpoint in small, as their commands run them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.shell import run_module


@pytest.mark.slow
def test_load(tmp_path: Path) -> None:
    """The judge of the package, a lone client and a flood."""
    out = tmp_path / "load.json"
    done = run_module("eval.serving_load", "--only", "fairness", "--seconds", "2", "--out", str(out))
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())["fairness"]
    assert set(result["statuses"]) == {"200"}
    assert result["flood_per_s"] > 0


@pytest.mark.nightly
def test_front_ends(tmp_path: Path) -> None:
    """Two of them share the work for a group."""
    out = tmp_path / "load.json"
    done = run_module("eval.serving_load", "--only", "front_end", "--seconds", "12", "--out", str(out))
    assert done.returncode == 0, done.stderr
    cost = json.loads(out.read_text())["front_end"]["cpu_ms"]
    assert cost["kept pair"] < cost["new pair"]
    assert all(cost[f"group, front end {n} of two"] < cost["group, one front end"] for n in (1, 2))


@pytest.mark.slow
def test_drills(finished_run: Path, tmp_path: Path) -> None:
    """An engine that answers garbage for five of eighteen seconds: no wrong answer, and right ones afterwards."""
    out, data = tmp_path / "drills.json", finished_run / "demo" / "test.parquet"
    drill = ["--only", "openai engine garbled", "--judge", str(finished_run / "rl" / "final"), "--data", str(data)]
    done = run_module("eval.serving_drills", *drill, "--out", str(out))
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())["openai engine garbled"]
    assert result["right_answers_after"] > 0
    assert not any("WRONG" in answer for answer in result["answers"])


@pytest.mark.slow
def test_clients(tmp_path: Path) -> None:
    """Uploads by curl to five endpoints over the scripted judge."""
    done = run_module("eval.serving_clients", "--environments", str(tmp_path), "--only", "curl")
    assert done.returncode == 0, done.stderr
    assert (done.stdout.count("| worked |"), done.stdout.count("| refused |"), done.stdout.count("| wrong |")) == (3, 1, 0)
