"""The batch API of OpenAI and those who speak it: a file of chats goes up, a file of answers comes down, within a day."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import openai
from openai.types.chat import ChatCompletion

from rewardlab.errors import EndpointError
from rewardlab.samplers.openai_answers import api_content, completion_from
from rewardlab.types import Completion, FinishReason, Message

ENDS = ("completed", "failed", "expired", "cancelled")
PURPOSE: Any = "batch"


@dataclass(frozen=True)
class BatchState:
    """A batch as the provider reports it, its ``status`` in small letters; with one that is none of :data:`ENDS` it may yet be
    answered."""

    id: str
    status: str
    output_file: str | None
    error_file: str | None
    error: str

    @property
    def open(self) -> bool:
        return self.status not in ENDS


def request_line(custom_id: str, model: str, prompt: Sequence[Message], body: Mapping[str, Any]) -> bytes:
    """Return one line of the file that is uploaded."""
    messages = [{"role": message.role, "content": api_content(message)} for message in prompt]
    request = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions"}
    return (json.dumps({**request, "body": {"model": model, "messages": messages, **body}}) + "\n").encode()


def parse_answer_line(line: str) -> tuple[str, Completion]:
    """Return (custom id, completion) of a downloaded line; a request that failed is a completion that tells why.

    Raise ValueError for a line that is none.
    """
    try:
        row = json.loads(line)
        name, error, response = str(row["custom_id"]), row.get("error"), dict(row.get("response") or {})
    except (KeyError, TypeError, AttributeError, ValueError) as wrong:
        raise ValueError(f"not an answer of a batch: {wrong!r}") from wrong
    if error or response.get("status_code") != 200:
        reason = json.dumps(error or response.get("body"))
        return name, Completion("", FinishReason.ERROR, error=f"HTTP {response.get('status_code')}: {reason:.400}")
    body = response.get("body")
    return name, completion_from(ChatCompletion.construct(**(body if isinstance(body, dict) else {})))


class BatchClient:
    """Use as ``async with``. Every method raises EndpointError where the provider fails (after the client's own retries)."""

    def __init__(self, base_url: str, *, api_key: str = "none", timeout_s: float = 600.0) -> None:
        self.base_url = base_url
        self._client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key or "none", timeout=timeout_s, max_retries=4)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        await self._client.close()

    async def send(self, name: str, file: Path) -> str:
        """Upload a file of :func:`request_line` and start it as a batch called ``name``; return its id."""
        try:
            uploaded = await self._client.files.create(file=file, purpose=PURPOSE)
            # Not tried again: it may have been created though the answer did not reach us, and a second one is paid, too.
            batch = await self._client.with_options(max_retries=0).batches.create(
                input_file_id=self._id_of(uploaded),
                endpoint="/v1/chat/completions",
                completion_window="24h",
                metadata={"rewardlab": name},
            )
        except (openai.OpenAIError, ValueError) as error:  # a ValueError: a body that is no JSON
            if (batch_id := await self.find(name)) is not None:
                return batch_id
            raise self._failed(error) from error
        return self._id_of(batch)

    async def find(self, name: str) -> str | None:
        """Return the id of the batch of that name, None if the provider has none: the answer to its creation may not have
        reached us."""
        try:
            page = await self._client.batches.list(limit=100)
            while True:
                if not isinstance(page.data, list):  # it may have one all the same
                    raise self._no_batch_api(page)
                for batch in page.data:
                    if (batch.metadata or {}).get("rewardlab") == name:
                        return self._id_of(batch)
                if not page.has_next_page():
                    return None
                page = await page.get_next_page()
        except (openai.OpenAIError, AttributeError, TypeError, ValueError) as error:  # or a page that is none
            raise self._failed(error) from error

    async def look(self, batch_id: str) -> BatchState:
        try:
            batch = await self._client.batches.retrieve(batch_id)
        except (openai.OpenAIError, ValueError) as error:
            raise self._failed(error) from error
        self._id_of(batch)
        status: object = batch.status
        if not isinstance(status, str):
            raise EndpointError(
                f"{self.base_url}: batch {batch_id} has the status {status!r}; expected a string such as 'completed'; nothing "
                "is lost: run again once the provider reports it"
            )
        errors = [str(error.message or "") for error in getattr(batch.errors, "data", None) or ()]
        return BatchState(batch.id, status.casefold(), batch.output_file_id, batch.error_file_id, "; ".join(errors))

    async def lines(self, file_id: str) -> AsyncIterator[str]:
        """Yield the lines of a file as they arrive."""
        rest = b""
        try:
            async with self._client.files.with_streaming_response.content(file_id) as response:
                async for piece in response.iter_bytes():
                    # Not by the client's own lines, which also end at U+2028 within a text.
                    *whole, rest = (rest + piece).split(b"\n")
                    for line in whole:
                        if line.strip():
                            yield line.decode(errors="replace")
        except Exception as error:  # the boundary: a download may break in any way of the transport's
            raise self._failed(error) from error
        if rest.strip():
            yield rest.decode(errors="replace")

    def _failed(self, error: Exception) -> EndpointError:
        return EndpointError(
            f"{self.base_url}: the batch API fails ({type(error).__name__}: "
            f"{error}); nothing is lost: fix the cause and run again"
        )

    def _id_of(self, answer: Any) -> str:
        """Return the id of a file or a batch. Raise EndpointError for an answer that is neither."""
        identity = getattr(answer, "id", None)
        if not isinstance(identity, str):
            raise self._no_batch_api(answer)
        return identity

    def _no_batch_api(self, answer: Any) -> EndpointError:
        words = getattr(answer, "error", None) or answer
        return EndpointError(
            f"{self.base_url}: does not answer like a batch API ({words!r:.300}); expected as base_url an address that serves "
            "/files and /batches"
        )
