"""Benchmarks: run one, score outputs as its own scorer does, check a published row."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from rewardlab.benchmarks.registry import EXPORTS, FORMS, PACKAGED
from rewardlab.cli.commands import command
from rewardlab.cli.exit_codes import ExitCode
from rewardlab.cli.options import (
    JUDGING,
    Allow,
    AllowColumns,
    AsJson,
    Budgets,
    JudgeKeys,
    JudgeOption,
    MaxFailed,
    Out,
    Price,
    Votes,
    allowances,
    app,
    bench_app,
    columns_of,
    judge_of,
    parse_budget,
    parse_judge_keys,
    parse_prices,
)
from rewardlab.errors import ConfigError
from rewardlab.processes import command_line
from rewardlab.samplers.failures import MAX_FAILED

if TYPE_CHECKING:
    from rewardlab.benchmarks.arithmetic import RunCheck


ROWS = "Rows"  # a panel of options

if TYPE_CHECKING:
    from rewardlab.benchmarks.base import Row
    from rewardlab.benchmarks.report_model import Report


def show_run(report: Report, rows: Sequence[Row], out: Path, *, as_json: bool, all_judgments: bool) -> None:
    """Write a run's reports and print one. Raise Exit with the status of a run that failed, that has no verdict, or that does
    not meet a requirement."""
    from rewardlab.benchmarks.report import summary_line, terminal_text, write_reports

    write_reports(report, rows, out, all_judgments=all_judgments)
    typer.echo(json.dumps(report.to_json(), indent=1) if as_json else terminal_text(report))
    exported = "; official.jsonl (for bench official)" if report.official else ""
    if not as_json:
        typer.echo(
            f"written: {out}/report.json, report.md, report.html; votes.jsonl, scores.jsonl (for bench compare){exported}"
        )
        typer.echo(f"{summary_line(report)} -> {out}/report.html")
    if report.failure:
        typer.echo(f"the run failed: {report.failure}", err=True)
        raise typer.Exit(ExitCode.ENDPOINT)
    for result in report.requirements:
        typer.echo(result.sentence, err=as_json or not result.is_met)
    if is_unread := report.scores.invalid_rate == 1:
        typer.echo("\n".join(report.findings), err=True)
    if is_unread or not all(result.is_met for result in report.requirements):
        raise typer.Exit(1)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of `bench run`."""

    benchmark: Annotated[
        str,
        typer.Argument(
            help=f"{', '.join(PACKAGED)} (your own labelled .parquet/.jsonl), one of an installed package, or a Python file "
            "with a BENCHMARK; NAME:attacked: its pairs under attack; rewardbench2:choice and :ratings: its own protocols."
        ),
    ]
    overrides: JudgeKeys = None
    judge: JudgeOption
    out: Out
    votes: Votes = None
    data: Annotated[
        Optional[Path],
        typer.Option(
            "--data",
            help="The benchmark's data file (mmrb2: or the folder of its four files); "
            "default: the files fetched by `bench prepare`.",
            rich_help_panel=ROWS,
        ),
    ] = None
    images: Annotated[
        Optional[Path], typer.Option("--images", help="Folder of the benchmark's images.", rich_help_panel=ROWS)
    ] = None
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N rows.", rich_help_panel=ROWS)] = None
    seed: Annotated[int, typer.Option("--seed", help="Random seed.")] = 0
    controls: Annotated[
        str, typer.Option("--controls", help="Extra greedy passes, comma-separated: greedy, blank, other; '' for none.")
    ] = "blank"
    require: Annotated[
        list[str],
        typer.Option(
            "--require",
            help="Exit status 1 unless a number of report.json, given by its path, is within a bound: 'accuracy.micro>=0.7', "
            "'interval.low>=65%' (the lower bound), 'groups.GROUP.accuracy>=0.6', 'position_bias<=0.05' (its absolute value), "
            "'robustness.held_out.good_unnamed.share<=0.02'. Repeatable.",
        ),
    ] = field(default_factory=list)
    max_failed: MaxFailed = MAX_FAILED
    as_json: AsJson = False
    all_judgments: Annotated[
        bool,
        typer.Option("--all-judgments", help="Also write pages of every judgment, 200 rows each, to OUT/judgments."),
    ] = False
    cluster: Annotated[
        Optional[str],
        typer.Option(
            "--cluster",
            help="Unit that intervals resample, for pairs of your own: prompt (same "
            "images, or the same question if there are none; the "
            "default), image (any in common), question, pair, or a column of --data.",
            rich_help_panel=ROWS,
        ),
    ] = None
    allow: Allow = None
    labels: Annotated[
        Optional[Path],
        typer.Option(
            "--labels",
            help="JSON lines of people's ratings (`pair_id`, `rater`, `choice`): they label pairs without a label, and the "
            "report has the judge's agreement with people. Pairs that name two systems are judged without a label, too.",
            rich_help_panel=ROWS,
        ),
    ] = None
    price: Price = ""
    budget: Budgets = ""


