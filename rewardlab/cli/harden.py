"""`rewardlab harden`: a judge that learns from the policy that it trains."""

from __future__ import annotations

from typing import Annotated

import typer

from rewardlab.cli.commands import check_line
from rewardlab.cli.options import CONFIG_HELP, TRAINING, Out, Overrides, app


@app.command("harden", rich_help_panel=TRAINING)
def harden_command(
    out: Out,
    overrides: Overrides = None,
    config: Annotated[str, typer.Option("--config", help=CONFIG_HELP)] = "harden/loop",
) -> None:
    """Alternately train a policy with a judge as its reward, and the judge on the policy's wrong answers.

    A round: the policy learns (`rewardlab policy`); its wrong answers with a high reward become hard negatives (`rewardlab data
    negatives`); the judge learns from them, mixed with pairs of the set (`rewardlab rl`); a benchmark compares it with the old
    one (`rewardlab bench run`), which it replaces unless it is worse beyond noise. The next round starts from the latest
    checkpoint of the policy that is as good as the best. OUT/index.html shows the rounds. The same command resumes an
    interrupted run.

    `rewardlab harden data=pairs.parquet held_out=held_out.parquet policy=POLICY judge=runs/rl/final truth=exact --out
    runs/harden`. `rewardlab configs keys harden` lists the keys; the command lines of the stages are keys as well.
    """
    from rewardlab.config import load_config, parse_overrides
    from rewardlab.config.pipeline import HardenConfig
    from rewardlab.pipelines.hardening import PAGE, run_loop, values_of
    from rewardlab.pipelines.runner import fill_stages

    settings = load_config(HardenConfig, config, parse_overrides(overrides or ()))
    for stage in fill_stages(settings.stages, values_of(settings)):
        check_line(app, stage.words)
    last = run_loop(settings, out)
    policy = folder if (folder := out / last.next_policy).is_dir() else last.next_policy
    typer.echo(f"written: {out / PAGE}\njudge: {out / last.next_judge}\npolicy: {policy}")
