"""Options of the commands that ask an OpenAI-compatible endpoint: how, how many at a time, how long."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Optional

import typer

from rewardlab.judging.spec import OTHERS, PANEL, POOL, JudgeSpec
from rewardlab.samplers.base import OPENAI
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

Cache = Annotated[
    Optional[Path],
    typer.Option(
        "--cache",
        help="Folder of answers of openai: judges that runs share: what was asked in the very same way, by the same seed, is "
        "not asked again. By default what REWARDLAB_CACHE names, if anything.",
    ),
]


def cache_folder(option: Path | None, judge: str) -> Path | None:
    """Return the folder of answers: the option's, or that of the environment, which is for judges with an ``openai:`` endpoint
    alone."""
    from_environment = os.environ.get("REWARDLAB_CACHE")
    if option is not None or not from_environment:
        return option
    parsed = JudgeSpec.parse(judge, *OTHERS)
    members = parsed.members if parsed.engine in (PANEL, POOL) else (judge,)
    is_remote = OPENAI in {JudgeSpec.parse(member, *OTHERS).engine for member in members}
    return Path(from_environment) if is_remote else None


def request_options(
    concurrency: int | None, deadline: float | None, reasoning_effort: str | None, body: str, max_tokens_field: str
) -> RequestOptions:
    """Return what the options come to. Raise ConfigError for a body that is no object, or sets what has an option."""
    return RequestOptions(concurrency, deadline, reasoning_effort, parse_body(body), max_tokens_field)
