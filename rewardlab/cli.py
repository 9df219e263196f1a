"""`rewardlab`: one command per stage, each thin. Heavy imports happen inside the command that needs them."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.markup import escape

from rewardlab.errors import ConfigError, RewardlabError
from rewardlab.types import Judgment

# transformers renamed an argument of its own that trl and older releases know by its first name; no user can act on it.
warnings.filterwarnings("ignore", message=".*gradient_checkpointing` is deprecated", category=FutureWarning)

app = typer.Typer(
    help="Train, benchmark and serve generative multimodal judges whose numbers can be trusted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
world_app = typer.Typer(help="The embedded demonstration: a world of pairs with known truth.", no_args_is_help=True)
app.add_typer(world_app, name="world")

Out = Annotated[Path, typer.Option("--out", help="Folder to write to.")]
ConfigFile = Annotated[Optional[Path], typer.Option("--config", help="YAML of differences from the defaults.")]
Seed = Annotated[Optional[int], typer.Option("--seed", help="Overrides the config's seed.")]


@world_app.command("build")
def world_build(out: Out, config: Annotated[Path, typer.Option("--config")], seed: Seed = None) -> None:
    """Make the world's pairs and its tiny base model (minutes, once; what exists is kept)."""
    from rewardlab.world.build import WorldConfig, build_base, build_pairs

    world = WorldConfig.load(config, seed=seed)
    build_pairs(out, world)
    build_base(out, world)
    typer.echo(f"world in {out}")


@world_app.command("serve")
def world_serve(
    world: Annotated[Path, typer.Option("--world", help="Folder made by `rewardlab world build`.")],
    port: Annotated[int, typer.Option("--port")] = 8321,
    seed: Annotated[int, typer.Option("--seed")] = 0,
) -> None:
    """Serve the world's teacher and consistency checker over an OpenAI-compatible API."""
    from rewardlab.world.build import TRUTHS
    from rewardlab.world.server import TeacherConfig, serve

    serve(world / TRUTHS, port=port, config=TeacherConfig(seed=seed))


@app.command()
def distill(
    data: Annotated[Path, typer.Option("--data", help="Labelled pairs, .parquet or .jsonl.")],
    out: Out,
    config: ConfigFile = None,
    images: Annotated[Optional[Path], typer.Option("--images", help="Folder of the images a .jsonl names.")] = None,
    base_url: Annotated[Optional[str], typer.Option("--base-url", help="Overrides the config's endpoint.")] = None,
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N pairs.")] = None,
    seed: Seed = None,
) -> None:
    """Ask a teacher for reasoned judgments; keep those that agree with the label; tag difficulty.

    Every request is journalled: kill it at any time and run the same command again.
    """
    from rewardlab.config import DistillConfig, load_config
    from rewardlab.data.pairs import read_pairs
    from rewardlab.distill.pipeline import distill as run

    settings = load_config(DistillConfig, config, base_url=base_url, seed=seed)
    key = os.environ.get(settings.api_key_env, "none")
    statistics = run(read_pairs(data, images=images)[:limit], settings, out, api_key=key)
    Console().print_json(data=statistics)


@app.command()
def sft(
    data: Annotated[Path, typer.Option("--data", help="Distilled pairs (.parquet).")],
    out: Out,
    config: ConfigFile = None,
    model: Annotated[Optional[str], typer.Option("--model", help="Checkpoint folder or hub id to start from.")] = None,
    seed: Seed = None,
) -> None:
    """Cold-start a vision-language model on kept judgments. The result is `OUT/final`; an interrupted run resumes."""
    from rewardlab.config import SFTConfig, load_config
    from rewardlab.data.pairs import read_pairs
    from rewardlab.training.sft import train_sft

    settings = load_config(SFTConfig, config, model=model, seed=seed)
    typer.echo(train_sft(read_pairs(data), settings, out))


@app.command()
def steps(
    data: Annotated[Path, typer.Option("--data", help="Labelled pairs, .parquet or .jsonl.")],
    judge: Annotated[str, typer.Option("--judge", help="hf:PATH, the judge that completes its own reasoning.")],
    out: Out,
    config: ConfigFile = None,
    images: Annotated[Optional[Path], typer.Option("--images", help="Folder of the images a .jsonl names.")] = None,
    source: Annotated[Optional[str], typer.Option("--source", help="Whose judgments: judge (new ones) or pairs.")] = None,
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N pairs.")] = None,
    seed: Seed = None,
) -> None:
    """Find the step at which a reasoning goes wrong: +1 before it, -1 from it on, for `rewardlab prm` to learn.

    A prefix is good while 15 of 20 completions of it are right, which a guesser manages once in 48 times; bisection finds the
    first that is not. Where the judge only guesses, nothing is labelled. Labels: `OUT/steps.jsonl`. A killed run continues.
    """
    from rewardlab.config import StepsConfig, load_config
    from rewardlab.data.pairs import read_pairs
    from rewardlab.distill.steps import label_steps
    from rewardlab.judge import open_judge

    settings = load_config(StepsConfig, config, source=source, seed=seed)
    pairs = read_pairs(data, images=images)[:limit]
    Console().print_json(data=label_steps(pairs, settings, open_judge(judge, batch_size=settings.batch_size), out))


