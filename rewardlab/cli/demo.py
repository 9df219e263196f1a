"""`rewardlab demo`: six judgments at once, and the pieces of the demonstration; `rewardlab quickstart`, which runs on them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rewardlab.cli.options import CONFIG_HELP, DEMONSTRATION, Out, RandomSeed, Seed, app, demo_app

if TYPE_CHECKING:
    from rewardlab.demo.examples import ExampleJudgment


FromScratch = Annotated[
    bool, typer.Option("--from-scratch", help="Train the base model instead of using the one bundled with the package.")
]
Configs = Annotated[Path, typer.Option("--configs", help="Folder of the stages' configs: a path, or a name under configs/.")]


@demo_app.callback(invoke_without_command=True, no_args_is_help=False)
def demo_command(
    context: typer.Context,
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("rewardlab-demo.html"),
    open_page: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser, if there is a display.")
    ] = True,
) -> None:
    """Print the judgments and write them as one page, unless a command of the group is called, which shares its help."""
    if context.invoked_subcommand is not None:
        return
    from rewardlab.demo.examples import judge_examples, write_examples_page

    console = Console(highlight=False, emoji=False)
    with Console(stderr=True).status("loading the judge and asking it about six pairs ..."):
        run = judge_examples()
    for number, example in enumerate(run.examples, start=1):
        _print_example(console, number, example)
    console.print(f"\n[bold]{run.sentence}[/]  (loaded in {run.load_s:.1f} s, judged in {run.judge_s:.1f} s)")
    console.print(
        "A verdict that changes with the order follows the place and not the answer: such a flip is counted, never hidden."
    )
    console.print("The judge knows drawn scenes and scanned digits only; other pictures get confident nonsense.")
    write_examples_page(run, out)
    console.print(
        f"page: {escape(str(out))}\nnext: rewardlab judge --judge demo --help, rewardlab serve --judge demo", soft_wrap=True
    )
    if open_page and _has_display():
        typer.launch(str(out))


def _print_example(console: Console, number: int, example: ExampleJudgment) -> None:
    from rewardlab.demo.examples import ExampleResult
    from rewardlab.types import BOTH_ORDERS, Order

    pair = example.pair
    console.print(f"\n[bold]{number}. {escape(pair.question)}[/]")
    grid = Table.grid(padding=(0, 2))
    for index, response in enumerate(pair.responses):
        mark = "  [green](the right one)[/]" if index == pair.preferred else ""
        grid.add_row(f"   {'AB'[index]}", "", f"{escape(response)}{mark}")
    for order in BOTH_ORDERS:
        vote = example.vote(order)
        verdict = vote.verdict.status.value if vote.winner is None else f"→ {'AB'[vote.winner]}"
        color = "green" if vote.winner == pair.preferred else "red"
        first = "A" if order is Order.GIVEN else "B"
        grid.add_row(f"   {first} first", f"[{color}]{verdict}[/]", f"[dim]{escape(example.reasoning(order))}[/]")
    color = {ExampleResult.RIGHT: "green", ExampleResult.WRONG: "red"}.get(example.result, "yellow")
    grid.add_row("", "", f"[{color}]{example.result}[/]")
    console.print(grid)


def _has_display() -> bool:
    """Return whether somebody looks at a terminal of this machine and a browser could open."""
    here = sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return here and sys.stdout.isatty()


@demo_app.command("build")
def demo_build(
    out: Out,
    config: Annotated[Path, typer.Option("--config", help=CONFIG_HELP)] = Path("tiny/demo"),
    seed: Seed = None,
    base: Annotated[
        bool, typer.Option("--base/--no-base", help="Make the base model as well as the pairs, or only the pairs.")
    ] = True,
    from_scratch: FromScratch = False,
) -> None:
    """Make the demonstration's pairs and its tiny base model: takes seconds, or minutes from scratch. Existing files are
    kept."""
    from rewardlab.demo.build import DemoConfig, build_base, build_pairs

    settings = DemoConfig.load(config, seed=seed)
    build_pairs(out, settings)
    if base:
        build_base(out, settings, from_scratch=from_scratch)
    typer.echo(f"demonstration in {out}")


@demo_app.command("serve")
def demo_serve(
    folder: Annotated[Path, typer.Option("--folder", help="Folder made by `rewardlab demo build`.")],
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on, on localhost only.")] = 8321,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the teacher's mistakes.")] = 0,
) -> None:
    """Serve the demonstration's teacher and consistency checker over an OpenAI-compatible API."""
    from rewardlab.demo.build import TRUTHS
    from rewardlab.demo.server import TeacherConfig, serve_demo

    serve_demo(folder / TRUTHS, port=port, teacher=TeacherConfig(seed=seed))


@demo_app.command("train")
def demo_train(
    out: Out = Path("runs/demo_judge"),
    configs: Configs = Path("tiny"),
    seed: RandomSeed = 0,
) -> None:
    """Retrain the bundled judge and check that its weights are bit-identical.

    Takes half an hour on one thread; the same command resumes an interrupted run. Writes `OUT/judge`.
    """
    from rewardlab.demo.judge_training import is_shipped, train_judge

    judge = train_judge(out, configs, seed)
    same = "the same weights as" if is_shipped(judge) else "other weights than"
    typer.echo(f"{judge}: {same} the bundled judge; see {judge}/README.md")


@app.command("quickstart", rich_help_panel=DEMONSTRATION)
def quickstart_command(
    out: Out = Path("runs/quickstart"),
    configs: Configs = Path("tiny"),
    seed: Annotated[int, typer.Option("--seed", help="Seed of the data, the models and every stage.")] = 0,
    from_scratch: FromScratch = False,
) -> None:
    """Run the whole pipeline on the embedded demonstration: pairs, teacher, SFT, StableReinforce, benchmark, endpoint.

    Finished stages in OUT are kept, so the same command resumes an interrupted quickstart. The result is `OUT/report.html`.
    """
    from rewardlab.demo.quickstart import quickstart

    quickstart(out, configs, seed, from_scratch=from_scratch)
    typer.echo(f"report: {out}/report.html\nserve:  rewardlab serve --judge hf:{out}/rl/final max_tokens=64")
