"""Studies, from a checkout: `python -m eval.studies stability --run runs/quickstart --out runs/stability`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.markup import escape

from rewardlab.cli.exit_codes import exit_code_of
from rewardlab.cli.options import Out
from rewardlab.data.files import write_atomic
from rewardlab.errors import ConfigError, RewardlabError

app = typer.Typer(
    help="Controlled experiments on the training methods. A killed study resumes with the same command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

Run = Annotated[Path, typer.Option("--run", help="A finished quickstart; `methods` needs it up to SFT.")]
Arms = Annotated[Optional[str], typer.Option("--arms", help="Arms, comma-separated (default: all; an unknown one lists them).")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, max=100, help="Seeds 0 to N - 1.")]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Processes, of one thread each.")]


@app.command("stability")
def study_stability(
    run: Run = Path("runs/quickstart"),
    out: Out = Path("runs/stability"),
    arms: Arms = None,
    rates: Annotated[str, typer.Option("--rates", help="Learning rates, comma-separated.")] = "1e-4,3e-4,6e-4",
    seeds: Seeds = 5,
    workers: Workers = 2,
) -> None:
    """Does StableReinforce still matter when the actor sees?

    Continues training from the quickstart's RL judge, on pairs it mostly gets right, with several updates per rollout batch:
    REINFORCE++, the pre-clip and the 3-sigma filter of StableReinforce alone and together, the filter with the bounds of
    R1-Reward's released code, clipping instead of deleting, dual-clip, GRPO, and two with the released code's blind actor.
    """
    from eval.studies.stability import ARMS, Settings, StabilityContext
    from eval.studies.stability_report import draw, markdown, summarize
    from eval.studies.study import plan, read_records, run_trials
    from eval.studies.tables import write_report

    trials = plan(ARMS, arms.split(",") if arms else list(ARMS), range(seeds), numbers(rates))
    start = run_trials(partial(StabilityContext, run, Settings()), trials, out, workers=workers)
    summary = summarize(read_records(out), start, workers)
    typer.echo(f"report: {write_report('stability', summary, out, markdown=markdown, draw=draw)}")


def numbers(text: str, option: str = "--rates") -> list[float]:
    """Return the numbers of a comma-separated list. Raise ConfigError for anything else."""
    try:
        return [float(number) for number in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"{option} {text!r}: expected numbers with commas between them, for example 1e-4,3e-4") from error


@app.command("methods")
def study_methods(
    run: Run = Path("runs/quickstart_hard"),
    out: Out = Path("runs/methods"),
    arms: Arms = None,
    seeds: Seeds = 5,
    workers: Workers = 2,
    budgets: Annotated[str, typer.Option("--budgets", help="Generated tokens, with commas.")] = "60000,300000",
) -> None:
    """Which method makes a judge better, on the same judge and pairs, at the same budgets of generated tokens?

    Trains the SFT judge with every recipe of `configs/rl/`, scaled to the demonstration, and with those of `configs/dpo/` on
    its own votes for the same CPU seconds, each at the best of three learning rates on validation pairs.
    """
    from eval.studies.method_trials import MethodContext, run_methods
    from eval.studies.methods import ARMS, Settings

    settings = Settings(budgets=tuple(sorted(int(number) for number in numbers(budgets, "--budgets"))))
    opener = partial(MethodContext, run, settings, out)
    chosen = arms.split(",") if arms else list(ARMS)
    typer.echo(f"report: {run_methods(opener, out, chosen, num_seeds=seeds, workers=workers)}")


@app.command("drawings")
def study_drawings(out: Out = Path("runs/drawings"), seeds: Seeds = 3) -> None:
    """Can a judge compare answers that are drawings and clips?

    Trains the tiny base model on judgments of two drawings (one attribute wrong, one thing missing, two swapped) and of two
    clips (left or right), and measures it with blank answers, shuffled frames and as a best-of-8 endpoint.
    """
    from eval.studies.drawings import Settings, run_drawings

    typer.echo(f"report: {run_drawings(out, seeds, Settings())}")


@app.command("policy")
def study_policy(
    run: Run = Path("runs/quickstart"),
    out: Out = Path("runs/policy"),
    arms: Arms = None,
    seeds: Seeds = 5,
    workers: Workers = 2,
    hardened: Annotated[
        Optional[list[Path]],
        typer.Option("--hardened", help="Checkpoint of a hardened judge, for the arm of that name; repeatable."),
    ] = None,
    watched: Annotated[
        bool, typer.Option("--watched/--unwatched", help="Ask the judge again for its indicators: a third more time.")
    ] = True,
) -> None:
    """What does a judge make of a policy, beside a scalar head and the truth?

    Trains one policy, right about half the time, on the reward of each, and reports held-out accuracy and, step by step, the
    reward beside the truth: if the two part, the reward is being hacked.
    """
    from eval.studies.policy import ARMS, Settings
    from eval.studies.policy_report import draw, markdown, summarize
    from eval.studies.policy_trials import PolicyContext
    from eval.studies.study import plan, read_records, run_trials
    from eval.studies.tables import write_report

    names = [name for name, arm in ARMS.items() if hardened or arm.judge not in ("hardened", "least")]
    trials = plan(ARMS, arms.split(",") if arms else names, range(seeds))
    start = run_trials(partial(PolicyContext, run, Settings(), out, hardened or (), watched), trials, out, workers=workers)
    summary = summarize(read_records(out), start, workers)
    typer.echo(f"report: {write_report('policy', summary, out, markdown=markdown, draw=draw)}")


@app.command("long")
def study_long(
    run: Annotated[
        Path, typer.Option("--run", help="Folder of `eval.long_demo.quickstart` runs, one named by each seed.")
    ] = Path("runs/long"),
    out: Out = Path("runs/long_study"),
    arms: Arms = None,
    seeds: Seeds = 3,
    workers: Workers = 2,
) -> None:
    """What do these papers' methods do to long judgments? Arms for their claims, on the long demonstration.

    Trains each seed's SFT judge with every arm at equal generated tokens, and compares it by seed with the arm that it differs
    from in one part: accuracy, votes, any-of-k, lengths, re-reading, and how many lines of its reasoning are true.
    """
    from eval.studies.long import ARMS, RATE, SETTINGS, LongContext, check_runs
    from eval.studies.long_report import draw, markdown, summarize
    from eval.studies.study import plan, read_records, run_trials
    from eval.studies.tables import write_report

    check_runs(run, seeds)
    trials = plan(ARMS, arms.split(",") if arms else list(ARMS), range(seeds), [RATE])
    start = run_trials(partial(LongContext, run, SETTINGS, out), trials, out, workers=workers)
    typer.echo(
        f"report: {write_report('long', summarize(read_records(out), start, workers), out, markdown=markdown, draw=draw)}"
    )


@app.command("claims")
def study_claims(
    out: Out = Path("runs/claims"),
    long_study: Annotated[Path, typer.Option("--long", help="Folder of the long study.")] = Path("runs/long_study"),
    policy_study: Annotated[Path, typer.Option("--policy", help="Folder of the policy study.")] = Path("runs/policy"),
    stability_study: Annotated[Path, typer.Option("--stability", help="Folder of the stability study.")] = Path(
        "runs/stability"
    ),
) -> None:
    """Which claims of these papers hold here? One table, from the finished trials of `long`, `policy` and `stability`."""
    from eval.studies.claims import LONG, POLICY, STABILITY, claims_markdown, long_rows, rows_by_arm, summarize_claims
    from eval.studies.study import START, read_json, read_records

    rows, facts = {}, []
    for name, folder in ((LONG, long_study), (POLICY, policy_study)):
        if records := read_records(folder):
            start = read_json(folder / START)
            hours = (start["cpu_s"] + sum(record["cpu_s"] for record in records)) / 3600
            facts.append(f"`python -m eval.studies {name}`: {len(records)} trials, {hours:.1f} CPU hours.")
            budgets = start["identity"]["settings"].get("budgets")
            rows[name] = long_rows(records, budgets[-1]) if budgets else rows_by_arm(records)
    if (results_file := stability_study / "stability.json").exists():
        results = read_json(results_file)
        trials = [trial for trial in results["trials"] if trial["learning_rate"] == max(results["learning_rates"])]
        hours = sum(trial["cpu_s"] for trial in trials) / 3600
        facts.append(f"`python -m eval.studies stability`, at the highest rate: {len(trials)} trials, {hours:.1f} CPU hours.")
        rows[STABILITY] = rows_by_arm(trials)
    summary = summarize_claims(rows, facts)
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "claims.json", json.dumps(summary, indent=1) + "\n")
    write_atomic(out / "claims.md", claims_markdown(summary))
    typer.echo(f"report: {out / 'claims.md'}")


@app.command("closed_loop")
def study_closed_loop(run: Run = Path("runs/quickstart"), out: Out = Path("runs/closed_loop"), seeds: Seeds = 3) -> None:
    """Does a served judge improve a policy that TRL's GRPO trains, and does it pick the best of eight answers?"""
    from eval.studies.closed_loop import Settings, run_closed_loop

    result = run_closed_loop(run, out, Settings(), seeds)
    write_atomic(out / "closed_loop.json", json.dumps(result, indent=1) + "\n")
    typer.echo(f"results: {out / 'closed_loop.json'}")


def main() -> None:
    """Run the command line; an expected error is one sentence, with the exit status of `rewardlab`."""
    try:
        app(prog_name="python -m eval.studies")
    except RewardlabError as error:
        Console(stderr=True, soft_wrap=True, emoji=False).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        raise SystemExit(exit_code_of(error)) from error


if __name__ == "__main__":
    main()
