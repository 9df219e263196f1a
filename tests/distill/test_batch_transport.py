"""The teacher asked by the batch API of a real server: rounds, loss, expiry, kills, a batch whose creation was not answered."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from rewardlab.config import DistillConfig
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.demo.server import TeacherConfig, build_demo_app
from rewardlab.distill.pipeline import distill
from rewardlab.errors import ConfigError, EndpointError, OutputError
from rewardlab.samplers.openai_batch import BatchClient
from rewardlab.types import PreferencePair
from tests.support.batch_server import BatchServer
from tests.support.distillation import calls_of, config_for
from tests.support.openai_server import ChatServer
from tests.support.servers import running


@pytest.fixture
def batch_server(demo_pairs: Any) -> BatchServer:
    return BatchServer(build_demo_app(demo_pairs[1], TeacherConfig()))


def batched(url: str, **changes: Any) -> Any:
    values = {"transport": "batch", "poll_s": 0.05, "prices": {"prompt": 1.0, "completion": 4.0}}
    chat = {name: DistillConfig.model_fields[name].default for name in ("deadline_s", "concurrency")}  # no batch reads them
    return config_for(url, **(values | chat | changes))


def test_batches_give_the_set_that_chats_give(
    demo_pairs: Any, demo_server: Any, batch_server: BatchServer, tmp_path: Path
) -> None:
    """Seven batches and more in three rounds, some answers lost: the same pairs, the same texts, each request paid once."""
    pairs = demo_pairs[0][:60]
    batch_server.lost = 0.1
    with running(batch_server.build()) as url:
        statistics = distill(pairs, batched(f"{url}/v1", batch_requests=10), tmp_path / "batch")
    distill(pairs, config_for(demo_server()), tmp_path / "chat")
    assert read_pairs(tmp_path / "batch" / "distilled.parquet") == read_pairs(tmp_path / "chat" / "distilled.parquet")
    assert len(batch_server.batches) >= 9
    assert set(batch_server.asked.values()) == {1}
    billed = batch_server.billed
    assert (statistics["prompt_tokens"], statistics["completion_tokens"]) == (
        billed["prompt_tokens"],
        billed["completion_tokens"],
    )
    assert statistics["cost_usd"] == pytest.approx((billed["prompt_tokens"] + 4 * billed["completion_tokens"]) / 1e6, abs=1e-6)
    assert statistics["num_failed_requests"] > 0
    assert not list((tmp_path / "batch" / "batches").iterdir())


def test_expired_batches_are_asked_again(demo_pairs: Any, batch_server: BatchServer, tmp_path: Path) -> None:
    """A third of the answers never comes, and the batch says expired."""
    batch_server.expired = 0.3
    with running(batch_server.build()) as url:
        statistics = distill(demo_pairs[0][:20], batched(f"{url}/v1"), tmp_path)
    assert (statistics["num_pairs"], statistics["num_failed_pairs"]) == (20, 0)
    assert set(batch_server.asked.values()) == {1}


def test_a_provider_that_answers_nothing(demo_pairs: Any, batch_server: BatchServer, tmp_path: Path) -> None:
    """A whole round without an answer ends the run, and says what was heard."""
    batch_server.lost = 1.0
    with running(batch_server.build()) as url, pytest.raises(EndpointError, match=r"not one pair was answered.*lost"):
        distill(demo_pairs[0][:5], batched(f"{url}/v1"), tmp_path)


def test_a_refused_batch(demo_pairs: Any, batch_server: BatchServer, tmp_path: Path) -> None:
    """Said with the provider's reason; a smaller one continues."""
    batch_server.refuse = 8
    with running(batch_server.build()) as url:
        with pytest.raises(EndpointError, match=r"too many requests.*batch_requests"):
            distill(demo_pairs[0][:10], batched(f"{url}/v1"), tmp_path)
        statistics = distill(demo_pairs[0][:10], batched(f"{url}/v1", batch_requests=5), tmp_path)
    assert statistics["num_pairs"] == 10


def test_a_batch_whose_creation_was_not_answered_is_found(demo_pairs: Any, batch_server: BatchServer, tmp_path: Path) -> None:
    """The provider made it, we did not hear of it: it is looked for by its name, at once or by the next run, and paid once."""
    batch_server.crash_on_create, batch_server.crash_on_list = 2, 1
    with running(batch_server.build()) as url:
        with pytest.raises(EndpointError, match="batch API fails"):
            distill(demo_pairs[0][:10], batched(f"{url}/v1"), tmp_path)
        with pytest.raises(ConfigError, match="paid twice"):
            distill(demo_pairs[0][:10], config_for(f"{url}/v1"), tmp_path)
        statistics = distill(demo_pairs[0][:10], batched(f"{url}/v1"), tmp_path)
    assert statistics["num_pairs"] == 10
    assert set(batch_server.asked.values()) == {1}


