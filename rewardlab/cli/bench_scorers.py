"""Official scorers, and whether the numbers of a published row add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from rewardlab.cli.options import AsJson, bench_app
from rewardlab.errors import ConfigError

if TYPE_CHECKING:
    from rewardlab.benchmarks.arithmetic import RunCheck


@bench_app.command("official")
def bench_official(
    benchmark: Annotated[
        Optional[str], typer.Argument(help="The scorer: a benchmark's name or a part's; without one all are listed.")
    ] = None,
    outputs: Annotated[
        Optional[Path], typer.Argument(help="The file that the benchmark's own inference writes, or `bench run` exports.")
    ] = None,
    data: Annotated[
        Optional[Path], typer.Option("--data", help="mmrb2: a task's benchmark file, or the folder of all, for the labels.")
    ] = None,
) -> None:
    """Print what the benchmark's own scorer prints on these outputs, to the digit, quirks included.

    `rewardlab bench official` alone lists the scorers and what each takes. Numbers to compare with published ones, not to
    trust: see each scorer's docstring.
    """
    from rewardlab.benchmarks.official import official_lines, official_scorers

    if benchmark is None:
        typer.echo("\n".join(f"{name}: {scorer.inputs}" for name, scorer in official_scorers().items()))
        return
    if outputs is None:
        raise ConfigError(f"expected a file of outputs: rewardlab bench official {benchmark} OUTPUTS")
    typer.echo("\n".join(official_lines(benchmark, outputs, data)))


@bench_app.command("check")
def bench_check(
    numbers: Annotated[
        list[str], typer.Argument(help="NAME=PERCENT for each group, and overall=PERCENT; or folders of finished runs.")
    ],
    benchmark: Annotated[
        str, typer.Option("--benchmark", help="The benchmark of the row; its groupings must be known.")
    ] = "vl_rewardbench",
    as_json: AsJson = False,
) -> None:
    """Do the numbers add up? Of a published row: under whose grouping. Of a run: from its rows to its overall.

    `rewardlab bench check general=63.84 hallucination=85.71 reasoning=64.78 overall=71.92`, `rewardlab bench check runs/bench`.
    **Exit status 1** where they do not. Of a run its groups, overall, macro, invalid rate and the curve's end are looked at.
    Where its votes.jsonl is there every vote is counted: scores of rows, statuses, position bias, swap consistency. It must be
    of the report's judge, data and settings, and texts are read again where the report names a verdict format of the package.
    """
    from rewardlab.benchmarks.arithmetic import Check, fits, sentence
    from rewardlab.benchmarks.registry import find_benchmark, packaged_benchmarks
    from rewardlab.benchmarks.report_model import json_form

    if any("=" in number for number in numbers) != all("=" in number for number in numbers):
        raise ConfigError("expected NAME=PERCENT throughout, or folders of runs throughout")
    if all("=" not in number for number in numbers):
        checked = [_check_run(Path(folder)) for folder in numbers]
        check = Check(all(run.is_good for run in checked), tuple(checked))
        lines = (f"{run.run}: {'; '.join(_faults(run)) or run.counted}" for run in checked)
        typer.echo(json.dumps(json_form(check), indent=1) if as_json else "\n".join(lines))
        if not check.is_good:
            raise typer.Exit(1)
        return
    groupings = find_benchmark(benchmark).groupings
    if not groupings:
        names = ", ".join(other.name for other in packaged_benchmarks() if other.groupings)
        raise ConfigError(f"no groupings of {benchmark!r} are known; expected {names}")
    named = [_percentage(number) for number in numbers]
    groups = dict(named)
    if twice := [name for name in groups if [other for other, _ in named].count(name) > 1]:
        raise ConfigError(f"{twice[0]} is named twice; expected each group once")
    if "overall" not in groups:
        raise ConfigError("expected overall=PERCENT beside the groups")
    overall = groups.pop("overall")
    words, ranked = sentence(groups, overall, groupings, "official"), fits(groups, overall, groupings)
    check = Check(any(fit.adds_up for fit in ranked), sentence=words, groupings=tuple(ranked))
    typer.echo(json.dumps(json_form(check), indent=1) if as_json else words)
    if not check.is_good:
        raise typer.Exit(1)


def _check_run(folder: Path) -> RunCheck:
    """Return what does not add up in a run, and what was looked at."""
    from rewardlab.benchmarks.arithmetic import RunCheck, addition, problems
    from rewardlab.benchmarks.base import VOTES
    from rewardlab.benchmarks.comparison import read_run
    from rewardlab.benchmarks.vote_check import count_votes, vote_problems

    run = read_run(folder)
    scores, failure, wrong = run.report.scores, run.report.failure, list(problems(run.report, run.rows))
    counted = f"without {VOTES}: report and rows alone"
    if (folder / VOTES).is_file():
        votes = count_votes(folder / VOTES, run.rows, run.report.verdict_format)
        wrong += vote_problems(votes, run.report, run.rows)
        counted = f"{scores.num_votes_total:,} votes of {VOTES} counted"
        counted += "; their texts read anew" if votes.are_read_anew else "; their texts not read anew"
    if failed := scores.statuses.get("error", 0) + scores.statuses.get("timeout", 0):
        counted += f"; {failed:,} votes failed and count as wrong"
    is_good = not (failure or wrong)
    return RunCheck(run.name, is_good, failure, tuple(wrong), f"adds up: {addition(scores)}; {counted}" if is_good else counted)


def _faults(run: RunCheck) -> list[str]:
    return [*([f"failed: {run.failure}"] if run.failure else []), *run.problems]


@bench_app.command("audit-field")
def bench_audit_field(
    recording: Annotated[
        Path, typer.Argument(help="Recorded texts on VL-RewardBench: a replay file, or the votes.jsonl of a run.")
    ],
    data: Annotated[Path, typer.Option("--data", help="VL-RewardBench's data file, as in `bench run`.")],
    template: Annotated[
        Optional[str], typer.Option("--template", help="Verdict format to read the texts by (default: think_answer).")
    ] = None,
    out: Annotated[Optional[Path], typer.Option("--out", help="Picture of the table to write, as .svg.")] = None,
) -> None:
    """One recording under the rules of every public scorer of VL-RewardBench: how one judge gets seven scores, and why.

    The official scorer, R1-Reward's, Proxy-GRM's, UnifiedReward's, lmms-eval's and VLMEvalKit's, beside ours: which order each
    shows, what it makes of an answer that it cannot read, and which rows it counts in which group. A scorer that draws orders
    is shown by the mean over 200 draws, with the lowest and the highest. A language model that a scorer asks to read answers is
    not asked; what stands for it is said.
    """
    from rewardlab.benchmarks.field.audit import audit_field, audit_lines, field_picture
    from rewardlab.benchmarks.registry import find_benchmark
    from rewardlab.benchmarks.replay import Replay
    from rewardlab.data.files import write_atomic
    from rewardlab.prompts import reading_format

    if out is not None and out.suffix != ".svg":
        raise ConfigError(f"--out {out}: expected a file that ends in .svg")
    rows = find_benchmark("vl_rewardbench").load(data, images=None, with_images=False)
    scores = audit_field(Replay(recording, reading_format(template) if template else None), rows)
    typer.echo("\n".join(audit_lines(scores)))
    if out is not None:
        write_atomic(out, field_picture(scores))
        typer.echo(f"written: {out}")


def _percentage(number: str) -> tuple[str, float]:
    name, _, value = number.partition("=")
    try:
        return name, float(value)
    except ValueError as error:
        raise ConfigError(f"{number!r}: expected NAME=PERCENT, for example overall=71.92") from error
