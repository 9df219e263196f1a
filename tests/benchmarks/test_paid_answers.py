"""An answer that was paid for is on disk, whoever gave it, when the endpoint refuses in the middle; none is asked for again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.base import PARTIAL_VOTES, VOTES
from rewardlab.benchmarks.report_model import Report
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.config.data import Budget, Prices
from rewardlab.data.candidates import read_candidates
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import EndpointError
from rewardlab.judging.asking import PairRequest, ask_missing, vote_places
from rewardlab.judging.best_of_n import MATCHES, PARTIAL_MATCHES, run_ranking
from rewardlab.judging.engines import open_model_judge
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.panel import PanelJudge
from rewardlab.judging.served import ServedJudge
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.types import BOTH_ORDERS, Order, PreferencePair
from tests.support.judge_servers import ANSWERS, PLAIN
from tests.support.openai_server import ChatServer, chat_server
from tests.support.scripted_judge import QUESTION
from tests.support.servers import running

WIDTH = 4  # requests at a time
FLIGHT = 2 * WIDTH  # what may be in flight at an end, and is lost


@pytest.fixture
def data(demo_pairs: Any, tmp_path: Path) -> Path:
    write_parquet(demo_pairs[0][:24], tmp_path / "pairs.parquet")
    return tmp_path / "pairs.parquet"


def bench(judge: str, data: Path, out: Path, **changes: Any) -> Report:
    limits: dict[str, Any] = {} if judge.startswith("http") else {"concurrency": WIDTH, "deadline_s": 30.0}
    values: dict[str, Any] = {"controls": (), **limits, **changes}
    return run_bench(bench_settings("pairs", data, judge, **values), out)[0]


def stored(folder: Path) -> dict[int, list[Any]]:
    """The last line of each row."""
    lines = [json.loads(line) for line in (folder / VOTES).read_text().splitlines()[1:]]
    return {line["row"]: line["votes"] for line in lines}


def num_kept(*logs: Path) -> int:
    """The number of answered votes in logs, each counted once."""
    kept = set()
    for log in logs:
        for line in [json.loads(line) for line in log.read_text().splitlines()[1:]] if log.exists() else ():
            key = tuple(line[name] for name in ("pass", "row", "first", "second", "nth") if name in line)
            votes = enumerate(line["votes"]) if "votes" in line else [(line["place"], line["vote"])]
            kept |= {(key, place) for place, vote in votes if not vote["error"]}
    return len(kept)


def refuse_from(number: int) -> Any:
    return lambda body, at: (401, "the key has expired") if at > number else None


@pytest.mark.nightly
def test_votes_in_turns(data: Path, tmp_path: Path) -> None:
    """Of --stop-error: the same votes as of a run that nothing broke off, also where single ones failed before."""
    server, how = ChatServer(by_seed=True), {"votes": 8, "stop_error": 0.05}
    with chat_server(server) as url:
        judge = f"openai:m@{url}"
        bench(judge, data, tmp_path / "whole", **how)
        total = len(server.bodies)
        server.refuse, server.answers = refuse_from(total + 150), 0
        with pytest.raises(EndpointError, match="the key has expired"):
            bench(judge, data, tmp_path / "parts", **how)
        kept = num_kept(tmp_path / "parts" / VOTES, tmp_path / "parts" / PARTIAL_VOTES)
        assert server.answers - FLIGHT <= kept <= server.answers == 150
        begun = len(server.bodies)
        server.refuse = lambda body, at: (400, "no") if at in (begun + 10, begun + 11) else None
        assert bench(judge, data, tmp_path / "parts", max_failed=1.0, **how).scores.statuses["error"] == 2
        server.refuse, again = refuse_from(10**9), len(server.bodies)
        bench(judge, data, tmp_path / "parts", **how)
        assert len(server.bodies) - again <= 2 * 16
    assert stored(tmp_path / "parts") == stored(tmp_path / "whole")
    assert not (tmp_path / "parts" / PARTIAL_VOTES).exists()


def test_votes_in_turns_within_a_budget(data: Path, tmp_path: Path) -> None:
    server = ChatServer(by_seed=True)
    how = {"votes": 8, "stop_error": 0.05, "prices": Prices(prompt=1.0, completion=1.0), "max_tokens": 16}
    with chat_server(server) as url:
        with pytest.raises(EndpointError, match=r"the budget is spent: .* votes of the pass 'votes'"):
            bench(f"openai:m@{url}", data, tmp_path / "out", budget=Budget(usd=None, tokens=11_000), **how)
        spent = len(server.bodies)
        assert 80 <= spent <= 100
        report = bench(f"openai:m@{url}", data, tmp_path / "out", budget=Budget(usd=None, tokens=10**6), **how)
    assert report.cost is not None
    assert report.cost.requests == len(server.bodies) == report.scores.num_votes_total


def test_a_panel_whose_member_begins_to_refuse(data: Path, tmp_path: Path) -> None:
    """What the others answered until then is kept as well."""
    good, bad = ChatServer(by_seed=True), ChatServer(by_seed=True, refuse=refuse_from(50))
    with chat_server(good) as one, chat_server(bad) as other:
        judge = f"panel:openai:m@{one},openai:m@{other}"
        with pytest.raises(EndpointError, match=r"openai:m@\S+: 20 requests in a row failed.*the key has expired"):
            bench(judge, data, tmp_path / "parts", votes=3)
        kept = num_kept(tmp_path / "parts" / VOTES, tmp_path / "parts" / PARTIAL_VOTES)
        assert good.answers + bad.answers - 2 * FLIGHT <= kept
        assert bad.answers == 50
        bad.refuse = lambda body, at: None
        asked = len(good.bodies) + len(bad.bodies)
        report = bench(judge, data, tmp_path / "parts", votes=3)
        assert len(good.bodies) + len(bad.bodies) - asked == 2 * 3 * 2 * 24 - kept
        bench(judge, data, tmp_path / "whole", votes=3)
    assert stored(tmp_path / "parts") == stored(tmp_path / "whole")
    assert report.panel is not None
    assert [member.failed_votes for member in report.panel.members] == [0, 0]
    assert [vote["member"] for vote in stored(tmp_path / "parts")[0]] == [f"openai:m@{one}"] * 6 + [f"openai:m@{other}"] * 6


class Gatekeeper:
    """Stands before a served judge: counts its judgments, and refuses the key from one on."""

    def __init__(self, app: Any) -> None:
        self.app, self.judgments, self.refuse_from = app, 0, 10**9

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/v1/judge":
            self.judgments += 1
            if self.judgments > self.refuse_from:
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b'{"error": "the key has expired"}'})
                return
        await self.app(scope, receive, send)


@contextmanager
def gatekeeper() -> Iterator[tuple[Gatekeeper, str]]:
    keeper = Gatekeeper(create_app(GenerativeJudge(ScriptedSampler(ANSWERS["greater"], "greater"), PLAIN)))
    with running(keeper) as url:  # type: ignore[arg-type]
        yield keeper, url


def numbers(count: int) -> list[PreferencePair]:
    return [PreferencePair(f"p{n}", QUESTION, (f"I say {n}.", f"I say {n + 1}."), 1) for n in range(count)]


@pytest.mark.nightly
def test_a_served_judge_that_begins_to_refuse(tmp_path: Path) -> None:
    """All pairs that it has judged until then are there; each costs one request, with all its votes. Beside another member that
    goes on answering, its answers as well."""
    data = tmp_path / "numbers.parquet"
    write_parquet(numbers(100), data)
    other = ChatServer(by_seed=True)
    with gatekeeper() as (keeper, url), chat_server(other) as chat:
        for judge in (url, f"panel:{url},openai:m@{chat}"):
            parts, whole = tmp_path / f"parts {judge[:5]}", tmp_path / f"whole {judge[:5]}"
            keeper.refuse_from, keeper.judgments = 25, 0
            with pytest.raises(EndpointError, match="the key has expired"):
                bench(judge, data, parts, votes=3)
            assert num_kept(parts / VOTES, parts / PARTIAL_VOTES) == 25 * 6 + other.answers
            keeper.refuse_from, keeper.judgments = 10**9, 0
            bench(judge, data, parts, votes=3)
            assert keeper.judgments == 75
            assert other.answers == len(other.bodies) == (600 if "panel" in judge else 0)
            report = bench(judge, data, whole, votes=3)
            assert stored(parts) == stored(whole)
            assert report.scores.accuracy.micro == 1 or "panel" in judge


@pytest.mark.parametrize(
    ("answered", "calls"),
    [
        (set(), [("both", 3, 7)]),
        ({0, 3}, [("both", 2, 8)]),
        ({0, 1, 2}, [("swapped", 3, 7)]),
        ({1, 3, 4, 5}, [("given", 1, 7), ("given", 1, 9)]),
        ({2, 3}, [("given", 2, 7), ("swapped", 2, 8)]),
    ],
)
def test_a_served_judge_is_asked_for_what_is_missing(
    answered: set[int], calls: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In as few requests as that takes: (orders, votes, seed), draw n by the seed plus n; and all of it comes."""
    asked: list[Any] = []
    with gatekeeper() as (_, url):
        judge = ServedJudge(url)
        real = judge._try

        async def noted(client: Any, body: Any, seconds: float) -> Any:
            asked.append((body["orders"], body["votes"], body["seed"]))
            return await real(client, body, seconds)

        monkeypatch.setattr(judge, "_try", noted)
        request = PairRequest(numbers(1)[0], BOTH_ORDERS, 7)
        came = [vote for batch in ask_missing(judge, [request], [answered], 3) for vote in batch.votes]
    assert sorted(asked) == sorted(calls)
    assert {place for _, place, _ in came} == set(range(6)) - answered
    places = vote_places(judge, BOTH_ORDERS, 3)
    assert all(vote.order is places[place][1] for _, place, vote in came)


