"""The teacher stage against a real server: kept, tagged, journalled, killed, continued; and every way a server can fail."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.config.data import Budget
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.demo.server import Faults, TeacherConfig
from rewardlab.distill import transports
from rewardlab.distill.journal import Journal
from rewardlab.distill.pipeline import distill
from rewardlab.distill.statistics import rank_correlation
from rewardlab.errors import ConfigError, DataError, EndpointError, OutputError
from rewardlab.samplers import failures
from rewardlab.types import Completion, FinishReason, Order, choice_of
from rewardlab.verdicts.parse import parse_verdict
from tests.support.distillation import calls_of, config_for
from tests.support.openai_server import ChatServer, chat_server

Start = Callable[..., str]


def test_kept_judgments_agree_with_the_label_and_tags_count_attempts(
    demo_pairs: Any, demo_server: Start, tmp_path: Path
) -> None:
    """Recounted from the journal: the first agreeing attempt is the tag; without one the pair is unsolved and unkept."""
    pairs = demo_pairs[0]
    statistics = distill(pairs, config_for(demo_server()), tmp_path)
    kept = read_pairs(tmp_path / "distilled.parquet")
    assert [p.pair_id for p in kept] == [p.pair_id for p in pairs]
    answers: dict[str, dict[int, tuple[str, Order]]] = {}
    for row in calls_of(tmp_path / "journal.sqlite"):
        answers.setdefault(row["pair"], {})[row["attempt"]] = (row["text"], Order(row["shown"]))
    for pair in kept:
        asked = answers[pair.pair_id]
        agreeing = [
            n
            for n, (text, shown) in sorted(asked.items())
            if parse_verdict(text, "think_answer").choice is choice_of(pair.preferred or 0, shown)
        ]
        assert pair.attempts == (str(agreeing[0]) if agreeing else "unsolved")
        assert (pair.judgment, pair.order) == (asked[agreeing[0]] if agreeing else ("", asked[1][1]))
        assert len(asked) == (agreeing[0] if agreeing else 3)
        assert [shown for _, (_, shown) in sorted(asked.items())] == [asked[1][1], asked[1][1].swap(), asked[1][1]][
            : len(asked)
        ]
    assert {p.order for p in kept} == set(Order)
    tags = Counter(p.attempts for p in kept)
    assert set(tags) == {"1", "2", "3", "unsolved"}
    assert statistics["attempts"] == {tag: tags[tag] for tag in ("1", "2", "3", "unsolved")}
    assert statistics["num_requests"] == sum(map(len, answers.values()))
    assert statistics["num_kept"] == sum(bool(p.judgment) for p in kept)
    assert (statistics["num_asked_again"], statistics["num_failed_requests"]) == (0, 0)
    assert json.loads((tmp_path / "statistics.json").read_text()) == statistics


def test_money_is_counted(demo_pairs: Any, demo_server: Start, tmp_path: Path) -> None:
    """Tokens as the API reports them, at the prices of the config; `datasets` loads the result."""
    prices = {"prompt": 2.0, "completion": 8.0}
    statistics = distill(demo_pairs[0][:20], config_for(demo_server(), prices=prices), tmp_path)
    calls = calls_of(tmp_path / "journal.sqlite")
    tokens = [sum(call[name] for call in calls) for name in ("prompt_tokens", "tokens")]
    assert statistics["cost_usd"] == pytest.approx((2 * tokens[0] + 8 * tokens[1]) / 1e6, abs=1e-6)
    assert min(tokens) > 0


RUN = """
import sys
from pathlib import Path
from rewardlab.config import DistillConfig
from rewardlab.data.pairs import read_pairs
from rewardlab.distill.journal import Journal
from rewardlab.distill.pipeline import distill
config = DistillConfig(model="demo-teacher", base_url=sys.argv[1], template="plain", concurrency=4)
distill(read_pairs(Path(sys.argv[2])), config, Path(sys.argv[3]))
"""


def test_kill_9_loses_nothing(demo_pairs: Any, demo_server: Start, tmp_path: Path) -> None:
    """Killed twice in mid-flight: the set equals an undisturbed run's, and nothing answered was asked again."""
    url = demo_server()
    write_parquet(demo_pairs[0], tmp_path / "pairs.parquet")
    journal = tmp_path / "killed" / "journal.sqlite"

    def num_asked() -> int:
        try:
            return len(calls_of(journal))
        except sqlite3.OperationalError:  # not there yet
            return 0

    command = [sys.executable, "-c", RUN, url, str(tmp_path / "pairs.parquet"), str(tmp_path / "killed")]
    for target in (30, 70):
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while run.poll() is None and num_asked() < target:
            time.sleep(0.002)
        assert run.poll() is None, "finished before it was killed"
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert not (tmp_path / "killed" / "distilled.parquet").exists()
    subprocess.run(command, check=True, capture_output=True)
    distill(demo_pairs[0], config_for(url, concurrency=4, deadline_s=120.0), tmp_path / "whole")
    assert read_pairs(tmp_path / "killed" / "distilled.parquet") == read_pairs(tmp_path / "whole" / "distilled.parquet")
    calls = calls_of(journal)
    assert all(call["finish"] == "stop" for call in calls)
    statistics = json.loads((tmp_path / "killed" / "statistics.json").read_text())
    assert statistics["num_asked_again"] == sum(call["asked"] - 1 for call in calls) <= 8


