"""The teacher stage against a real server: kept, tagged, journalled, killed, continued; and every way a server can fail."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.config import DistillConfig
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.distill import pipeline
from rewardlab.distill.pipeline import distill
from rewardlab.distill.statistics import rank_correlation
from rewardlab.errors import ConfigError, DataError, EndpointError, OutputError
from rewardlab.types import Order, PreferencePair, choice_of
from rewardlab.verdicts import parse_verdict
from rewardlab.world.server import Faults, TeacherConfig

Start = Callable[..., str]


def config_for(url: str, **changes: Any) -> DistillConfig:
    values = {"model": "world-teacher", "base_url": url, "template": "plain", "deadline_s": 20.0, "concurrency": 16}
    return DistillConfig(**(values | changes))


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()][1:]


def test_kept_judgments_agree_with_the_label_and_tags_count_attempts(
    world_pairs: Any, world_server: Start, tmp_path: Path
) -> None:
    """Recounted from the journal: the first agreeing attempt is the tag; without one the pair is unsolved and unkept."""
    pairs = world_pairs[0]
    statistics = distill(pairs, config_for(world_server()), tmp_path)
    kept = read_pairs(tmp_path / "distilled.parquet")
    assert [p.pair_id for p in kept] == [p.pair_id for p in pairs]
    answers: dict[str, dict[int, str]] = {}
    for row in rows_of(tmp_path / "journal.jsonl"):
        if row["event"] == "answer":
            name, _, attempt = row["key"].rpartition("/")
            answers.setdefault(name, {})[int(attempt)] = row["answer"]["text"]
    for pair in kept:
        asked = answers[pair.pair_id]
        right = choice_of(pair.preferred or 0, pair.order)
        agreeing = [n for n in sorted(asked) if parse_verdict(asked[n], "think_answer").choice is right]
        assert pair.attempts == (str(agreeing[0]) if agreeing else "unsolved")
        assert pair.judgment == (asked[agreeing[0]] if agreeing else "")
        assert len(asked) == (agreeing[0] if agreeing else 3)
    assert {p.order for p in kept} == set(Order)
    tags = Counter(p.attempts for p in kept)
    assert set(tags) == {"1", "2", "3", "unsolved"}
    assert statistics["attempts"] == {tag: tags[tag] for tag in ("1", "2", "3", "unsolved")}
    assert statistics["num_requests"] == sum(map(len, answers.values()))
    assert statistics["num_kept"] == sum(bool(p.judgment) for p in kept)
    assert (statistics["num_asked_again"], statistics["num_failed_requests"]) == (0, 0)
    assert json.loads((tmp_path / "statistics.json").read_text()) == statistics


def test_money_is_counted(world_pairs: Any, world_server: Start, tmp_path: Path) -> None:
    """Tokens as the API reports them, at the prices of the config; `datasets` loads the result."""
    prices = {"usd_per_million_prompt_tokens": 2.0, "usd_per_million_completion_tokens": 8.0}
    statistics = distill(world_pairs[0][:20], config_for(world_server(), **prices), tmp_path)
    answers = [row["answer"] for row in rows_of(tmp_path / "journal.jsonl") if row["event"] == "answer"]
    tokens = [sum(a[name] for a in answers) for name in ("num_prompt_tokens", "num_tokens")]
    assert statistics["cost_usd"] == pytest.approx((2 * tokens[0] + 8 * tokens[1]) / 1e6, abs=1e-6)
    assert min(tokens) > 0


RUN = """
import sys
from pathlib import Path
from rewardlab.config import DistillConfig
from rewardlab.data.pairs import read_pairs
from rewardlab.distill.pipeline import distill
config = DistillConfig(model="world-teacher", base_url=sys.argv[1], template="plain", concurrency=4)
distill(read_pairs(Path(sys.argv[2])), config, Path(sys.argv[3]))
"""


def test_kill_9_loses_nothing(world_pairs: Any, world_server: Start, tmp_path: Path) -> None:
    """Killed twice in mid-flight: the set equals an undisturbed run's, and nothing answered was asked again."""
    url = world_server()
    write_parquet(world_pairs[0], tmp_path / "pairs.parquet")
    journal = tmp_path / "killed" / "journal.jsonl"
    command = [sys.executable, "-c", RUN, url, str(tmp_path / "pairs.parquet"), str(tmp_path / "killed")]
    for target in (60, 140):
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while run.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < target):
            time.sleep(0.002)
        assert run.poll() is None, "finished before it was killed"
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert not (tmp_path / "killed" / "distilled.parquet").exists()
    subprocess.run(command, check=True, capture_output=True)
    distill(world_pairs[0], config_for(url, concurrency=4, deadline_s=120.0), tmp_path / "whole")
    assert read_pairs(tmp_path / "killed" / "distilled.parquet") == read_pairs(tmp_path / "whole" / "distilled.parquet")
    asks, answers = (Counter(row["key"] for row in rows_of(journal) if row["event"] == event) for event in ("ask", "answer"))
    assert set(asks) == set(answers)
    assert set(answers.values()) == {1}
    statistics = json.loads((tmp_path / "killed" / "statistics.json").read_text())
    assert statistics["num_asked_again"] == sum(asks.values()) - len(asks) <= 8


