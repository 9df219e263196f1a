"""What a run costs is what the server counted, and a budget is never exceeded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.report import facts
from rewardlab.benchmarks.report_model import Cost, Report
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import main
from rewardlab.config.data import NO_PRICES, Budget, Prices
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError, EndpointError
from rewardlab.judging.spec import judge_config
from rewardlab.prompts.verification import WRONG
from tests.support.openai_server import VERDICT, ChatServer, chat_server
from tests.support.shell import run_main

PRICES = Prices(prompt=2.0, cached_prompt=1.0, completion=8.0)
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110, "prompt_tokens_details": {"cached_tokens": 40}}
AN_ANSWER = (60 * 2.0 + 40 * 1.0 + 10 * 8.0) / 1e6


@pytest.fixture
def data(demo_pairs: Any, tmp_path: Path) -> Path:
    write_parquet(demo_pairs[0][:20], tmp_path / "pairs.parquet")
    return tmp_path / "pairs.parquet"


def bench(url: str, data: Path, out: Path, **changes: Any) -> Report:
    values: dict[str, Any] = {
        "controls": (),
        "concurrency": 8,
        "deadline_s": 30.0,
        "prices": PRICES,
        "max_tokens": 16,
        **changes,
    }
    return run_bench(bench_settings("pairs", data, f"openai:m@{url}", **values), out)[0]


def test_the_address_is_in_the_judge_of_a_report(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What serves the run later queries the endpoint that was measured, wherever OPENAI_BASE_URL points then."""
    with chat_server(ChatServer(usage=USAGE)) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        settings = bench_settings("pairs", data, "openai:m", controls=(), max_tokens=16, limit=2)
        report = run_bench(settings, tmp_path / "run")[0]
        monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
        served = judge_config(str(tmp_path / "run"))
        assert (served.judge, served.hash) == (f"openai:m@{url}", report.judge_config_hash)


def test_the_cost_is_the_servers(data: Path, tmp_path: Path) -> None:
    """Controls included, also of a run in parts with failures that were billed, and of one that is scored again."""
    server = ChatServer(usage=USAGE)
    with chat_server(server) as url:
        report = bench(url, data, tmp_path / "a", votes=3, controls=("blank",))
        assert report.cost == Cost(160, 16_000, 1_600, 6_400, pytest.approx(160 * AN_ANSWER))
        assert bench(url, data, tmp_path / "a", votes=3, controls=("blank",)).cost == report.cost
        assert ("cost", "$0.0384: 160 requests, 16,000 tokens of prompts and 1,600 of answers") in facts(report)
        assert Report.from_json(report.to_json()).cost == report.cost
        free = bench(url, data, tmp_path / "b", prices=NO_PRICES)
        assert free.cost == Cost(40, 4_000, 400, 1_600, None)
        server.refuse = lambda body, number: (400, "no") if number % 10 == 0 else None
        server.answers, asked = 0, len(server.bodies)
        bench(url, data, tmp_path / "c")
        server.refuse = lambda body, number: None
        again = bench(url, data, tmp_path / "c")
        assert again.cost is not None
        assert (again.cost.requests, again.cost.completion_tokens) == (len(server.bodies) - asked, 10 * server.answers)


def test_a_budget_is_not_exceeded(data: Path, tmp_path: Path) -> None:
    """The run ends with a sentence and no report, and one with more money goes on where it ended."""
    server = ChatServer(usage=USAGE, delay_s=0.002)
    with chat_server(server) as url:
        with pytest.raises(EndpointError, match=r"the budget is spent: \d+ of 40 votes.*raise it and run"):
            bench(url, data, tmp_path / "out", budget=Budget(usd=12 * AN_ANSWER, tokens=None))
        first = server.answers
        assert 8 <= first <= 12
        assert not (tmp_path / "out" / "report.json").exists()
        with pytest.raises(EndpointError, match="budget is spent"):
            bench(url, data, tmp_path / "out", budget=Budget(usd=None, tokens=2_000))
        assert server.answers <= 2_000 // 110
        report = bench(url, data, tmp_path / "out", budget=Budget(usd=1.0, tokens=None))
        assert len(server.bodies) == server.answers == 40
    assert report.cost is not None
    assert report.cost.usd == pytest.approx(40 * AN_ANSWER)


def test_from_the_command_line(data: Path, tmp_path: Path) -> None:
    server = ChatServer(usage=USAGE)
    with chat_server(server) as url:
        run = ["bench", "run", "pairs", "--data", data, "--judge", f"openai:m@{url}", "--controls", "", "max_tokens=1000"]
        run += ["--price", "2,1,8"]
        spent = run_main(main, *run, "--out", tmp_path / "a", "--budget", "0.0001usd")
        done = run_main(main, *run, "--out", tmp_path / "b", "--budget", "1usd")
        as_json = run_main(main, *run, "--out", tmp_path / "b", "--json", "--require", "accuracy.micro>=0")
    assert spent.returncode == 3
    assert "the budget is spent: 0 of 40 votes" in spent.stderr
    assert "40 requests, each of at most 1,000 tokens of answer: at most $0.32, prompts not counted" in done.stderr
    assert done.returncode == 0
    assert "cost: $0.0096: 40 requests" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(
        r"pairs: 50\.0 \[.*\] % of 20 pairs, invalid 0\.0 %, swap consistency 0\.0 %, cost \$0\.01 -> .*/b/report\.html", last
    )
    assert json.loads(as_json.stdout) == json.loads((tmp_path / "b" / "report.json").read_text())
    assert "accuracy" in as_json.stderr