def test_a_finished_run_asks_nothing(demo_pairs: Any, demo_server: Start, tmp_path: Path) -> None:
    """The same command again; and with other settings it is refused, the journal untouched."""
    config = config_for(demo_server())
    distill(demo_pairs[0][:30], config, tmp_path)
    before = calls_of(tmp_path / "journal.sqlite")
    distill(demo_pairs[0][:30], config, tmp_path)
    with pytest.raises(ConfigError, match="temperature"):
        distill(demo_pairs[0][:30], config_for(config.base_url, temperature=0.5), tmp_path)
    with pytest.raises(ConfigError, match="data"):
        distill(demo_pairs[0][:29], config, tmp_path)
    assert calls_of(tmp_path / "journal.sqlite") == before


@pytest.mark.parametrize("faults", [Faults(too_many=0.3), Faults(broken=0.3), Faults(too_many=0.2, broken=0.1)])
def test_passing_trouble_is_retried(demo_pairs: Any, demo_server: Start, tmp_path: Path, faults: Faults) -> None:
    """A third of requests answered 429 or 500: the result is that of a calm server."""
    pairs = demo_pairs[0][:25]
    statistics = distill(pairs, config_for(demo_server(faults), retries=8), tmp_path / "storm")
    distill(pairs, config_for(demo_server()), tmp_path / "calm")
    assert read_pairs(tmp_path / "storm" / "distilled.parquet") == read_pairs(tmp_path / "calm" / "distilled.parquet")
    assert statistics["num_failed_pairs"] == 0


@pytest.mark.parametrize(
    ("faults", "error"),
    [(Faults(broken=1.0), "500"), (Faults(garbage=1.0), "garbled"), (Faults(hang=1.0, hang_s=1.5), "no answer within")],
)
def test_a_dead_server_ends_the_run_and_loses_nothing(
    demo_pairs: Any, demo_server: Start, tmp_path: Path, faults: Faults, error: str
) -> None:
    """Said with the last error; nothing half-written; the same command continues once it is cured."""
    pairs = demo_pairs[0][:60]
    dead = config_for(demo_server(faults), retries=0, try_s=0.5, deadline_s=0.5)
    with pytest.raises(EndpointError, match=error) as caught:
        distill(pairs, dead, tmp_path)
    assert "run the same command again" in str(caught.value)
    assert not (tmp_path / "distilled.parquet").exists()
    alive = config_for(demo_server(), retries=0)
    statistics = distill(pairs, alive, tmp_path)
    assert statistics["num_pairs"] == 60
    assert statistics["num_failed_requests"] >= 20


def test_no_server(demo_pairs: Any, tmp_path: Path) -> None:
    """Nothing listens there."""
    with pytest.raises(EndpointError, match="in a row failed"):
        distill(demo_pairs[0], config_for("http://127.0.0.1:9/v1", retries=0), tmp_path)


