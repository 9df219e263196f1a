"""A judge that `rewardlab serve` runs elsewhere, against a real one: the same judgments, and failures that say so."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import rewardlab
from rewardlab.cli import main
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError, EndpointError
from rewardlab.judging.engines import open_generative_judge, open_model_judge
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.served import ServedJudge
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.auth import Key
from rewardlab.types import BOTH_ORDERS, Order, Outcome, PreferencePair
from tests.support.images import png
from tests.support.judge_servers import ANSWERS, PLAIN, judge_servers
from tests.support.scripted_judge import QUESTION
from tests.support.servers import running
from tests.support.shell import run_main

PAIRS = [
    PreferencePair(f"p{n}", QUESTION, (f"I say {n}.", f"I say {(n * 3) % 7}."), int(n < (n * 3) % 7), (png(),))
    for n in (1, 2, 3, 4, 5)
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with judge_servers("greater") as [address]:
        yield address


def test_it_judges_as_the_judge_it_serves(url: str) -> None:
    """Votes, outcomes and shares, in both orders and in one; by its address with or without /v1."""
    local = GenerativeJudge(ScriptedSampler(ANSWERS["greater"]), PLAIN)
    served = open_model_judge(url)
    served.check()
    for orders in (BOTH_ORDERS, (Order.SWAPPED,)):
        how: dict[str, Any] = {"orders": [orders] * len(PAIRS), "num_votes": 2, "seed": 3}
        mine, theirs = local.compare_many(PAIRS, **how), served.compare_many(PAIRS, **how)
        assert [(j.pair_id, j.outcome, j.share_0) for j in mine] == [(j.pair_id, j.outcome, j.share_0) for j in theirs]
        assert [[(v.order, v.winner, v.completion.text) for v in j.votes] for j in mine] == [
            [(v.order, v.winner, v.completion.text) for v in j.votes] for j in theirs
        ]
    assert ServedJudge(f"{url}/v1/").compare(PAIRS[0]).outcome is Outcome.RESPONSE_0 or PAIRS[0].preferred == 1
    known = httpx.get(f"{url}/health").json()["judge_hash"]
    assert served.identity == {"judge": url, "weights": known, "template": PLAIN.hash}


def test_a_judge_that_was_replaced() -> None:
    """Judgments of one run are of one judge: where the server has another one, the run ends, and its log is not continued."""
    known, name = "0123", "hf:one"

    async def judge(request: Any) -> Response:
        row = {"status": "ok", "winner": 0, "text": "x", "num_tokens": 1}
        votes = [{**row, "order": order} for order in ("given", "swapped")]
        return JSONResponse({"votes": votes, "judge": name, "template_hash": "t", "judge_hash": known})

    async def health(request: Any) -> Response:
        return JSONResponse({"judge": name, "template_hash": "t", "judge_hash": known})

    routes = [Route("/v1/judge", judge, methods=["POST"]), Route("/health", health), Route("/v1/status", health)]
    with running(Starlette(routes=routes)) as address:
        served = ServedJudge(address)
        before = served.identity
        assert served.compare(PAIRS[0]).outcome is Outcome.RESPONSE_0
        name = "hf:elsewhere"
        assert served.compare(PAIRS[0]).outcome is Outcome.RESPONSE_0  # the same judge, of another folder
        known = "4567"
        with pytest.raises(EndpointError, match=r"replaced its judge \(hf:one 0123 before, hf:elsewhere 4567 now\)"):
            served.compare(PAIRS[1])
        assert served.identity["weights"] == "4567"
        assert before["weights"] == "0123"


def test_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the environment or given; a key that is refused ends everything, in a sentence."""
    with judge_servers("greater", keys=[Key.of("secret")]) as [address]:
        monkeypatch.delenv("REWARDLAB_API_KEY", raising=False)
        judge = rewardlab.open_judge(address)
        with pytest.raises(EndpointError, match="the key was refused; set REWARDLAB_API_KEY"):
            judge.check()
        with pytest.raises(EndpointError, match="HTTP 401"):
            judge.compare(QUESTION, ["1", "2"])
        monkeypatch.setenv("OPENAI_API_KEY", "secret")  # never sent to a served judge
        with pytest.raises(EndpointError, match="HTTP 401"):
            rewardlab.open_judge(address).compare(QUESTION, ["1", "2"])
        assert rewardlab.open_judge(address, api_key="secret").compare(QUESTION, ["1", "2"]).winner == 1
        monkeypatch.setenv("REWARDLAB_API_KEY", "secret")
        judge = rewardlab.open_judge(address)
        judge.check()
        assert judge.compare(QUESTION, ["1", "2"]).winner == 1
        assert judge.rewards(QUESTION, ["1", "2", "3"]) == [-1.0, 0.0, 1.0]


def test_a_pair_that_fails_says_why(url: str) -> None:
    """The server's sentence stands with each vote; the others are judged."""
    pairs = [PAIRS[0], replace(PAIRS[1], question="x" * 100_001)]
    good, bad = rewardlab.open_judge(url).compare_many(pairs, votes=3)
    assert good.winner == PAIRS[0].preferred
    assert bad.failed
    assert bad.invalid == {"error": 6}
    assert bad.votes[0].error.startswith("HTTP 422: question: ")
    with pytest.raises(EndpointError, match="no vote was answered: HTTP 422: votes"):
        rewardlab.open_judge(url).compare(QUESTION, ["1", "2"], votes=65)
    texts, images = [f"{text}\ufffc" for text in PAIRS[0].responses], ((png(),), (png(),))
    [shown] = rewardlab.open_judge(url).compare_many(
        [replace(PAIRS[0], responses=(texts[0], texts[1]), response_images=images)]
    )
    assert shown.winner == PAIRS[0].preferred