@app.command()
def prm(
    data: Annotated[Path, typer.Option("--data", help="The pairs that were labelled (.parquet).")],
    steps: Annotated[Path, typer.Option("--steps", help="steps.jsonl of `rewardlab steps`.")],
    out: Out,
    config: ConfigFile = None,
    model: Annotated[Optional[str], typer.Option("--model", help="Checkpoint folder to start from: the judge's.")] = None,
    seed: Seed = None,
) -> None:
    """Train a process reward model on step labels. `OUT/final` serves `rewardlab rl` as `process_reward` and `value_init`."""
    from rewardlab.config import PRMConfig, load_config
    from rewardlab.data.pairs import read_pairs
    from rewardlab.distill.steps import read_steps
    from rewardlab.training.prm import train_prm

    settings = load_config(PRMConfig, config, model=model, seed=seed)
    typer.echo(train_prm(read_pairs(data), read_steps(steps), settings, out))


@app.command()
def rl(
    data: Annotated[Path, typer.Option("--data", help="Distilled pairs (.parquet); the hard ones are trained on.")],
    out: Out,
    config: ConfigFile = None,
    model: Annotated[Optional[str], typer.Option("--model", help="SFT checkpoint folder to start from.")] = None,
    consistency_url: Annotated[
        Optional[str], typer.Option("--consistency-url", help="Overrides the config's consistency endpoint.")
    ] = None,
    seed: Seed = None,
) -> None:
    """Train with StableReinforce on the hard pairs. The result is `OUT/final`; an interrupted run resumes."""
    from rewardlab.config import RLConfig, load_config
    from rewardlab.data.pairs import read_pairs
    from rewardlab.training.rl import train_rl

    settings = load_config(RLConfig, config, model=model, seed=seed)
    if consistency_url:
        changed = settings.consistency.model_copy(update={"base_url": consistency_url})
        settings = settings.model_copy(update={"consistency": changed})
    typer.echo(train_rl(read_pairs(data), settings, out))


@app.command()
def bench(
    benchmark: Annotated[str, typer.Argument(help="vl_rewardbench, or pairs (your own labelled .parquet/.jsonl).")],
    data: Annotated[Path, typer.Option("--data", help="The benchmark's data file.")],
    judge: Annotated[
        str,
        typer.Option(
            "--judge",
            help="baseline:longest|shortest|random|first, hf:PATH, openai:MODEL@URL, or replay:FILE (JSON lines).",
        ),
    ],
    out: Out,
    images: Annotated[Optional[Path], typer.Option("--images", help="Folder of the benchmark's images.")] = None,
    votes: Annotated[
        Optional[int], typer.Option("--votes", min=1, help="Samples per pair and order (replay: all; else 1).")
    ] = None,
    orders: Annotated[str, typer.Option("--orders", help="both, random (one per pair, drawn) or given.")] = "both",
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N rows.")] = None,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    template: Annotated[Optional[str], typer.Option("--template", help="Prompt template (default: the checkpoint's).")] = None,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")] = 1.0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1)] = 1024,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Sequences at a time (hf).")] = 64,
    controls: Annotated[
        str, typer.Option("--controls", help="Extra greedy passes, comma-separated: greedy, blank, other; '' for none.")
    ] = "blank",
    api_key_env: Annotated[str, typer.Option("--api-key-env", help="Variable that holds the API key.")] = "OPENAI_API_KEY",
) -> None:
    """Score a judge: votes in both orders, intervals, swap consistency, position lean, baselines; JSON, Markdown, HTML.

    A replay file has one sample a line, `{"row": 0, "order": "given", "text": "..."}`, or one pair of scores of a scalar
    model, `{"row": 0, "scores": [0.3, 0.7]}`; `row` is the 0-based row of the data file, index 0 its first/chosen response.
    """
    from rewardlab.benchmarks.report import markdown, write_reports
    from rewardlab.benchmarks.runner import BenchSettings, run_bench

    settings = BenchSettings(
        benchmark=benchmark,
        data=data,
        judge=judge,
        images=images,
        votes=votes,
        orders=orders,
        limit=limit,
        seed=seed,
        template=template,
        temperature=temperature,
        max_tokens=max_tokens,
        batch_size=batch_size,
        controls=tuple(name for name in controls.split(",") if name),
        api_key=os.environ.get(api_key_env, "none"),
    )
    report, rows = run_bench(settings, out)
    write_reports(report, rows, out)
    typer.echo(markdown(report))
    typer.echo(f"written: {out}/report.json, report.md, report.html, votes.jsonl")


@app.command()
def quickstart(
    out: Out = Path("runs/quickstart"),
    configs: Annotated[Path, typer.Option("--configs", help="Folder of the stages' configs.")] = Path("configs/tiny"),
    seed: Annotated[int, typer.Option("--seed")] = 0,
) -> None:
    """Run the whole pipeline on the embedded world: pairs, teacher, SFT, StableReinforce, votes, report, endpoint.

    Stages already done in OUT are kept, so an interrupted quickstart continues.
    """
    from rewardlab.world.quickstart import quickstart as run

    run(out, configs, seed)
    typer.echo(f"report: {out}/report.html\nserve:  rewardlab serve --judge hf:{out}/rl/final --max-tokens 64")


JudgeSpec = Annotated[str, typer.Option("--judge", help="hf:PATH or openai:MODEL@URL.")]


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
    share = "" if judged.share_0 is None else f" (share of votes for the first: {judged.share_0:.0%})"
    console.print(f"[bold]{text}[/]{share}", highlight=False)


def main() -> None:
    """Entry point: an error the user can act on is one sentence and exit status 2."""
    try:
        app()
    except RewardlabError as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
