"""The measurements of the endpoint in small, as their commands run them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.shell import run_module


@pytest.mark.slow
def test_load(tmp_path: Path) -> None:
    """The judge of the package, a lone client and a flood."""
    out = tmp_path / "load.json"
    done = run_module("eval.serving_load", "--only", "fairness", "--seconds", "2", "--runs", "1", "--out", str(out))
    assert done.returncode == 0, done.stderr
    [result] = json.loads(out.read_text())["fairness"]["runs"]
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


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_attacks(tmp_path: Path) -> None:
    """Those on pairs, through nginx: refused or answered, and the endpoint is healthy meanwhile at both addresses."""
    out = tmp_path / "attacks.json"
    done = run_module("eval.serving_attacks", "--only", "pair", "--out", str(out))
    assert done.returncode == 0, done.stderr
    rows = {row["attack"]: row for row in json.loads(out.read_text())}
    assert rows["half a surrogate pair as raw UTF-8"]["answer"] == "400"
    assert rows["/v1/judge/batch, 3,000 pairs"]["answer"] == "413"
    assert rows["/v1/judge/batch, 1,024 pairs"]["answer"] == "200"
    assert rows["a pair beside 100,000 characters"]["answer"].startswith("200 in ")
    for row in rows.values():
        assert set(row["health_worst_ms"]) == {"endpoint", "nginx"}
        assert (set(row["ready"]), row["tracebacks"]) == ({"200"}, 0)
    assert out.with_suffix(".md").read_text().count("\n| ") == 1 + len(rows)