def test_failed_pairs_are_counted_and_left_out(
    demo_pairs: Any, demo_server: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A garbled answer now and then, not retried: the pair is missing and counted, and asked again by the next run."""
    monkeypatch.setattr(failures, "GIVE_UP_AFTER", 1000)
    monkeypatch.setattr(transports, "PASSES", 1)
    pairs = demo_pairs[0][:60]
    statistics = distill(pairs, config_for(demo_server(Faults(garbage=0.2)), retries=0), tmp_path)
    assert statistics["num_failed_pairs"] > 0
    assert statistics["num_pairs"] + statistics["num_failed_pairs"] == 60
    again = distill(pairs, config_for(demo_server(), retries=0), tmp_path)
    assert (again["num_pairs"], again["num_failed_pairs"]) == (60, 0)
    assert again["num_asked_again"] == again["num_failed_requests"] == statistics["num_failed_requests"]


def test_difficulty_follows_the_level(demo_pairs: Any, demo_server: Start, tmp_path: Path) -> None:
    """With a teacher that never errs at level 1 and always at level 3: rho against scipy's own on the raw columns."""
    config = TeacherConfig(shallow=(0.0, 0.5, 0.0), misread=(0.0, 0.5, 1.0))
    statistics = distill(demo_pairs[0], config_for(demo_server(config=config)), tmp_path)
    by_level = statistics["attempts_by_level"]
    assert by_level["1"]["1"] == sum(by_level["1"].values())
    assert by_level["3"]["unsolved"] == sum(by_level["3"].values())
    assert statistics["level_tag_spearman"] > 0.8
    assert rank_correlation({(1, 1): 3, (1, 4): 2}) is None


def test_bad_input_is_said_before_anything_is_asked(demo_pairs: Any, tmp_path: Path) -> None:
    """No pairs, no labels, double names, a place that cannot be written: and no request was made."""
    pair, config = demo_pairs[0][0], config_for("http://127.0.0.1:9/v1")
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


def test_an_earlier_teachers_judgments_are_not_this_ones(demo_pairs: Any, demo_server: Start, tmp_path: Path) -> None:
    """Distilling a distilled set anew: what is now unsolved carries no judgment, least of all one of the other order."""
    old = [replace(pair, judgment="<think>old</think><answer>1</answer>", attempts="1") for pair in demo_pairs[0][:60]]
    blind = TeacherConfig(shallow=(0.0, 0.0, 0.0), misread=(1.0, 1.0, 1.0))
    statistics = distill(old, config_for(demo_server(config=blind)), tmp_path)
    assert (statistics["num_kept"], statistics["attempts"]["unsolved"]) == (0, 60)
    assert {(pair.judgment, pair.attempts) for pair in read_pairs(tmp_path / "distilled.parquet")} == {("", "unsolved")}


def test_a_budget_stops_within_one_percent(demo_pairs: Any, demo_server: Start, tmp_path: Path) -> None:
    """Never above it; at most one percent of it, or what one request may cost, is left; raised, the run goes on to the end."""
    pairs, prices = demo_pairs[0], {"prompt": 2.0, "completion": 8.0}
    config = config_for(demo_server(), prices=prices, max_tokens=60)
    whole = distill(pairs, config, tmp_path / "whole")
    for name, share in (("usd", 0.7), ("tokens", 0.3)):
        limit = (
            share * whole["cost_usd"] if name == "usd" else int(share * (whole["prompt_tokens"] + whole["completion_tokens"]))
        )
        part = distill(pairs, config.model_copy(update={"budget": Budget(**{name: limit})}), tmp_path / name)
        spent = part["cost_usd"] if name == "usd" else part["prompt_tokens"] + part["completion_tokens"]
        most = (1.2 * 120 * 2.0 + 60 * 8.0) / 1e6 if name == "usd" else 1.2 * 120 + 60  # no prompt has 120 tokens
        assert part["stopped_by_budget"]
        assert limit - max(0.01 * limit, most) <= spent <= limit
        assert part["num_pairs"] < len(pairs) == part["num_pairs_asked_about"]
    rest = distill(pairs, config, tmp_path / "usd")
    assert not rest["stopped_by_budget"]
    assert read_pairs(tmp_path / "usd" / "distilled.parquet") == read_pairs(tmp_path / "whole" / "distilled.parquet")
    with pytest.raises(EndpointError, match="does not reach one pair"):
        distill(pairs, config.model_copy(update={"budget": Budget(usd=1e-9)}), tmp_path / "none")


def test_several_endpoints_share_the_work(demo_pairs: Any, demo_server: Start, tmp_path: Path) -> None:
    """Two servers, one of which is down: the other does all; with both up, both are asked."""
    pairs = demo_pairs[0][:40]
    url = demo_server()
    statistics = distill(pairs, config_for([url, "http://127.0.0.1:9/v1"], retries=1, concurrency=4), tmp_path / "one")
    assert (statistics["num_pairs"], statistics["num_failed_pairs"]) == (40, 0)
    distill(pairs, config_for([url, demo_server()], concurrency=4), tmp_path / "two")
    assert read_pairs(tmp_path / "one" / "distilled.parquet") == read_pairs(tmp_path / "two" / "distilled.parquet")


def test_votes_in_both_orders(demo_pairs: Any, demo_server: Start, tmp_path: Path) -> None:
    """Every pair is asked four times, twice in each order; the share is recounted from the attempts' file."""
    from datasets import load_dataset

    pairs = demo_pairs[0][:40]
    distill(pairs, config_for(demo_server(), votes=4), tmp_path)
    rows = load_dataset("parquet", data_files=str(tmp_path / "attempts.parquet"), split="train", cache_dir=str(tmp_path / "c"))
    of: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        of.setdefault(row["pair_id"], []).append(row)
    for pair in read_pairs(tmp_path / "distilled.parquet"):
        asked = of[pair.pair_id]
        assert Counter(row["order"] for row in asked) == {"given": 2, "swapped": 2}
        assert pair.teacher_share == sum(row["agrees"] for row in asked) / 4
        assert [row["kept"] for row in asked].count(True) == bool(pair.judgment)


def test_a_teacher_that_leans_is_found_out(demo_pairs: Any, tmp_path: Path) -> None:
    """One that always names the first: half a lean, right where the preferred one is first and wrong where it is second."""
    with chat_server(ChatServer()) as url:
        lean = distill(demo_pairs[0][:60], config_for(url, votes=2), tmp_path)["teacher_position_bias"]
    assert lean["named_first"] == 0.5
    assert (lean["right_when_first"][0], lean["right_when_second"][0], lean["same_place"][0]) == (1.0, 0.0, 1.0)


def test_an_attempt_that_has_an_answer_keeps_it(tmp_path: Path) -> None:
    """However often it is told: a batch that is collected twice, a retry that comes late."""
    with Journal(tmp_path / "j.sqlite", {"run": 1}) as journal:
        journal.record_request("p", 1, Order.GIVEN)
        assert journal.record_answer("p", 1, Completion("one", FinishReason.STOP, 5, 10), 0.5)
        assert not journal.record_answer("p", 1, Completion("two", FinishReason.STOP, 7, 10), 0.7)
        assert not journal.record_answer("p", 1, Completion("", FinishReason.TIMEOUT, error="late"), 0.0)
        assert [answer.text for answer in journal.answers("p")] == ["one"]
        usage = journal.usage()
        assert (usage.answers, usage.tokens, usage.usd) == (1, 15, 0.5)
    with pytest.raises(OutputError, match="another process"), Journal(tmp_path / "j.sqlite", {"run": 1}):
        Journal(tmp_path / "j.sqlite", {"run": 1})
    (tmp_path / "bad.sqlite").write_text("this is no database, and long enough to be looked at as one" * 20)
    with pytest.raises(DataError, match="not a journal"):
        Journal(tmp_path / "bad.sqlite", {})


def test_what_is_refused_for_its_content_is_left_out(demo_pairs: Any, tmp_path: Path) -> None:
    """Thirty of sixty pairs, in a row, that the provider will not judge (400): they are counted, the rest is kept."""
    refused = [(pair.question + pair.responses[0]).split("?")[:2] for pair in demo_pairs[0][:30]]

    def refuse(body: dict[str, Any], number: int) -> tuple[int, str] | None:
        return (400, "content policy") if any(one in str(body) and two in str(body) for one, two in refused) else None

    with chat_server(ChatServer(refuse)) as url:
        statistics = distill(demo_pairs[0][:60], config_for(url, retries=0), tmp_path)
    assert statistics["num_failed_pairs"] >= 30
    assert statistics["num_pairs"] + statistics["num_failed_pairs"] == 60
    assert statistics["num_pairs"] > 0


def test_answers_that_another_format_reads_are_told(demo_pairs: Any, tmp_path: Path) -> None:
    """With the key that reads them, which then does; where nothing is unread nothing is said."""
    with chat_server(ChatServer(text="Both are close, but my choice is [[A]]")) as url:
        first = distill(demo_pairs[0][:12], config_for(url, votes=2), tmp_path / "first")
        assert "ok" not in first["verdict_statuses"]
        hint = first["other_format"] or ""
        assert "answers without a verdict have one in the format double_brackets" in hint
        key, _, name = hint.split(": ")[-1].split()[0].partition("=")
        second = distill(demo_pairs[0][:12], config_for(url, votes=2, **{key: name}), tmp_path / "second")
    assert set(second["verdict_statuses"]) == {"ok"}
    assert second["other_format"] is None