def test_a_finished_run_asks_nothing(world_pairs: Any, world_server: Start, tmp_path: Path) -> None:
    """The same command again; and with other settings it is refused, the journal untouched."""
    config = config_for(world_server())
    distill(world_pairs[0][:30], config, tmp_path)
    before = (tmp_path / "journal.jsonl").read_bytes()
    distill(world_pairs[0][:30], config, tmp_path)
    with pytest.raises(ConfigError, match="temperature"):
        distill(world_pairs[0][:30], config_for(config.base_url, temperature=0.5), tmp_path)
    with pytest.raises(ConfigError, match="data"):
        distill(world_pairs[0][:29], config, tmp_path)
    assert (tmp_path / "journal.jsonl").read_bytes() == before


@pytest.mark.parametrize("faults", [Faults(too_many=0.3), Faults(broken=0.3), Faults(too_many=0.2, broken=0.1)])
def test_passing_trouble_is_retried(world_pairs: Any, world_server: Start, tmp_path: Path, faults: Faults) -> None:
    """A third of requests answered 429 or 500: the result is that of a calm server."""
    pairs = world_pairs[0][:25]
    statistics = distill(pairs, config_for(world_server(faults), retries=8), tmp_path / "storm")
    distill(pairs, config_for(world_server()), tmp_path / "calm")
    assert read_pairs(tmp_path / "storm" / "distilled.parquet") == read_pairs(tmp_path / "calm" / "distilled.parquet")
    assert statistics["num_failed_pairs"] == 0


@pytest.mark.parametrize(
    ("faults", "error"),
    [(Faults(broken=1.0), "500"), (Faults(garbage=1.0), "garbled"), (Faults(hang=1.0, hang_s=1.5), "no answer within")],
)
def test_a_dead_server_ends_the_run_and_loses_nothing(
    world_pairs: Any, world_server: Start, tmp_path: Path, faults: Faults, error: str
) -> None:
    """Said with the last error; nothing half-written; the same command continues once it is cured."""
    pairs = world_pairs[0][:60]
    dead = config_for(world_server(faults), retries=0, deadline_s=0.5)
    with pytest.raises(EndpointError, match=error) as caught:
        distill(pairs, dead, tmp_path)
    assert "run the same command again" in str(caught.value)
    assert not (tmp_path / "distilled.parquet").exists()
    alive = config_for(world_server(), retries=0)
    statistics = distill(pairs, alive, tmp_path)
    assert statistics["num_pairs"] == 60
    assert statistics["num_failed_requests"] >= 20


def test_no_server(world_pairs: Any, tmp_path: Path) -> None:
    """Nothing listens there."""
    with pytest.raises(EndpointError, match="in a row failed"):
        distill(world_pairs[0], config_for("http://127.0.0.1:9/v1", retries=0), tmp_path)


def test_failed_pairs_are_counted_and_left_out(
    world_pairs: Any, world_server: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A garbled answer now and then, not retried: the pair is missing and counted, and asked again by the next run."""
    monkeypatch.setattr(pipeline, "GIVE_UP_AFTER", 1000)
    pairs = world_pairs[0][:60]
    statistics = distill(pairs, config_for(world_server(Faults(garbage=0.2)), retries=0), tmp_path)
    assert statistics["num_failed_pairs"] > 0
    assert statistics["num_pairs"] + statistics["num_failed_pairs"] == 60
    again = distill(pairs, config_for(world_server(), retries=0), tmp_path)
    assert (again["num_pairs"], again["num_failed_pairs"]) == (60, 0)
    assert again["num_asked_again"] == again["num_failed_requests"] == statistics["num_failed_requests"]


def test_difficulty_follows_the_level(world_pairs: Any, world_server: Start, tmp_path: Path) -> None:
    """With a teacher that never errs at level 1 and always at level 3: rho against scipy's own on the raw columns."""
    config = TeacherConfig(shallow=(0.0, 0.5, 0.0), misread=(0.0, 0.5, 1.0))
    statistics = distill(world_pairs[0], config_for(world_server(config=config)), tmp_path)
    by_level = statistics["attempts_by_level"]
    assert by_level["1"]["1"] == sum(by_level["1"].values())
    assert by_level["3"]["unsolved"] == sum(by_level["3"].values())
    assert statistics["level_tag_spearman"] > 0.8
    assert rank_correlation([PreferencePair("p", "q", ("a", "b"), 0)]) is None


def test_bad_input_is_said_before_anything_is_asked(world_pairs: Any, tmp_path: Path) -> None:
    """No pairs, no labels, double names, a place that cannot be written: and no request was made."""
    pair, config = world_pairs[0][0], config_for("http://127.0.0.1:9/v1")
    with pytest.raises(DataError, match="no pairs"):
        distill([], config, tmp_path / "a")
    with pytest.raises(DataError, match="no label"):
        distill([replace(pair, preferred=None)], config, tmp_path / "a")
    with pytest.raises(DataError, match="share a pair_id"):
        distill([pair, pair], config, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="writable"):
        distill([pair], config, tmp_path / "file" / "a")


def test_an_earlier_teachers_judgments_are_not_this_ones(world_pairs: Any, world_server: Start, tmp_path: Path) -> None:
    """Distilling a distilled set anew: what is now unsolved carries no judgment, least of all one of the other order."""
    old = [replace(pair, judgment="<think>old</think><answer>1</answer>", attempts="1") for pair in world_pairs[0][:60]]
    blind = TeacherConfig(shallow=(0.0, 0.0, 0.0), misread=(1.0, 1.0, 1.0))
    statistics = distill(old, config_for(world_server(config=blind)), tmp_path)
    assert (statistics["num_kept"], statistics["attempts"]["unsolved"]) == (0, 60)
    assert {(pair.judgment, pair.attempts) for pair in read_pairs(tmp_path / "distilled.parquet")} == {("", "unsolved")}