@command(bench_app, "run")
def bench_run(options: RunOptions) -> None:
    """Score a judge: votes in both orders, intervals, swap consistency, position bias, baselines; JSON, Markdown, HTML.

    The report holds the judge's config: `rewardlab serve --judge OUT` serves what was measured. A replay file (`--judge
    replay:FILE`) has one sample a line, `{"row": 0, "order": "given", "text": "..."}`, or one pair of scores of a scalar model,
    `{"row": 0, "scores": [0.3, 0.7]}`, or an outcome, `{"row": 0, "right": true}`; `row` is the 0-based row of the data file,
    index 0 its first/chosen response. Texts are read as R1-Reward writes them (`<answer>1</answer>`) unless `template=` names
    another format; a finished run's `votes.jsonl` is a replay file, too.
    `NAME:attacked` measures how often an attack makes a worse answer win: `--limit` pairs (100), sampled by the seed, each
    under every family of attacks, with harmless words as a control; report the metrics of held-out families.
    `NAME:attacked=degenerate,order` selects families or kinds. Judged once in both orders at temperature 0.
    `rewardbench2:choice` shows four answers at once, `:ratings` each alone, in the words of `template=FILE` ({question} {a} {b}
    {c} {d}, or {question} {first}), at temperature 0 with 2,048 tokens.

    The same command resumes a killed run. **Exit status 1** if no verdict could be parsed from any answer: `template=`
    does not fit the judge. **Exit status 3** if an endpoint keeps refusing requests, or more than `--max-failed` of the
    votes failed; the report is then marked as failed.
    """
    import rewardlab.benchmarks.report  # noqa: F401  (what it lacks is said before anything is queried)
    from rewardlab.benchmarks.benchmark import run_benchmark
    from rewardlab.benchmarks.requirements import parse_requirement
    from rewardlab.benchmarks.settings import bench_settings
    from rewardlab.data.set_checks import NO_IMAGES

    columns_of(options.allow, (NO_IMAGES,))
    settings = bench_settings(
        options.benchmark,
        options.data,
        judge_of(options.judge, options.overrides, options.votes),
        images=options.images,
        limit=options.limit,
        seed=options.seed,
        controls=tuple(name for name in options.controls.split(",") if name),
        max_failed=options.max_failed,
        prices=parse_prices(options.price),
        budget=parse_budget(options.budget),
        command=command_line(),
        cluster=options.cluster,
        **allowances(options.allow),
        labels=options.labels,
        requirements=tuple(map(parse_requirement, options.require)),
    )
    report, rows = run_benchmark(settings, options.out)
    show_run(report, rows, options.out, as_json=options.as_json, all_judgments=options.all_judgments)


@dataclass(frozen=True, kw_only=True)
class SuiteOptions:
    """Options of `bench suite`."""

    suite: Annotated[
        Path, typer.Argument(help="YAML of the benchmarks and the judge's keys for each, such as eval/images.yaml.")
    ]
    overrides: JudgeKeys = None
    judge: JudgeOption
    root: Annotated[Path, typer.Option("--root", help="Folder that holds the suite's data files.")]
    out: Out
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N rows of each.")] = None
    price: Price = ""
    budget: Budgets = ""