def test_a_text_may_hold_any_separator(demo_pairs: Any, batch_server: BatchServer, tmp_path: Path) -> None:
    """U+2028 ends a line for some, and is a character of a judgment."""
    batch_server.separator = "\u2028\u0085"
    with running(batch_server.build()) as url:
        distill(demo_pairs[0][:6], batched(f"{url}/v1"), tmp_path)
    kept = [pair.judgment for pair in read_pairs(tmp_path / "distilled.parquet") if pair.judgment]
    assert kept
    assert all("\u2028\u0085</think>" in text for text in kept)


RUN = """
import sys
from pathlib import Path
from rewardlab.config import DistillConfig
from rewardlab.data.pairs import PairSet
from rewardlab.distill.pipeline import distill
config = DistillConfig(
    model="demo-teacher", base_url=sys.argv[1], template="plain", transport="batch", poll_s=0.05, batch_requests=7
)
distill(PairSet(Path(sys.argv[2])), config, Path(sys.argv[3]))
"""


@pytest.mark.nightly
def test_killed_while_batches_are_away(demo_pairs: Any, batch_server: BatchServer, tmp_path: Path) -> None:
    """kill -9 at three moments: every request is answered and paid once."""
    batch_server.delay_s = 0.5
    write_parquet(demo_pairs[0][:40], tmp_path / "pairs.parquet")
    with running(batch_server.build()) as url:
        command = [sys.executable, "-c", RUN, f"{url}/v1", str(tmp_path / "pairs.parquet"), str(tmp_path / "out")]
        for wanted in (1, 4, 9):
            run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while run.poll() is None and len(batch_server.batches) < wanted:
                time.sleep(0.005)
            assert run.poll() is None, "finished before it was killed"
            run.kill()
            run.wait()
        subprocess.run(command, check=True, capture_output=True)
    assert len(read_pairs(tmp_path / "out" / "distilled.parquet")) == 40
    assert set(batch_server.asked.values()) == {1}
    assert all(call["finish"] == "stop" for call in calls_of(tmp_path / "out" / "journal.sqlite"))


def test_the_budget_holds_for_batches(demo_pairs: Any, batch_server: BatchServer, tmp_path: Path) -> None:
    """A pilot first; then as many as the budget bears: never above it, and more than half of it used."""
    with running(batch_server.build()) as url:
        whole = distill(demo_pairs[0], batched(f"{url}/v1"), tmp_path / "whole")
        limit = 0.5 * whole["cost_usd"]
        part = distill(demo_pairs[0], batched(f"{url}/v1", budget={"usd": limit}, max_tokens=60), tmp_path / "part")
        again = distill(demo_pairs[0], batched(f"{url}/v1", budget={"usd": limit}, max_tokens=60), tmp_path / "part")
    assert part["stopped_by_budget"]
    assert (again["stopped_by_budget"], again["cost_usd"], again["num_pairs"]) == (True, part["cost_usd"], part["num_pairs"])
    assert 0.5 * limit < part["cost_usd"] <= limit


PAIRS = [PreferencePair(f"p{number}", f"q{number}?", ("a", "b"), 0) for number in range(60)]


class Filter(ChatServer):
    """Bills every answer, and keeps back all but each third one."""

    async def _chat(self, body: dict[str, Any]) -> Response:
        answer = json.loads((await super()._chat(body)).body)
        if self.answers % 3:
            answer["choices"][0]["finish_reason"] = "content_filter"
        return JSONResponse(answer)


def chats(server: ChatServer) -> Starlette:
    return Starlette(routes=[Route("/v1/chat/completions", server.chat, methods=["POST"])])


def usd(server: BatchServer) -> float:
    """What was billed, at the prices of :func:`batched`."""
    return (server.billed["prompt_tokens"] + 4 * server.billed["completion_tokens"]) / 1e6


def test_failures_that_are_billed_are_of_the_budget(tmp_path: Path) -> None:
    """60 pairs at $0.005 a request, two thirds of which a filter keeps back: $0.30 is never passed, and most of it used."""
    server = BatchServer(chats(Filter(usage={"prompt_tokens": 1000, "completion_tokens": 1000, "total_tokens": 2000})))
    with running(server.build()) as url:
        config = batched(f"{url}/v1", max_tokens=1000, max_attempts=1, batch_requests=30, budget={"usd": 0.30})
        statistics = distill(PAIRS, config, tmp_path)
    assert statistics["stopped_by_budget"]
    assert statistics["cost_usd"] == pytest.approx(usd(server))
    assert 0.15 < usd(server) <= 0.30


class CutOff(BatchServer):
    """The first two downloads end in half a line."""

    downloads = 0

    async def _content(self, request: Request) -> Response:
        self.downloads += 1
        text = self.files[request.path_params["name"]].decode()
        return PlainTextResponse(text + '{"custom_id": "0-' if self.downloads <= 2 else text)


