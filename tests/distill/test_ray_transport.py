"""The teacher stage on a local Ray of two workers: the same set, each call once, also when the driver is killed."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.data.pairs import read_pairs, write_shards
from rewardlab.distill.pipeline import distill
from rewardlab.errors import ConfigError
from rewardlab.types import Tie
from tests.support.distillation import calls_of, config_for

pytest.importorskip("ray", reason="Ray is an extra: pip install 'rewardlab[ray]'")

RUN = """
import json, sys
from pathlib import Path
from rewardlab.config import DistillConfig
from rewardlab.distill.ray_transport import distill_on_ray
config = DistillConfig(**json.loads(sys.argv[1]))
print(json.dumps(distill_on_ray(Path(sys.argv[2]), config, Path(sys.argv[3]), batch=20)))
"""


def run(config: Any, data: Path, out: Path) -> subprocess.Popen[str]:
    """In a process of its own: Ray leaves warnings and threads behind."""
    command = [sys.executable, "-c", RUN, config.model_dump_json(), str(data), str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_two_workers_give_the_set_of_one(demo_pairs: Any, demo_server: Any, tmp_path: Path) -> None:
    """Killed once in mid-flight and run again; then the journal says that every call was answered once, and the plain stage,
    run over what Ray left, has nothing to ask."""
    url = demo_server()
    ties = {3, 60}  # which no teacher is asked about
    pairs = [replace(pair, preferred=None, tie=Tie.TIE) if n in ties else pair for n, pair in enumerate(demo_pairs[0])]
    list(write_shards(pairs, tmp_path / "data", rows_per_shard=50))
    config = config_for(url, concurrency=4, ray={"workers": 2})
    journal = tmp_path / "ray" / "journal.sqlite"
    first = run(config, tmp_path / "data", tmp_path / "ray")
    while first.poll() is None:
        time.sleep(0.01)
        try:
            if len(calls_of(journal)) > 40:
                break
        except sqlite3.OperationalError:  # not there yet
            continue
    assert first.poll() is None, first.communicate()[1][-2000:]
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = run(config, tmp_path / "data", tmp_path / "ray")
    _, said = second.communicate()
    assert second.returncode == 0, said[-2000:]
    assert distill(pairs, config, tmp_path / "plain")["num_pairs_asked_about"] == len(pairs) - len(ties)
    assert read_pairs(tmp_path / "ray" / "distilled.parquet") == read_pairs(tmp_path / "plain" / "distilled.parquet")
    calls = calls_of(journal)
    assert all(call["finish"] == "stop" for call in calls)
    assert sum(call["asked"] - 1 for call in calls) <= 2 * 4
    again = distill(read_pairs(tmp_path / "data"), config, tmp_path / "ray")
    assert again["num_requests"] == sum(call["asked"] for call in calls)


def test_only_shards(tmp_path: Path) -> None:
    """JSON lines are to be converted first."""
    from rewardlab.distill.ray_transport import distill_on_ray

    (tmp_path / "p.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="data convert"):
        distill_on_ray(tmp_path / "p.jsonl", config_for("http://127.0.0.1:9/v1", ray={"workers": 1}), tmp_path / "out")
