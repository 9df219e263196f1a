"""`rewardlab quickstart`, and `rewardlab demo`: the pieces of the demonstration it runs on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rewardlab.cli.options import CONFIG_HELP, DEMONSTRATION, Out, RandomSeed, Seed, app, demo_app


@demo_app.command("build")
def demo_build(
    out: Out, config: Annotated[Path, typer.Option("--config", help=CONFIG_HELP)] = Path("tiny/demo"), seed: Seed = None
) -> None:
    """Make the demonstration's pairs and its tiny base model: minutes, once. Pieces that exist are kept."""
    from rewardlab.demo.build import DemoConfig, build_base, build_pairs

    settings = DemoConfig.load(config, seed=seed)
    build_pairs(out, settings)
    build_base(out, settings)
    typer.echo(f"demonstration in {out}")


@demo_app.command("serve")
def demo_serve(
    folder: Annotated[Path, typer.Option("--folder", help="Folder made by `rewardlab demo build`.")],
    port: Annotated[int, typer.Option("--port", min=1, max=65535)] = 8321,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the teacher's mistakes.")] = 0,
) -> None:
    """Serve the demonstration's teacher and consistency checker over an OpenAI-compatible API."""
    from rewardlab.demo.build import TRUTHS
    from rewardlab.demo.server import TeacherConfig, serve_demo

    serve_demo(folder / TRUTHS, port=port, config=TeacherConfig(seed=seed))


@demo_app.command("train")
def demo_train(
    out: Out = Path("runs/demo_judge"),
    configs: Annotated[
        Path, typer.Option("--configs", help="Folder of the stages' configs: a path, or a name under configs/.")
    ] = Path("tiny"),
    seed: RandomSeed = 0,
) -> None:
    """Train the judge that travels with the package again, and say whether its weights are the same, bit for bit."""
    from rewardlab.demo.judge_training import train_judge

    typer.echo(train_judge(out, configs, seed))


@app.command("quickstart", rich_help_panel=DEMONSTRATION)
def quickstart_command(
    out: Out = Path("runs/quickstart"),
    configs: Annotated[
        Path, typer.Option("--configs", help="Folder of the stages' configs: a path, or a name under configs/.")
    ] = Path("tiny"),
    seed: Annotated[int, typer.Option("--seed", help="Seed of the data, the models and every stage.")] = 0,
) -> None:
    """Run the whole pipeline on the embedded demonstration: pairs, teacher, SFT, StableReinforce, benchmark, endpoint.

    Stages that OUT holds already are kept, so an interrupted quickstart continues. The result is `OUT/report.html`.
    """
    from rewardlab.demo.quickstart import quickstart

    quickstart(out, configs, seed)
    typer.echo(f"report: {out}/report.html\nserve:  rewardlab serve --judge hf:{out}/rl/final --max-tokens 64")
