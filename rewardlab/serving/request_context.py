"""What holds for a request wherever it is handled."""

from __future__ import annotations

from contextvars import ContextVar

# The name of the key that asks; "" where the server asks for none. Groups, uploads, cached results and shares go by it.
TENANT: ContextVar[str] = ContextVar("TENANT", default="")