def test_judgments_of_several_turns(data: Path, tmp_path: Path) -> None:
    """The most that they may cost counts every turn, the cost what all came to, and the budget holds for both."""
    server = ChatServer(usage=USAGE)
    server.verdict = lambda body: (VERDICT, WRONG, VERDICT)[len(body["messages"]) // 2]  # type: ignore[method-assign]
    with chat_server(server) as url:
        run = ["bench", "run", "pairs", "--data", data, "--judge", f"verify:openai:m@{url}", "--controls", ""]
        run += ["max_tokens=1000", "--price", "2,1,8", "--out", tmp_path / "a"]
        spent = run_main(main, *run, "--budget", f"{34 * 3 * AN_ANSWER + 0.0247}usd")
        asked = len(server.bodies)
        done = run_main(main, *run, "--budget", "1usd")
    assert spent.returncode == 3
    assert "the budget is spent" in spent.stderr
    assert 20 * 3 < asked <= 35 * 3
    assert "120 requests, each of at most 1,000 tokens of answer: at most $0.96, prompts not counted" in done.stderr
    assert len(server.bodies) == 40 * 3
    cost = json.loads((tmp_path / "a" / "report.json").read_text())["cost"]
    assert (cost["completion_tokens"], cost["usd"]) == (40 * 3 * 10, pytest.approx(40 * 3 * AN_ANSWER))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"budget": Budget(usd=1.0, tokens=None), "prices": NO_PRICES}, "needs --price"),
        ({"budget": Budget(usd=None, tokens=1), "judge": "baseline:first"}, "budgets are supported for openai: judges"),
        ({"budget": Budget(usd=None, tokens=1), "judge": "panel:demo,openai:m@http://127.0.0.1:9/v1"}, "leave out the budget"),
    ],
)
def test_budgets_that_cannot_be_kept(options: dict[str, Any], sentence: str, data: Path, tmp_path: Path) -> None:
    settings = {"judge": "openai:m@http://127.0.0.1:9/v1", "prices": PRICES, **options}
    with pytest.raises(ConfigError, match=sentence):
        run_bench(bench_settings("pairs", data, **settings), tmp_path / "out")


@pytest.mark.parametrize("text", ["3", "1,2,3,4", "a,b", "-1,2", "nan,1"])
def test_prices_that_are_none(text: str, data: Path, tmp_path: Path) -> None:
    ended = run_main(main, "bench", "run", "pairs", "--data", data, "--judge", "demo", "--out", tmp_path / "o", "--price", text)
    assert ended.returncode == 2
    assert "expected PROMPT,COMPLETION" in ended.stderr


def test_a_suite_has_one_budget(data: Path, tmp_path: Path) -> None:
    """Of all its benchmarks together; its table says what they came to."""
    entry = {"benchmark": "pairs", "data": data.name, "controls": [], "max_tokens": 16}
    (tmp_path / "suite.yaml").write_text(f"title: t\nbenchmarks: [{entry}, {dict(entry, votes=2)}]\n")
    server, out = ChatServer(usage=USAGE), tmp_path / "out"
    with chat_server(server) as url:
        run = ["bench", "suite", tmp_path / "suite.yaml", "--judge", f"openai:m@{url}", "--root", tmp_path, "--out", out]
        spent = run_main(main, *run, "--price", "2,1,8", "--budget", "6000tokens")
        assert spent.returncode == 3
        assert "the budget is spent" in spent.stderr
        assert 40 < server.answers <= 6_000 // 110
        assert (out / "pairs" / "report.json").exists()
        done = run_main(main, *run, "--price", "2,1,8", "--budget", "1usd")
    assert done.returncode == 0, done.stderr
    assert len(server.bodies) == 120
    assert f"- cost of all: ${120 * AN_ANSWER:.4f}: 120 requests" in done.stdout


def test_a_suite_that_goes_on_counts_what_came_after(data: Path, tmp_path: Path) -> None:
    """What failed in its first benchmark is asked again only with what the second has left of the budget."""
    entry = {"benchmark": "pairs", "data": data.name, "controls": [], "max_tokens": 16}
    (tmp_path / "suite.yaml").write_text(f"title: t\nbenchmarks: [{entry}, {dict(entry, votes=2)}]\n")
    server = ChatServer(usage=USAGE, refuse=lambda body, number: (400, "no") if number in (10, 20, 30, 40) else None)
    with chat_server(server) as url:
        run = ["bench", "suite", tmp_path / "suite.yaml", "--judge", f"openai:m@{url}", "--root", tmp_path]
        run += ["--out", tmp_path / "out", "--budget", "13000tokens"]
        failed = run_main(main, *run)
        assert (failed.returncode, server.answers) == (3, 116), failed.stderr
        assert (tmp_path / "out" / "suite.md").exists()
        spent = run_main(main, *run)
    assert spent.returncode == 3
    assert "the budget is spent" in spent.stderr
    assert 110 * server.answers <= 13_000


def test_a_first_request_counts_what_others_spent(data: Path, tmp_path: Path) -> None:
    """No prompt of this run is known yet; a budget that others have spent is spent."""
    server, limit = ChatServer(usage=USAGE), Budget(usd=None, tokens=10_000)
    settings: dict[str, Any] = {"controls": (), "budget": limit, "max_tokens": 16}
    with chat_server(server) as url, pytest.raises(EndpointError, match="the budget is spent: 0 of 40 votes"):
        run_bench(bench_settings("pairs", data, f"openai:m@{url}", spent=Cost(100, 9_000, 1_000), **settings), tmp_path / "out")
    assert server.bodies == []