def answers(*bodies: Any) -> Any:
    """An app whose /v1/judge gives these in turn: a status, or a body."""
    given = list(bodies)

    async def judge(request: Any) -> Response:
        body = given.pop(0) if len(given) > 1 else given[0]
        if isinstance(body, int):
            return JSONResponse({"error": "busy"}, body, {"Retry-After": "0.05"})
        return Response(body, media_type="application/json") if isinstance(body, str) else JSONResponse(body)

    return Starlette(routes=[Route("/v1/judge", judge, methods=["POST"])])


def votes(*, winner: Any = 0, status: str = "ok", orders: tuple[str, ...] = ("given", "swapped")) -> dict[str, Any]:
    row = {"status": status, "winner": winner, "text": "t", "num_tokens": 1, "p_first_shown": None, "error": ""}
    return {"votes": [{"order": order, **row} for order in orders], "judge": "hf:one", "judge_hash": "0123"}


@pytest.mark.parametrize(
    "body",
    [
        "not json",
        "[]",
        "{}",
        votes(orders=("given",)),
        votes(orders=("given", "given")),
        votes(winner=2),
        votes(winner=None),
        votes(winner=0, status="no_verdict"),
        votes(status="splendid"),
        {"votes": [{**row, "p_first_shown": 1.5} for row in votes()["votes"]]},
    ],
    ids=str,
)
def test_a_garbled_answer_is_a_failure(body: Any) -> None:
    """Votes that are missing, doubled or contradict themselves are no verdict."""
    with running(answers(body)) as address:
        judged = ServedJudge(address).compare(PAIRS[0])
    assert judged.outcome is Outcome.NO_VALID_VOTE
    assert judged.share_0 is None
    assert [vote.completion.error[:7] for vote in judged.votes] == ["garbled"] * 2


def test_probabilities_come_with_the_votes() -> None:
    """Of a served judge that weighs: both orders by their log-odds, whatever the number of winners."""
    body = votes(winner=0)
    body["votes"][0] |= {"p_first_shown": 0.8}
    body["votes"][1] |= {"p_first_shown": 0.3, "winner": 0}
    with running(answers(body)) as address:
        result = rewardlab.open_judge(address).compare(QUESTION, ["a", "b"])
    log_odds = (math.log(0.8 / 0.2) - math.log(0.3 / 0.7)) / 2
    assert result.share == pytest.approx(1 / (1 + math.exp(-log_odds)))
    assert [vote.probability for vote in result.votes] == pytest.approx([0.8, 0.7])


def test_a_busy_server_is_waited_for() -> None:
    """429 and 503 are tried again; a server that is down ends in a sentence within its time."""
    with running(answers(429, 503, 429, votes())) as address:
        assert ServedJudge(address).compare(PAIRS[0]).outcome is Outcome.RESPONSE_0
    with running(answers(429)) as address:
        assert "HTTP 429: busy" in ServedJudge(address, deadline_s=0.5).compare(PAIRS[0]).votes[0].completion.error
    nobody = ServedJudge("http://127.0.0.1:9", deadline_s=0.5)
    with pytest.raises(EndpointError, match="no response from a `rewardlab serve`"):
        nobody.check()
    assert "no connection" in nobody.compare(PAIRS[0]).votes[0].completion.error
    with running(answers(votes())) as address, pytest.raises(EndpointError, match="openai:MODEL@URL"):
        ServedJudge(address).check()  # it has no /health


def test_commands_take_it(url: str, tmp_path: Path) -> None:
    """judge, rank and bench run; what needs a sampler of its own does not."""
    done = run_main(main, "judge", "--judge", url, "--question", QUESTION, "--first", "1", "--second", "2")
    assert (done.returncode, "the second response is better" in done.stdout) == (0, True), done.stderr
    (tmp_path / "n.jsonl").write_text('{"question": "Which?", "responses": ["1", "3", "2"], "best": 1}\n')
    done = run_main(main, "rank", tmp_path / "n.jsonl", "--judge", url, "--out", tmp_path / "rank")
    assert (done.returncode, "best found: 100.0 %" in done.stdout) == (0, True), done.stderr
    write_parquet(PAIRS, tmp_path / "pairs.parquet")
    done = run_main(
        main, "bench", "run", "pairs", "--data", tmp_path / "pairs.parquet", "--judge", url, "--out", tmp_path / "bench"
    )
    assert (done.returncode, "| micro average | 100.0 [0.0, 100.0] | 5" in done.stdout) == (0, True), done.stdout + done.stderr
    assert "temperature, top p, most tokens: –, –, –" in (tmp_path / "bench" / "report.md").read_text()
    with pytest.raises(ConfigError, match="unknown judge"):
        open_generative_judge(url)


@pytest.mark.parametrize("url", ["http://h:x", "http://[::1", "https://127.0.0.1:99999", "http://", "http://h?a"])
def test_what_is_no_address(url: str) -> None:
    """A sentence, also as the address of an endpoint."""
    with pytest.raises(ConfigError, match=r"not an address; expected http://HOST:PORT"):
        ServedJudge(url)
    with pytest.raises(ConfigError, match=r"not an address|openai:MODEL@URL"):
        open_model_judge(f"openai:m@{url}")


def test_one_server_has_one_name() -> None:
    assert {ServedJudge(url).spec for url in ("http://h:80", "http://H/", "http://h/v1", "http://h/v1/")} == {"http://h"}
