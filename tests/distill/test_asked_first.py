"""A request is in the journal before it is sent, has a seed of its own, and what a failure costs is in the budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from rewardlab.distill.pipeline import distill
from rewardlab.errors import EndpointError
from rewardlab.types import Choice
from rewardlab.verdicts.parse import format_verdict
from tests.support.distillation import calls_of, config_for
from tests.support.servers import running

pytestmark = pytest.mark.slow


class Server:
    """Keeps the seeds of its requests, how many the journal had of them when each came, and the tokens that it bills."""

    def __init__(self, journal: Path, reason: str = "stop") -> None:
        self.journal, self.reason = journal, reason
        self.seeds: list[int] = []
        self.asked: list[int] = []
        self.app = Starlette(
            routes=[Route("/v1/chat/completions", self.chat, methods=["POST"]), Route("/v1/models", self.models)]
        )

    @property
    def tokens(self) -> int:
        return 150 * len(self.seeds)

    async def models(self, request: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": []})

    async def chat(self, request: Request) -> JSONResponse:
        self.seeds.append((await request.json())["seed"])
        self.asked.append(sum(call["asked"] for call in calls_of(self.journal)))
        text = format_verdict(Choice.FIRST, "so") if self.reason == "stop" else None
        said = {"index": 0, "finish_reason": self.reason, "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
        head = {"id": "x", "object": "chat.completion", "created": 0, "model": "m"}
        return JSONResponse({**head, "choices": [said], "usage": usage})


def test_each_request_is_written_before_it_is_sent(demo_pairs: Any, tmp_path: Path) -> None:
    """When it arrives the journal has at least as many as have arrived; no two have the same seed."""
    server = Server(tmp_path / "out" / "journal.sqlite")
    with running(server.app) as url:
        distill(demo_pairs[0][:12], config_for(f"{url}/v1", concurrency=4), tmp_path / "out")
    assert all(asked >= number for number, asked in enumerate(server.asked, start=1))
    assert len(set(server.seeds)) == len(server.seeds) == sum(call["asked"] for call in calls_of(server.journal)) >= 12


def test_a_budget_counts_what_is_of_no_use(demo_pairs: Any, tmp_path: Path) -> None:
    """Every answer is filtered, and billed: the run ends within its tokens by the server's own account."""
    server = Server(tmp_path / "out" / "journal.sqlite", "content_filter")
    with running(server.app) as url:
        config = config_for(f"{url}/v1", concurrency=4, max_tokens=60, budget={"tokens": 2000})
        with pytest.raises(EndpointError, match="budget"):
            distill(demo_pairs[0][:60], config, tmp_path / "out")
    assert 0 < server.tokens <= 2000