@command(bench_app, "suite")
def bench_suite(options: SuiteOptions) -> None:
    """Run every benchmark of a suite; write one folder of reports per benchmark and a summary table, `suite.md`.

    Missing data is reported before anything is queried; the same command resumes a killed run. `bench prepare` fetches data.
    A budget covers all benchmarks together; the exit status is 3 once it is spent, or if a run failed. **Exit status 1**
    if no verdict could be parsed from any answer on one of the benchmarks.
    """
    from rewardlab.benchmarks.suite import entry_settings, is_unread, run_suite
    from rewardlab.config import SuiteConfig, load_config

    config = load_config(SuiteConfig, options.suite)
    shared: dict[str, Any] = {"limit": options.limit} if options.limit else {}
    shared |= {"prices": parse_prices(options.price), "budget": parse_budget(options.budget)}
    keys = parse_judge_keys(options.overrides)
    settings = entry_settings(config, options.root, options.judge, keys, command=command_line(), **shared)
    text, reports = run_suite(config, settings, options.out)
    typer.echo(text)
    typer.echo(f"written: {options.out}/suite.md, and a folder for each benchmark")
    if any(report.failure for report in reports.values()):
        typer.echo("some runs failed at the endpoint; run the same command again to retry them", err=True)
        raise typer.Exit(ExitCode.ENDPOINT)
    if unread := {name: report for name, report in reports.items() if is_unread(report)}:
        typer.echo("\n".join(f"{name}: {finding}" for name, report in unread.items() for finding in report.findings), err=True)
        raise typer.Exit(ExitCode.FINDING)


