"""To refuse a body costs less than to judge one: it holds the only thread that serves everybody."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 0.2  # on a machine that counts to five million in 0.1 s
MEGABYTES = 200.0  # in all, of which reading a body of 30 takes most


@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_the_most_expensive_bodies() -> None:
    """Every route, the most values and bytes that a body may have, where a schema would find an error in each."""
    command = [sys.executable, "-m", "tests.support.costly_bodies"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    machine, *costs = map(json.loads, done.stdout.splitlines())
    most_s = SECONDS * max(1.0, machine["counting_seconds"] / 0.1)
    assert {"rerank", "score", "batch", "verify", "join"} <= {cost["path"].rpartition("/")[2] for cost in costs}
    assert all(cost["status"] in (400, 413, 422) or cost["path"] in ("/seed_session", "/aggregate_metrics") for cost in costs)
    assert [cost for cost in costs if cost["seconds"] > most_s] == []
    assert sum(cost["mb"] for cost in costs) < MEGABYTES
