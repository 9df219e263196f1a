"""A local server that speaks the batch API (files, batches) over an app that speaks chat completions."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route


@dataclass
class BatchServer:
    """``lost``: share of requests that come back in the error file; ``expired``: share that comes back in none, the batch being
    expired; ``refuse``: batches of more requests than this fail. ``billed`` are the tokens of all answers it gave."""

    app: Any
    lost: float = 0.0
    expired: float = 0.0
    refuse: int = 50_000
    delay_s: float = 0.2
    crash_on_create: int = 0  # so many creations succeed without the answer reaching the client
    crash_on_list: int = 0
    separator: str = ""  # within every text, as it is, not escaped
    files: dict[str, bytes] = field(default_factory=dict)
    batches: dict[str, dict[str, Any]] = field(default_factory=dict)
    billed: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)  # requests by their messages

    def build(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/files", self._upload, methods=["POST"]),
                Route("/v1/files/{name}/content", self._content, methods=["GET"]),
                Route("/v1/batches", self._create, methods=["POST"]),
                Route("/v1/batches", self._list, methods=["GET"]),
                Route("/v1/batches/{name}", self._look, methods=["GET"]),
            ]
        )

    def _put(self, data: bytes) -> str:
        name = f"file-{len(self.files)}"
        self.files[name] = data
        return name

    async def _upload(self, request: Request) -> Response:
        form = await request.form()
        assert form["purpose"] == "batch"
        name = self._put(await form["file"].read())  # type: ignore[union-attr]
        await form.close()
        return JSONResponse({"id": name, "object": "file", "bytes": len(self.files[name]), "created_at": 0, "purpose": "batch"})

    async def _content(self, request: Request) -> Response:
        return PlainTextResponse(self.files[request.path_params["name"]])

    async def _create(self, request: Request) -> Response:
        body = await request.json()
        assert body["endpoint"] == "/v1/chat/completions"
        lines = self.files[body["input_file_id"]].splitlines()
        name = f"batch_{len(self.batches)}"
        self.batches[name] = {
            "id": name,
            "object": "batch",
            "endpoint": body["endpoint"],
            "input_file_id": body["input_file_id"],
            "completion_window": "24h",
            "created_at": 0,
            "status": "in_progress",
            "metadata": body.get("metadata"),
            "request_counts": {"total": len(lines), "completed": 0, "failed": 0},
        }
        if len(lines) > self.refuse:
            self.batches[name] |= {"status": "failed", "errors": {"object": "list", "data": [{"message": "too many requests"}]}}
        else:
            self._task = asyncio.create_task(self._work(name, lines))
        if self.crash_on_create:
            self.crash_on_create -= 1
            return JSONResponse({"error": {"message": "gateway"}}, 418)
        return JSONResponse(self.batches[name])

    async def _work(self, name: str, lines: list[bytes]) -> None:
        await asyncio.sleep(self.delay_s)
        dice, good, bad = random.Random(name), [], []
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://chat") as client:
            for line in lines:
                row = json.loads(line)
                if dice.random() < self.expired:
                    continue
                if dice.random() < self.lost:
                    bad.append(
                        {"custom_id": row["custom_id"], "response": None, "error": {"code": "server", "message": "lost"}}
                    )
                    continue
                answer = await client.post(row["url"], json=row["body"])
                self.asked[json.dumps(row["body"], sort_keys=True)] += 1
                self.billed.update(answer.json().get("usage", {}))
                body = answer.json()
                for choice in body.get("choices", ()):
                    choice["message"]["content"] = choice["message"]["content"].replace("</think>", f"{self.separator}</think>")
                response = {"status_code": answer.status_code, "request_id": "r", "body": body}
                good.append({"custom_id": row["custom_id"], "response": response, "error": None})
        dice.shuffle(good)  # the order is not promised
        ended = {"status": "expired" if self.expired else "completed"}
        for key, rows in (("output_file_id", good), ("error_file_id", bad)):
            if rows:
                ended[key] = self._put("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
        self.batches[name] |= ended

    async def _look(self, request: Request) -> Response:
        return JSONResponse(self.batches[request.path_params["name"]])

    async def _list(self, request: Request) -> Response:
        if self.crash_on_list:
            self.crash_on_list -= 1
            return JSONResponse({"error": {"message": "gateway"}}, 418)
        return JSONResponse({"object": "list", "data": list(self.batches.values()), "has_more": False})
