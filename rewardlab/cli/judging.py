"""Judging: over HTTP and in the shell."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.markup import escape

from rewardlab.cli.options import JudgeSpec, app
from rewardlab.errors import ConfigError
from rewardlab.types import Judgment


@app.command()
def serve(
    judge: JudgeSpec,
    host: Annotated[str, typer.Option("--host")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535)] = 8000,
    template: Annotated[Optional[str], typer.Option("--template", help="Prompt template (default: the checkpoint's).")] = None,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0)] = 1.0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1)] = 1024,
    api_key_env: Annotated[str, typer.Option("--api-key-env")] = "OPENAI_API_KEY",
) -> None:
    """Serve a judge: POST /v1/judge, POST /v1/uploads, GET /health; the API is described at /docs."""
    from rewardlab.judge import open_judge

    try:
        from rewardlab.serving.app import check_port
        from rewardlab.serving.app import serve as run
    except ModuleNotFoundError as error:
        raise ConfigError(f"serving needs {error.name}: pip install 'rewardlab[serve]'") from error

    check_port(host, port)
    key = os.environ.get(api_key_env, "none")
    held = open_judge(judge, template=template, temperature=temperature, max_tokens=max_tokens, api_key=key)
    run(held, host=host, port=port)


@app.command("judge")
def judge_one(
    judge: JudgeSpec,
    question: Annotated[str, typer.Option("--question")],
    first: Annotated[str, typer.Option("--first", help="One response.")],
    second: Annotated[str, typer.Option("--second", help="The other response.")],
    image: Annotated[Optional[list[Path]], typer.Option("--image", help="An image file; repeat for several.")] = None,
    votes: Annotated[int, typer.Option("--votes", min=1, help="Samples in each of the two orders.")] = 1,
    template: Annotated[Optional[str], typer.Option("--template")] = None,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0)] = 1.0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1)] = 1024,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    api_key_env: Annotated[str, typer.Option("--api-key-env")] = "OPENAI_API_KEY",
) -> None:
    """Judge one pair in both orders and print every vote."""
    from rewardlab.data.images import read_image
    from rewardlab.data.pairs import validate
    from rewardlab.judge import open_judge
    from rewardlab.types import PreferencePair

    images = tuple(read_image(path) for path in image or ())
    pair = validate(PreferencePair("shell", question, (first, second), None, images), where="pair")
    key = os.environ.get(api_key_env, "none")
    held = open_judge(judge, template=template, temperature=temperature, max_tokens=max_tokens, api_key=key)
    print_judgment(held.compare(pair, num_votes=votes, seed=seed))


def print_judgment(judged: Judgment) -> None:
    """A judgment for a person: each vote with the order it was shown in, then what they come to."""
    console, names = Console(), ("the first response", "the second response")
    for vote in judged.votes:
        shown = "first response shown first" if vote.order.value == "given" else "second response shown first"
        found = f"for {names[vote.winner]}" if vote.winner is not None else f"no verdict: {vote.verdict.status.value}"
        console.print(f"[dim]{shown}[/]: {escape(vote.completion.text or vote.completion.error)}")
        console.print(f"  → {found}", highlight=False)
    won = judged.outcome.winner
    text = f"{names[won]} is better" if won is not None else judged.outcome.value.replace("_", " ")
    said = "probability of" if any(v.verdict.rule == "probability" for v in judged.votes) else "share of votes for"
    share = "" if judged.share_0 is None else f" ({said} the first: {judged.share_0:.0%})"
    console.print(f"[bold]{text}[/]{share}", highlight=False)
