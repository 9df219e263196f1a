"""Studies, from a checkout: `python -m eval.studies stability --run runs/quickstart --out runs/stability`."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated, Optional

import typer

from eval.scripts import run_script
from rewardlab.cli.options import Out
from rewardlab.errors import ConfigError

app = typer.Typer(
    help="Controlled experiments on the training methods.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


MaxMinutes = Annotated[
    Optional[float], typer.Option("--max-minutes", min=0, help="Begin no trial after so many minutes (default: run all).")
]
Records = Annotated[
    Path, typer.Option("--records", help="All finished trials in one file, a line each; the report is written beside it.")
]
Arms = Annotated[
    Optional[str],
    typer.Option("--arms", help="Some of the arms, comma-separated (default: all; an unknown one lists them)."),
]


@app.command("stability")
def study_stability(
    run: Annotated[Path, typer.Option("--run", help="A finished quickstart.")] = Path("runs/quickstart"),
    out: Out = Path("runs/stability"),
    arms: Arms = None,
    rates: Annotated[str, typer.Option("--rates", help="Learning rates, comma-separated.")] = "1e-4,3e-4,6e-4",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds 0 to N - 1.")] = 5,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes, of one thread each.")] = 2,
) -> None:
    """Does StableReinforce still matter when the actor sees?

    Trains the quickstart's judge on from where its RL ended, on pairs it mostly gets right, several updates per rollout
    batch: REINFORCE++, the pre-clip and the 3-sigma filter of StableReinforce alone and together, the filter with the
    bounds of R1-Reward's released code, clipping instead of deleting, dual-clip, GRPO, and two with the released code's
    blind actor. All start from the same weights and see the same pairs; only the method, the learning rate and the seed
    differ.

    Leaves `OUT/stability.md`, `.json` and `.png`: collapses, final accuracy, invalid answers, gradient norms, what was
    clipped and deleted, and differences paired by seed, with 95 % intervals. Every finished trial is a file in
    `OUT/trials`: kill it at any time and run the same command again; more seeds, rates or arms add to what is there.
    """
    from functools import partial

    from eval.studies.report import write_report
    from eval.studies.runner import read_records, run_trials
    from eval.studies.stability import ARMS, Settings, plan
    from eval.studies.summary import summarize
    from eval.studies.trials import StabilityContext

    chosen = tuple(arms.split(",")) if arms else tuple(ARMS)
    trials = plan(chosen, learning_rates(rates), tuple(range(seeds)))
    start = run_trials(partial(StabilityContext, run, Settings()), trials, out, workers=workers)
    typer.echo(f"report: {write_report(summarize(read_records(out), start, workers), out)}")


def learning_rates(text: str) -> tuple[float, ...]:
    """Return the numbers of a comma-separated list. Raise ConfigError for anything else."""
    try:
        return tuple(float(rate) for rate in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--rates {text!r}: expected numbers with commas between them, for example 1e-4,3e-4") from error


@app.command("methods")
def study_methods(
    run: Annotated[Path, typer.Option("--run", help="A finished quickstart, or one up to SFT.")] = Path("runs/quickstart_hard"),
    out: Out = Path("runs/methods"),
    records: Records = Path("eval/results/methods_hard.jsonl"),
    configs: Annotated[Path, typer.Option("--configs", help="Folder of the methods' recipes.")] = Path("configs/rl"),
    arms: Arms = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=100, help="Seeds 0 to N - 1.")] = 5,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes, of one thread each.")] = 2,
    max_minutes: Annotated[
        Optional[float],
        typer.Option("--max-minutes", min=0, help="Begin no trial after so many minutes (default: all trials)."),
    ] = None,
) -> None:
    """Which method makes a judge better, on the same judge and pairs, at two budgets of generated tokens?

    Trains the SFT judge with every recipe of `configs/rl/`, scaled to the demonstration, each at the best of three learning
    rates on validation pairs. A plan of what is done and what is left is printed first. All finished trials are lines of
    `--records`; the report is beside it, `.md`, `.json` and two plots. Kill it at any time and run the same command again, also
    with an empty `--out`: what the records hold is not done again. More seeds or arms add to what is there.
    """
    from functools import partial

    from eval.studies.method_study import run_study
    from eval.studies.method_trials import MethodContext
    from eval.studies.methods import ARMS, Settings

    opener = partial(MethodContext, run, Settings(), out, configs)
    chosen = arms.split(",") if arms else list(ARMS)
    report = run_study(opener, out, records, chosen, num_seeds=seeds, workers=workers, end=end_of(max_minutes), show=typer.echo)
    typer.echo(f"report: {report}" if report.exists() else "no trial is finished yet, so that there is no report")


def end_of(max_minutes: float | None) -> float:
    """Return the time (of :func:`time.monotonic`) after which no trial begins."""
    return math.inf if max_minutes is None else time.monotonic() + 60 * max_minutes


@app.command("policy")
def study_policy(
    run: Annotated[Path, typer.Option("--run", help="A finished quickstart.")] = Path("runs/quickstart"),
    out: Out = Path("runs/policy"),
    arms: Arms = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds 0 to N - 1.")] = 5,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes, of one thread each.")] = 2,
    hardened: Annotated[
        Optional[list[Path]],
        typer.Option("--hardened", help="Checkpoint of a hardened judge, for the arm of that name; of several, repeatable."),
    ] = None,
) -> None:
    """What does a judge make of a policy, beside a scalar head and the truth?

    Trains one policy, right about half the time, on what each of them pays. Leaves `OUT/policy.md`, `.json` and `.png`:
    held-out accuracy with 95 % intervals over seeds, and at every step what was paid beside what was true (where the two
    part, the reward is being hacked). A finished trial is a file in `OUT/trials`: kill it and run the same command again.
    """
    from functools import partial

    from eval.studies.plans import plan
    from eval.studies.policy import ARMS, Settings
    from eval.studies.policy_report import summarize, write_report
    from eval.studies.policy_trials import PolicyContext
    from eval.studies.runner import read_records, run_trials

    names = (
        arms.split(",") if arms else [name for name, arm in ARMS.items() if hardened or arm.judge not in ("hardened", "least")]
    )
    trials = plan(ARMS, names, range(seeds))
    start = run_trials(partial(PolicyContext, run, Settings(), out, hardened or ()), trials, out, workers=workers)
    typer.echo(f"report: {write_report(summarize(read_records(out), start, workers), out)}")


def main() -> None:
    """Run the command line."""
    run_script(lambda: app(prog_name="python -m eval.studies"))


if __name__ == "__main__":
    main()
