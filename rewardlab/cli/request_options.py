"""Options of the commands that ask an OpenAI-compatible endpoint: how, how many at a time, how long."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from rewardlab.samplers.request_options import RequestOptions, parse_body

Concurrency = Annotated[
    Optional[int], typer.Option("--concurrency", min=1, help="Requests to an openai: judge at a time (32 unless said).")
]
Deadline = Annotated[
    Optional[float],
    typer.Option("--deadline", min=0.001, help="Seconds that a request may take, retries included (120 unless said)."),
]
ReasoningEffort = Annotated[
    Optional[str], typer.Option("--reasoning-effort", help="Of an openai: judge that reasons: minimal, low, medium, high, ...")
]
Body = Annotated[
    str,
    typer.Option(
        "--body",
        help='Further fields of every request to an openai: judge, as JSON: \'{"verbosity": "low"}\'. A null leaves '
        "temperature, top_p or seed out.",
    ),
]
MaxTokensField = Annotated[
    str,
    typer.Option(
        "--max-tokens-field",
        help="The name of --max-tokens in a request: max_tokens, max_completion_tokens, or auto, which takes the second where "
        "the first is refused.",
    ),
]


def request_options(
    concurrency: int | None, deadline: float | None, reasoning_effort: str | None, body: str, max_tokens_field: str
) -> RequestOptions:
    """Return what the options come to. Raise ConfigError for a body that is no object, or sets what has an option."""
    return RequestOptions(concurrency, deadline, reasoning_effort, parse_body(body), max_tokens_field)