@bench_app.command("compare")
def bench_compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of finished runs of one benchmark; others are compared with the first.")
    ],
    different_protocols: Annotated[
        bool,
        typer.Option(
            "--different-protocols", help="Also compare runs with other orders, votes or sampling; the differences are listed."
        ),
    ] = False,
    out: Annotated[
        Optional[Path],
        typer.Option("--out", help="Also write to this .md, .html, .csv (unformatted numbers) or .tex file (for a paper)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Leaderboard of several runs: accuracies with intervals, and each run's paired difference to the first, with a p-value.

    Macro average, swap consistency, Acc+ and, with ties, accuracy in three classes are compared too, by paired differences
    with intervals. With three or more runs all pairs are tested, p-values are adjusted for that (Holm), and each judge has an
    interval of its rank. Runs with other
    orders, votes or sampling are refused, because the difference could come from the protocol. A terminal shows the columns
    that fit, or a list if it is narrow; in a pipe the complete table is printed as Markdown. p-values are of sign flips,
    intervals of Student's t: close to 5 % they may disagree; decide by p.
    """
    from rewardlab.benchmarks.comparison import compare_runs, protocol_sentences, read_run
    from rewardlab.benchmarks.leaderboard import (
        leaderboard_csv,
        leaderboard_html,
        leaderboard_latex,
        leaderboard_markdown,
        leaderboard_text,
    )
    from rewardlab.benchmarks.report_model import json_form
    from rewardlab.data.files import write_atomic

    if out is not None and out.suffix not in (".md", ".html", ".csv", ".tex"):
        raise ConfigError(f"--out {out}: expected a .md, .html, .csv or .tex file")
    finished = [read_run(folder) for folder in runs]
    sentences = protocol_sentences(finished)
    if sentences and not different_protocols:
        raise ConfigError(f"{sentences[0]}; run both with the same settings, or add --different-protocols")
    differences = "".join(f"- {sentence}\n" for sentence in sentences)
    if as_json:
        typer.echo(json.dumps(json_form(compare_runs(finished, sentences)), indent=1, allow_nan=False))
    elif sys.stdout.isatty():
        typer.echo(leaderboard_text(finished, max(40, shutil.get_terminal_size().columns)) + differences)
    else:
        typer.echo(leaderboard_markdown(finished) + differences)
    if out is not None:
        forms = {".html": leaderboard_html, ".csv": leaderboard_csv, ".tex": leaderboard_latex}
        write_atomic(out, forms[out.suffix](finished) if out.suffix in forms else leaderboard_markdown(finished) + differences)


@bench_app.command("list")
def bench_list() -> None:
    """List the benchmarks of `bench run`: pairs, groups, where their files are, and which have their official scorer included.

    Also lists benchmarks of installed packages (entry points); a Python file with a benchmark of your own works too.
    """
    from rewardlab.benchmarks.registry import GROUP, find_benchmark, packaged_benchmarks
    from rewardlab.extensions import extension_names

    for benchmark in [*packaged_benchmarks(), *map(find_benchmark, extension_names(GROUP))]:
        total, groups = sum(benchmark.sizes.values()), ", ".join(f"{name} {size:,}" for name, size in benchmark.sizes.items())
        files = benchmark.files
        facts = [f"{total:,} pairs: {groups}" if total else "any number of pairs"]
        facts.append(
            (f"files: {files.repo or f'{len(files.urls)} by address'} (bench prepare)") if files else "files: your own"
        )
        facts.append(f"official scorer: {', '.join(benchmark.scorers)}" if benchmark.scorers else "no official scorer here")
        typer.echo(f"{benchmark.name}: {'; '.join(facts)}")


@bench_app.command("prepare")
def bench_prepare(
    benchmark: Annotated[
        str,
        typer.Argument(help="A benchmark of `bench run` with known files; any other name lists these benchmarks."),
    ],
    out: Annotated[
        Optional[Path],
        typer.Option(
            "--out",
            help="Folder to fetch to (needs a network; default: where `bench run` looks without --data, "
            "~/.cache/rewardlab/benchmarks or $REWARDLAB_DATA).",
        ),
    ] = None,
    data: Annotated[
        Optional[Path], typer.Option("--check", help="A local file or folder to check instead of fetching.")
    ] = None,
) -> None:
    """Fetch a benchmark's files, or check local ones: known hashes, rows and labels per group.

    Everything is fetched at one revision, which `prepared.json` names beside the files' hashes. **Exit status 1** if a file
    differs from the known one, or a group from its published size. Check the data's licence yourself.
    """
    from rewardlab.benchmarks.prepare import check_files, fetch_files, prepared_folder

    if out is not None and data is not None:
        raise ConfigError("expected either --out FOLDER, to fetch, or --check PATH")
    place = data or out or prepared_folder(benchmark)
    if data is None:
        record = fetch_files(benchmark, place)
        typer.echo(f"fetched {len(record.files):,} files of {benchmark} at {record.revision} to {place}")
    sentences, is_good = check_files(benchmark, place)
    typer.echo("\n".join(sentences))
    if not is_good:
        raise typer.Exit(1)


@bench_app.command("import")
def bench_import(
    form: Annotated[str, typer.Argument(help=f"Format of the recording: {', '.join(FORMS)}.")],
    recording: Annotated[Path, typer.Argument(help="The file that the tool wrote.")],
    data: Annotated[Path, typer.Option("--data", help="The benchmark's data file, as in `bench run`.")],
    out: Annotated[Path, typer.Option("--out", help="Replay file to write.")],
    benchmark: Annotated[
        Optional[str], typer.Option("--benchmark", help="The benchmark of --data (default: the form's; outcomes: pairs).")
    ] = None,
    allow: AllowColumns = None,
) -> None:
    """Convert another tool's recorded answers into a replay file: official inference files, lmms-eval, VLMEvalKit, IXC, Every
    Eval Ever, 0/1 outcomes.

    Samples are matched to rows by text or id, and keep their order of presentation. Samples without
    a row are counted; **more than 5 %** is an error. The command to score the file is printed.
    """
    from rewardlab.benchmarks.recordings import import_recording
    from rewardlab.benchmarks.registry import find_benchmark
    from rewardlab.benchmarks.rows import load_rows_as_stored
    from rewardlab.benchmarks.settings import bench_settings
    from rewardlab.data.files import write_atomic

    name = benchmark or FORMS.get(form, "pairs")
    settings = bench_settings(name, data, f"replay:{out}", allow_columns=columns_of(allow))
    rows = load_rows_as_stored(find_benchmark(name), settings, with_images=False)
    result = import_recording(form, recording, rows)
    write_atomic(out, "".join(json.dumps(line) + "\n" for line in result.rows))
    typer.echo(
        f"{len(result.rows):,} of {result.num_samples:,} samples, of {result.num_rows:,} of {len(rows):,} rows; "
        f"{result.num_unmatched:,} match no row"
    )
    template = f" template={result.template}" if result.template else ""
    command = ["rewardlab", "bench", "run", name, "--data", str(data), "--judge", f"replay:{out}"]
    command += ["--allow", allow] if allow else []
    typer.echo(f"written: {out}; score it: {shlex.join(command)}{template} --out RUN")


@bench_app.command("gate")
def bench_gate(
    old: Annotated[Path, typer.Argument(help="Folder of the reference run; report.json and scores.jsonl are enough.")],
    new: Annotated[Path, typer.Argument(help="Folder of the candidate run, on the same pairs with the same protocol.")],
    figures: Annotated[
        list[str],
        typer.Option(
            "--figure",
            help="accuracy, three_way (sets with ties), invalid_rate, or flipped, invalid or split (fractions of pairs; lower "
            "is better), or that of a group: accuracy[GROUP]. Repeatable; all must pass.",
        ),
    ] = ["accuracy"],  # noqa: B006  (typer's way to say a default)
    margin: Annotated[
        float, typer.Option("--margin", min=0.0, max=1.0, help="Loss to tolerate: 0.01 is one percentage point.")
    ] = 0.0,
    proves: Annotated[
        bool,
        typer.Option(
            "--prove",
            help="Pass only if NEW is shown to lose no more than --margin (default: pass unless NEW is shown to lose more).",
        ),
    ] = False,
    allow_more_invalid: Annotated[
        bool, typer.Option("--allow-more-invalid", help="Allow NEW to have more answers without a verdict than OLD.")
    ] = False,
) -> None:
    """Is NEW worse than OLD beyond noise? By the paired interval of `bench compare`, for a gate in continuous integration.

    **Exit status 1** if NEW is worse, if its invalid rate rises beyond noise, or if either run is unusable:
    votes that failed at the endpoint, no verdict at all, inconsistent sums. Runs on other pairs, or with another protocol, are
    refused. With few pairs the interval is wide and most changes pass: the output states the largest loss that is not ruled
    out, and `--prove` reverses the burden of proof. The interval decides; p is of another test (sign flips), and close to 5 %
    the two may disagree.
    """
    from rewardlab.benchmarks.comparison import INVALID_RATE, GateFigure, faults_of, gate_runs, parse_figure, read_run

    wanted = [parse_figure(figure) for figure in figures]
    before, after = read_run(old), read_run(new)
    verdicts = [gate_runs(before, after, figure, margin=margin, proves=proves) for figure in wanted]
    if not allow_more_invalid and GateFigure(INVALID_RATE) not in wanted:
        verdicts.append(gate_runs(before, after, GateFigure(INVALID_RATE)))
    faults = [*faults_of(before), *faults_of(after)]
    for sentence in [*faults, *(verdict.sentence for verdict in verdicts)]:
        typer.echo(sentence)
    if faults or not all(verdict.passes for verdict in verdicts):
        typer.echo(f"{new} does not pass", err=True)
        raise typer.Exit(1)


@dataclass(frozen=True, kw_only=True)
class AgreeOptions:
    """Options of `agree`."""

    run: Annotated[Path, typer.Argument(help="Folder of a finished `bench run`.")]
    labels: Annotated[
        Optional[Path],
        typer.Option(
            "--labels", help="JSON lines of people's ratings; default: those of the benchmark's own file, if it has any."
        ),
    ] = None
    epsilon: Annotated[
        Optional[float],
        typer.Option(
            "--epsilon",
            min=0.0,
            max=1.0,
            help="By how much the judge may fall behind a rater (default: 0.1): 0.2 for experts, 0.1 for crowds.",
        ),
    ] = None
    require: Annotated[
        list[str],
        typer.Option(
            "--require", help="Exit status 1 unless a number is within a bound: 'agreement.advantage>=0.8'. Repeatable."
        ),
    ] = field(default_factory=list)
    as_json: AsJson = False


@command(app, "agree", rich_help_panel=JUDGING)
def agree_command(options: AgreeOptions) -> None:
    """Compare a judge with people: agreement, and whether it may replace a rater.

    Each line of `--labels` is one rating: `{"pair_id": "p1", "rater": "ann", "choice": 0}`; choices are 0, 1, tie, both_bad and
    skip. The report shows one person and the judge against the label that all ratings of a pair come to, Krippendorff's alpha,
    and the alternative annotator test (arXiv 2501.10970): each rater is compared with the others, and so is the judge in their
    place. It is added to RUN/report.json and report.md; `bench run ... --labels FILE` also adds it to the page.
    """
    from rewardlab.benchmarks.comparison import add_agreement
    from rewardlab.benchmarks.report import part_markdown, report_markdown, report_parts
    from rewardlab.benchmarks.requirements import check_report, parse_requirement
    from rewardlab.data.files import write_atomic

    required = list(map(parse_requirement, options.require))
    report = add_agreement(options.run, options.labels, epsilon=options.epsilon)
    write_atomic(options.run / "report.md", report_markdown(report))
    [part] = [part for part in report_parts(report) if part.title == "People"]
    typer.echo(json.dumps(report.to_json()["agreement"], indent=1) if options.as_json else part_markdown(part))
    results = [check_report(report, requirement) for requirement in required]
    for result in results:
        typer.echo(result.sentence, err=options.as_json or not result.is_met)
    if not all(result.is_met for result in results):
        raise typer.Exit(ExitCode.FINDING)


@bench_app.command("calibrate")
def bench_calibrate(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run of a prob: judge whose checkpoint is a local folder.")],
) -> None:
    """Fit the temperature of a judge's verdict probabilities on a run, and store it with the checkpoint.

    `rewardlab bench run pairs --judge prob:runs/rl/final --data held_out.parquet --votes 5 --out runs/held_out`, then
    `rewardlab bench calibrate runs/held_out`. From then on it divides the verdict log-odds wherever the checkpoint is
    used as a `prob:` judge: in benchmarks, behind the endpoint, as a policy's reward. `prob@1:PATH` is the same judge without
    it. Benchmark with the number of votes that you will use later, and measure calibration on other pairs.
    """
    from rewardlab.benchmarks.calibrate import calibrate_run

    fit = calibrate_run(run)
    low, high = fit.gain
    typer.echo(
        f"temperature {fit.tau:.4g} on {fit.pairs:,} pairs, {fit.rationales} votes per order; {fit.unreadable:,} are invalid"
    )
    typer.echo(
        f"negative log-likelihood {fit.nll_before:.4f} -> {fit.nll:.4f} (less by {low:+.4f} to {high:+.4f}), calibration error "
        f"{fit.ece_before:.4f} -> {fit.ece:.4f}"
    )
    typer.echo(f"stored in {fit.checkpoint}/rewardlab.json")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of `bench export`."""

    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")]
    out: Annotated[
        Path, typer.Option("--out", help="Inspect: a file, .eval (small) or .json (to read); Every Eval Ever: a folder.")
    ]
    form: Annotated[str, typer.Option("--form", help=f"{' or '.join(EXPORTS)}.")] = "inspect"
    data: Annotated[Optional[Path], typer.Option("--data", help="The run's data file, if it has moved since.")] = None
    images: Annotated[Optional[Path], typer.Option("--images", help="Folder of the benchmark's images, as in the run.")] = None
    benchmark: Annotated[
        Optional[str], typer.Option("--benchmark", help="The Python file of the benchmark, if it was run from one.")
    ] = None
    with_images: Annotated[
        bool, typer.Option("--with-images/--without-images", help="Put the images into the log of Inspect.")
    ] = True
    model: Annotated[
        str, typer.Option("--model", help="Every Eval Ever: the judge's model as OWNER/NAME, as others know it.")
    ] = ""
    allow: AllowColumns = None


@command(bench_app, "export")
def bench_export(options: ExportOptions) -> None:
    """Write a run with the votes of both orders for other tools: a log of Inspect (inspect_ai), or records of Every Eval Ever.

    `--form inspect`: a sample per pair with its images, votes and scores; `pip install 'rewardlab[inspect]'`, then
    `inspect view --log-dir FOLDER` shows it. `--form every_eval_ever` (arXiv 2606.14516): below --out, metrics with intervals
    as data/BENCHMARK/OWNER/NAME/ID.json, and a line per vote in ID_samples.jsonl, which `bench import every_eval_ever` reads.
    Metrics are those of the run's report.
    """
    from rewardlab.benchmarks.comparison import read_run
    from rewardlab.benchmarks.every_eval_ever import write_every_eval_ever
    from rewardlab.benchmarks.inspect_log import write_inspect_log
    from rewardlab.benchmarks.registry import find_benchmark
    from rewardlab.benchmarks.rows import load_rows_as_stored
    from rewardlab.benchmarks.settings import bench_settings
    from rewardlab.data.files import data_hash
    from rewardlab.errors import DataError

    if options.form not in EXPORTS:
        raise ConfigError(f"--form {options.form}: expected {' or '.join(EXPORTS)}")
    run, is_inspect = options.run, options.form == "inspect"
    if options.model and is_inspect:
        raise ConfigError("--model is for --form every_eval_ever; leave it out")
    finished = read_run(run)
    place = options.data or Path(finished.report.data)
    if not place.exists():
        raise DataError(f"{place}: the run's data file is missing; give it with --data")
    if data_hash(place) != finished.report.data_sha256:
        raise DataError(f"{place}: is not the data file of {run}, or has changed since; give the original with --data")
    name, allowed = options.benchmark or finished.report.benchmark, columns_of(options.allow)
    settings = bench_settings(name, place, finished.report.judge, images=options.images, allow_columns=allowed)
    with_images = options.with_images and is_inspect
    benchmark = find_benchmark(name)
    rows = load_rows_as_stored(benchmark, settings, with_images=with_images)
    if is_inspect:
        write_inspect_log(finished, rows, options.out, with_images=with_images)
        look = f"inspect view --log-dir {options.out.parent}"
    else:
        repo = benchmark.files.repo if benchmark.files else ""
        look = str(write_every_eval_ever(finished, rows, options.out, model=options.model, repo=repo))
    typer.echo(f"written: {options.out} ({len(finished.rows):,} pairs); {look}")


@bench_app.command("figures")
def bench_figures(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the files.")],
    formats: Annotated[str, typer.Option("--format", help="svg, pdf and png, comma-separated.")] = "svg,pdf",
) -> None:
    """Write the figures of runs to files: those of the report pages and, for several runs on the same data, one with all
    judges.

    They have a white background. The same run gives the same files.
    """
    from rewardlab.benchmarks.comparison import read_run
    from rewardlab.benchmarks.leaderboard import write_figures

    wanted = [name.strip() for name in formats.split(",") if name.strip()]
    written = write_figures([read_run(folder) for folder in runs], out, wanted)
    typer.echo(f"written: {len(written)} files in {out}, {written[0].name} to {written[-1].name}" if written else "no figure")


@bench_app.command("table")
def bench_table(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, in the order of the rows.")],
    out: Annotated[
        Path, typer.Option("--out", help="File to write: .csv (all metrics), .tex (booktabs) or .md (main metrics).")
    ],
) -> None:
    """Write the metrics of runs as a table: CSV with all metrics and intervals, LaTeX or Markdown with the main ones.

    `bench compare` tests the differences between runs.
    """
    from rewardlab.benchmarks.comparison import read_run
    from rewardlab.benchmarks.leaderboard import write_table

    write_table([read_run(folder) for folder in runs], out)
    typer.echo(f"written: {out} ({len(runs)} {'run' if len(runs) == 1 else 'runs'})")


@bench_app.command("index")
def bench_index(folder: Annotated[Path, typer.Argument(help="Folder that contains the run folders, at any depth.")]) -> None:
    """Write a page that lists all runs below a folder: accuracy, problems of each judge, and links to the reports."""
    from rewardlab.benchmarks.leaderboard import write_index

    page, faults = write_index(folder)
    for fault in faults:
        typer.echo(fault, err=True)
    typer.echo(f"written: {page}")


@bench_app.command("official")
def bench_official(
    benchmark: Annotated[
        Optional[str], typer.Argument(help="The scorer: the name of a benchmark or of one of its tasks; lists all if omitted.")
    ] = None,
    outputs: Annotated[
        Optional[Path],
        typer.Argument(help="The file written by the benchmark's own inference script, or exported by `bench run`."),
    ] = None,
    data: Annotated[
        Optional[Path],
        typer.Option("--data", help="mmrb2 only: the task's benchmark file, or the folder of all tasks, for the labels."),
    ] = None,
) -> None:
    """Reproduce the output of the benchmark's official scorer exactly, including its quirks.

    `rewardlab bench official` alone lists the scorers and their inputs. Use these numbers only to compare with
    published ones: see each scorer's docstring.
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
        str, typer.Option("--benchmark", help="The benchmark of the published row; one with known groupings.")
    ] = "vl_rewardbench",
    as_json: AsJson = False,
) -> None:
    """Check that numbers add up: for a published row, under which grouping; for a run, from its rows to its overall accuracy.

    `rewardlab bench check general=63.84 hallucination=85.71 reasoning=64.78 overall=71.92`, `rewardlab bench check runs/bench`.
    **Exit status 1** if they do not. For a run, its groups, overall, macro, invalid rate and the end of the vote
    curve are checked. If its votes.jsonl exists, every vote is recounted: row scores, statuses, position bias, swap
    consistency, scores of ties. It must come from the report's judge, data and settings, and texts are parsed again if the
    report names a built-in verdict format.
    """
    from rewardlab.benchmarks.arithmetic import Check, fits, sentence
    from rewardlab.benchmarks.registry import find_benchmark, packaged_benchmarks
    from rewardlab.benchmarks.report_model import json_form

    if any("=" in number for number in numbers) != all("=" in number for number in numbers):
        raise ConfigError("expected only NAME=PERCENT arguments, or only run folders")
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
        raise ConfigError("expected overall=PERCENT as well as the groups")
    overall = groups.pop("overall")
    words, ranked = sentence(groups, overall, groupings, "official"), fits(groups, overall, groupings)
    check = Check(any(fit.adds_up for fit in ranked), sentence=words, groupings=tuple(ranked))
    typer.echo(json.dumps(json_form(check), indent=1) if as_json else words)
    if not check.is_good:
        raise typer.Exit(1)


def _check_run(folder: Path) -> RunCheck:
    """Return what does not add up in a run, and what was looked at."""
    from rewardlab.benchmarks.arithmetic import RunCheck, addition, count_votes, problems, vote_problems
    from rewardlab.benchmarks.base import VOTES
    from rewardlab.benchmarks.comparison import read_run

    run = read_run(folder)
    scores, failure, wrong = run.report.scores, run.report.failure, list(problems(run.report, run.rows, run.ties))
    counted = f"without {VOTES}: report and rows alone"
    if (folder / VOTES).is_file():
        votes = count_votes(folder / VOTES, [*run.rows, *run.ties], run.report.verdict_format)
        wrong += vote_problems(votes, run.report, run.rows, run.ties)
        counted = f"{scores.num_votes_total:,} votes of {VOTES} counted"
        counted += f", and those on {len(votes.ties):,} ties" if votes.ties else ""
        counted += "; their texts read anew" if votes.are_read_anew else "; their texts not read anew"
    if failed := scores.statuses.get("error", 0) + scores.statuses.get("timeout", 0):
        counted += f"; {failed:,} votes failed and count as wrong"
    is_good = not (failure or wrong)
    return RunCheck(run.name, is_good, failure, tuple(wrong), f"adds up: {addition(scores)}; {counted}" if is_good else counted)


def _faults(run: RunCheck) -> list[str]:
    return [*([f"failed: {run.failure}"] if run.failure else []), *run.problems]


def _percentage(number: str) -> tuple[str, float]:
    name, _, value = number.partition("=")
    try:
        return name, float(value)
    except ValueError as error:
        raise ConfigError(f"{number!r}: expected NAME=PERCENT, for example overall=71.92") from error