def test_what_is_collected_again_is_paid_once(tmp_path: Path) -> None:
    """Nothing of a batch is in the journal before all of it is: failures are not counted once more."""
    server = CutOff(chats(Filter()))
    with running(server.build()) as url:
        config = batched(f"{url}/v1", max_attempts=1)
        for _ in range(2):
            with pytest.raises(EndpointError, match="answered unknown requests"):
                distill(PAIRS[:20], config, tmp_path)
            assert all(call["failures"] == 0 and call["finish"] is None for call in calls_of(tmp_path / "journal.sqlite"))
        statistics = distill(PAIRS[:20], config, tmp_path)
    assert statistics["cost_usd"] == pytest.approx(usd(server))
    assert statistics["num_requests"] == sum(server.asked.values())
    assert statistics["num_failed_requests"] == sum(server.asked.values()) - statistics["num_pairs"]


@pytest.mark.parametrize(("before", "after"), [("queued", "completed"), ("IN_PROGRESS", "COMPLETED"), ("paused", "Completed")])
def test_a_status_of_a_providers_own_is_no_end(before: str, after: str, batch_server: BatchServer, tmp_path: Path) -> None:
    """It is waited for, in whatever letters, and nothing is sent twice."""

    async def look(request: Request) -> Response:
        batch = batch_server.batches[request.path_params["name"]]
        return JSONResponse(batch | {"status": before if batch["status"] == "in_progress" else after})

    batch_server.app, batch_server._look = chats(ChatServer()), look  # type: ignore[method-assign]
    with running(batch_server.build()) as url:
        assert distill(PAIRS[:10], batched(f"{url}/v1", max_attempts=1), tmp_path)["num_failed_requests"] == 0
    assert (len(batch_server.batches), set(batch_server.asked.values())) == (1, {1})


def test_a_status_that_is_none(batch_server: BatchServer, tmp_path: Path) -> None:
    """It is said, and the batch is still away."""
    statuses = [{"status": None}]  # of the first look

    async def look(request: Request) -> Response:
        return JSONResponse(batch_server.batches[request.path_params["name"]] | (statuses.pop() if statuses else {}))

    batch_server.app, batch_server._look = chats(ChatServer()), look  # type: ignore[method-assign]
    with running(batch_server.build()) as url:
        with pytest.raises(EndpointError, match="batch batch_0 has the status None; expected"):
            distill(PAIRS[:5], batched(f"{url}/v1", max_attempts=1), tmp_path)
        assert distill(PAIRS[:5], batched(f"{url}/v1", max_attempts=1), tmp_path)["num_pairs"] == 5
    assert len(batch_server.batches) == 1


NO_API = [
    (HTMLResponse("<html>hello</html>"), "<html>hello"),
    (JSONResponse({"error": "Unexpected endpoint"}), "Unexpected endpoint"),
    (JSONResponse({"id": 7}), "id=7"),
]


def always(response: Response) -> Starlette:
    async def answer(request: Request) -> Response:
        return response

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])


@pytest.mark.parametrize(("response", "words"), NO_API)
def test_what_is_no_batch_api(response: Response, words: str, tmp_path: Path) -> None:
    """Said with the words of what answers there, and with status 200."""
    said = f"does not answer like a batch API.*{words}.*expected as base_url"
    with running(always(response)) as url, pytest.raises(EndpointError, match=said):
        distill(PAIRS[:3], batched(f"{url}/v1"), tmp_path)


@pytest.mark.parametrize("response", [response for response, _ in NO_API])
def test_a_list_that_is_none_holds_no_batch(response: Response) -> None:
    """A batch that is not in it may be away all the same, and would be paid twice."""

    async def find(url: str) -> None:
        async with BatchClient(f"{url}/v1") as client:
            await client.find("a")

    with running(always(response)) as url, pytest.raises(EndpointError, match="batch API"):
        asyncio.run(find(url))


def test_no_room_for_the_file_of_requests(batch_server: BatchServer, tmp_path: Path) -> None:
    """Said with the cure; the same command continues."""
    batch_server.app = chats(ChatServer())
    pairs = [PreferencePair(f"p{number}", "q" * 20_000, ("a", "b"), 0) for number in range(60)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with running(batch_server.build()) as url:
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, limits[1]))
        try:
            with pytest.raises(
                OutputError, match=r"batches/\.partial: cannot be written .*make room and run the same command again"
            ):
                distill(pairs, batched(f"{url}/v1", max_attempts=1), tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert distill(pairs, batched(f"{url}/v1", max_attempts=1), tmp_path)["num_pairs"] == 60
    assert set(batch_server.asked.values()) == {1}