def test_members_of_every_kind_answer_as_in_one_call() -> None:
    """An endpoint, a served judge and one that computes here: each vote at its place, with the name of its member."""
    pairs = [PairRequest(pair, (Order.SWAPPED,) if n % 3 else BOTH_ORDERS, 5 + n // 4) for n, pair in enumerate(numbers(10))]
    with gatekeeper() as (_, served), chat_server(ChatServer(by_seed=True)) as chat:
        here = GenerativeJudge(ScriptedSampler(ANSWERS["smaller"], "here"), PLAIN)
        panel = PanelJudge([here, open_model_judge(f"openai:m@{chat}"), open_model_judge(served)])
        came: dict[int, dict[int, Any]] = {n: {} for n in range(len(pairs))}
        for batch, _ in ask_missing(panel, pairs, [set()] * len(pairs), 2):
            for n, place, vote in batch:
                assert place not in came[n]
                came[n][place] = vote
        for seed in {pair.seed for pair in pairs}:
            chunk = [n for n, pair in enumerate(pairs) if pair.seed == seed]
            orders = [pairs[n].orders for n in chunk]
            judgments = panel.compare_many([pairs[n].pair for n in chunk], orders=orders, num_votes=2, seed=seed)
            for n, judgment in zip(chunk, judgments, strict=True):
                assert tuple(came[n][place] for place in range(len(came[n]))) == judgment.votes


@pytest.mark.nightly
def test_a_ranking_whose_endpoint_begins_to_refuse(tmp_path: Path) -> None:
    """In the middle of a round: what was answered of it is there, and of a match that lacks a vote that vote alone is asked."""
    rows = [{"question": f"Q{n}", "responses": ["a", "b", "c", "d"]} for n in range(8)]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prompts = read_candidates(tmp_path / "c.jsonl")
    how: dict[str, Any] = {"plan": "round_robin", "budget": None, "num_votes": 3, "seed": 0}
    server = ChatServer(by_seed=True)

    def rank(out: str) -> dict[str, Any]:
        return run_ranking(open_model_judge(f"openai:m@{url}", concurrency=WIDTH), prompts, tmp_path / out, **how)

    with chat_server(server) as url:
        server.refuse = refuse_from(121)
        with pytest.raises(EndpointError, match="the key has expired"):
            rank("parts")
        kept = num_kept(tmp_path / "parts" / MATCHES, tmp_path / "parts" / PARTIAL_MATCHES)
        assert 121 - FLIGHT <= kept <= server.answers == 121
        begun = len(server.bodies)
        server.refuse = lambda body, at: (400, "no") if at - begun in (5, 50, 51) else None
        assert rank("parts")["statuses"]["error"] == 3
        server.refuse = refuse_from(10**9)
        asked = len(server.bodies)
        assert asked - begun == 288 - kept
        mended = rank("parts")
        assert len(server.bodies) - asked == 3
        assert mended == rank("whole")
    assert not (tmp_path / "parts" / PARTIAL_MATCHES).exists()
