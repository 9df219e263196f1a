"""`rewardlab judge` and `rank`: judgments of one pair, and of N responses."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.markup import escape

from rewardlab.cli.options import (
    JUDGING,
    ApiKeyEnv,
    BatchSize,
    JudgeOption,
    MaxTokens,
    Out,
    RandomSeed,
    Temperature,
    Template,
    app,
)
from rewardlab.errors import ConfigError
from rewardlab.types import Judgment

REMOTE_LANES = 64  # calls at a time of an engine that batches by itself


@app.command()
def serve(
    judge: JudgeOption,
    host: Annotated[str, typer.Option("--host")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535)] = 8000,
    template: Annotated[Optional[str], typer.Option("--template", help="Prompt template (default: the checkpoint's).")] = None,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0)] = 1.0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1)] = 1024,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Sequences at a time (hf).")] = 64,
    votes: Annotated[
        int, typer.Option("--votes", min=1, max=64, help="Samples in each order, where a framework's request cannot say it.")
    ] = 1,
    policy: Annotated[
        Optional[str],
        typer.Option("--policy", help="majority, weighted or sequential there (default: the judge's own)."),
    ] = None,
    strategy: Annotated[
        str, typer.Option("--strategy", help="How a group is compared there: all_pairs, circular, knockout or bradley_terry.")
    ] = "all_pairs",
    cohort: Annotated[
        int,
        typer.Option("--cohort", min=2, max=32, help="Responses to a prompt that wait for each other when sent one by one."),
    ] = 8,
    cohort_timeout: Annotated[float, typer.Option("--cohort-timeout", min=0.1, help="Seconds they wait.")] = 60.0,
    queue: Annotated[int, typer.Option("--queue", min=1, help="Most pairs that wait; beyond it requests get 429.")] = 1024,
    engine_timeout: Annotated[float, typer.Option("--engine-timeout", min=0.1, help="Most seconds of one batch.")] = 600.0,
    keys: Annotated[
        Optional[Path],
        typer.Option(
            "--keys",
            help="File with an API key a line, or sha256:HEX of it, and its limits after it: per_minute=600 max_bytes=2000000. "
            "Without it everybody may ask.",
        ),
    ] = None,
    rate: Annotated[float, typer.Option("--rate", min=0.1, help="Most requests of a key per minute.")] = 1e9,
    engine_args: Annotated[
        str, typer.Option("--engine-args", help="Of a vllm: judge: options of `vllm serve`, as one text.")
    ] = "",
    allow_url: Annotated[
        Optional[list[str]],
        typer.Option("--allow-url", help="Media are fetched from URLs that begin with this; repeat for several."),
    ] = None,
    media: Annotated[Optional[Path], typer.Option("--media", help="Folder whose files requests name as media:NAME.")] = None,
    api_key_env: Annotated[
        str, typer.Option("--api-key-env", help="Variable with the key of an openai: judge.")
    ] = "OPENAI_API_KEY",
) -> None:
    """Serve a judge: pairs, rewards of groups, and the doors through which OpenRLHF, verl, NeMo-Gym and others ask.

    `POST /v1/judge`, `/v1/rewards`, `/v1/uploads`; `/health`, `/ready`, `/metrics`; all is described at `/docs`. Adapters for
    trainers are in `rewardlab.integrations`.
    """
    from rewardlab.judging.engines import open_judge

    try:
        from rewardlab.serving.app import check_port
        from rewardlab.serving.app import serve as run
        from rewardlab.serving.auth import read_keys
        from rewardlab.serving.groups import STRATEGIES
        from rewardlab.serving.media import Media
        from rewardlab.serving.service import GroupRules
        from rewardlab.serving.voting import POLICIES, Asking
    except ModuleNotFoundError as error:
        raise ConfigError(f"serving needs {error.name}: pip install 'rewardlab[serve]'") from error

    check_port(host, port)
    if strategy not in STRATEGIES or strategy == "anchor":
        raise ConfigError(f"--strategy {strategy}: expected all_pairs, circular, knockout or bradley_terry")
    if policy not in (None, *POLICIES):
        raise ConfigError(f"--policy {policy}: expected {', '.join(POLICIES)}")
    let_in, sources = read_keys(keys, per_minute=rate) if keys else [], Media(allowed_urls=allow_url or (), folder=media)
    key = os.environ.get(api_key_env, "none")
    held = open_judge(
        judge,
        template=template,
        temperature=temperature,
        max_tokens=max_tokens,
        batch_size=batch_size,
        api_key=key,
        engine_args=engine_args,
        restart_after_s=engine_timeout,
    )
    rules = GroupRules(Asking(votes, policy), strategy, cohort, cohort_timeout)
    # An engine apart watches over its own time; the queue's is for what is beyond it.
    limits = {"max_waiting": queue, "engine_timeout_s": 2 * engine_timeout, "max_sequences": 4 * batch_size}
    limits["lanes"] = REMOTE_LANES if held.sampler.is_batch_invariant else 1
    run(held, host=host, port=port, rules=rules, keys=let_in, media=sources, **limits)


@app.command("judge", rich_help_panel=JUDGING)
def judge_command(
    judge: JudgeOption,
    question: Annotated[str, typer.Option("--question", help="The prompt that both responses answer.")],
    first: Annotated[str, typer.Option("--first", help="One response.")],
    second: Annotated[str, typer.Option("--second", help="The other response.")],
    image: Annotated[Optional[list[Path]], typer.Option("--image", help="An image file; repeat for several.")] = None,
    votes: Annotated[int, typer.Option("--votes", min=1, help="Samples in each of the two orders.")] = 1,
    template: Template = None,
    temperature: Temperature = 1.0,
    max_tokens: MaxTokens = 1024,
    seed: RandomSeed = 0,
    api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
) -> None:
    """Judge one pair in both orders and print every vote."""
    from rewardlab.data.images import read_image
    from rewardlab.data.rows import validate
    from rewardlab.judging.engines import open_judge
    from rewardlab.types import PreferencePair

    images = tuple(read_image(path) for path in image or ())
    pair = validate(PreferencePair("shell", question, (first, second), None, images), where="pair")
    key = os.environ.get(api_key_env, "none")
    opened = open_judge(judge, template=template, temperature=temperature, max_tokens=max_tokens, api_key=key)
    print_judgment(opened.compare(pair, num_votes=votes, seed=seed))


@app.command("rank", rich_help_panel=JUDGING)
def rank_command(
    data: Annotated[
        Path, typer.Argument(help="JSON lines or Parquet: `question`, `responses` (two or more), and optionally more.")
    ],
    judge: JudgeOption,
    out: Out,
    plan: Annotated[
        str,
        typer.Option(
            "--plan",
            help="adaptive (Bradley-Terry, a budget), knockout (N - 1 matches), round_robin (all), circular (N, each "
            "against the next) or anchored (each against the last).",
        ),
    ] = "adaptive",
    budget: Annotated[Optional[int], typer.Option("--budget", min=1, help="Most matches per prompt (adaptive: 2 N).")] = None,
    votes: Annotated[int, typer.Option("--votes", min=1, help="Samples of each match in each of the two orders.")] = 1,
    images: Annotated[Optional[Path], typer.Option("--images", help="Folder of the images that the rows name.")] = None,
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N prompts.")] = None,
    template: Template = None,
    temperature: Temperature = 1.0,
    max_tokens: MaxTokens = 1024,
    batch_size: BatchSize = 64,
    seed: RandomSeed = 0,
    api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
) -> None:
    """Rank the N responses to each question (best of N) by pairwise comparisons in both orders.

    Rows may have `images`, `group`, and `best`, the index of the best response (or a list of indices), which scores the
    result; rows of RewardBench 2 (`prompt`, `chosen`, `rejected`, `subset`) work too. Writes `rankings.jsonl`,
    `matches.jsonl` (every vote) and `report.json`; the same command resumes a killed run. `adaptive` spends its budget
    where the first place is in doubt; `knockout` is cheapest if few matches are undecided.
    """
    from rewardlab.data.candidates import read_candidates
    from rewardlab.judging.best_of_n import run_ranking
    from rewardlab.judging.engines import open_judge

    prompts = read_candidates(data, images=images)[:limit]
    key = os.environ.get(api_key_env, "none")
    opened = open_judge(
        judge, template=template, temperature=temperature, max_tokens=max_tokens, batch_size=batch_size, api_key=key
    )
    command = shlex.join(["rewardlab", *sys.argv[1:]])
    report = run_ranking(opened, prompts, out, plan=plan, budget=budget, num_votes=votes, seed=seed, command=command)
    undecided = 100 * report["undecided_rate"]
    typer.echo(
        f"{report['num_prompts']:,} prompts, {report['matches_per_prompt']:.1f} matches each, {undecided:.1f} % undecided; "
        f"{report['without_one_best']:,} prompts without a single best response"
    )
    if failed := sum(report["statuses"].get(status, 0) for status in ("error", "timeout")):
        typer.echo(f"{failed:,} votes failed at the endpoint; the same command asks for them again")
    if "best_found" in report:
        for name, cell in {"best found": report["best_found"], **report["groups"]}.items():
            low, high = cell["interval"]
            typer.echo(f"{name}: {100 * cell['accuracy']:.1f} % [{100 * low:.1f}, {100 * high:.1f}] of {cell['n']:,}")
    typer.echo(f"written: {out}/rankings.jsonl, matches.jsonl, report.json")


def print_judgment(judgment: Judgment) -> None:
    """Print a judgment: each vote with the order of its prompt, then the outcome."""
    console, names = Console(), ("the first response", "the second response")
    for vote in judgment.votes:
        order = "first response shown first" if vote.order.value == "given" else "second response shown first"
        verdict = f"for {names[vote.winner]}" if vote.winner is not None else f"no verdict: {vote.verdict.status.value}"
        console.print(f"[dim]{order}[/]: {escape(vote.completion.text or vote.completion.error)}")
        console.print(f"  → {verdict}", highlight=False)
    winner = judgment.outcome.winner
    outcome = f"{names[winner]} is better" if winner is not None else judgment.outcome.value.replace("_", " ")
    quantity = "probability of" if any(v.verdict.rule == "probability" for v in judgment.votes) else "share of votes for"
    share = "" if judgment.share_0 is None else f" ({quantity} the first: {judgment.share_0:.0%})"
    console.print(f"[bold]{outcome}[/]{share}", highlight=False)
