"""What holds for a request wherever it is handled: who asks, its id, and what it has cost."""

from __future__ import annotations

from collections.abc import MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

# The name of the key that asks; "" where the server asks for none. Groups, uploads, cached results and shares go by it.
TENANT: ContextVar[str] = ContextVar("TENANT", default="")
CHECKS = "(checks)"  # the tenant of what the server itself asks, after all requests; no key has such a name
# The Authorization of the request, to be passed on to another server of the same keys.
AUTHORIZATION: ContextVar[str] = ContextVar("AUTHORIZATION", default="")


@dataclass
class RequestAccount:
    """The id of a request, and what was spent on it.

    ``queue_s`` is the longest that one of its jobs waited for the engine, ``num_tokens`` what the engine read and wrote. A
    group that was sent one response at a time is on the account of the response that completed it. ``weights`` names those of
    the judge that answers it, where it has some here; several where it has samples of groups of several requests. ``signs``
    are those of its key's answers.
    """

    id: str
    queue_s: float = 0.0
    num_tokens: int = 0
    weights: set[str] = field(default_factory=set)
    signs: set[str] = field(default_factory=set)

    def add(self, queue_s: float, num_tokens: int) -> None:
        """Add a job that the engine has done."""
        self.queue_s = max(self.queue_s, queue_s)
        self.num_tokens += num_tokens


REQUEST: ContextVar[RequestAccount | None] = ContextVar("REQUEST", default=None)


def request_id() -> str:
    """Return the id of the request that is being answered; "" outside of one."""
    account = REQUEST.get()
    return account.id if account else ""


def route_path(scope: MutableMapping[str, Any]) -> str:
    """Return the path of a request below the prefix that a proxy serves the application under (``--root-path``)."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
