"""`rewardlab judge`, `rank`, `audit` and `signs`: judgments of one pair and of N responses, and what rewards pay."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional
from urllib.parse import quote

import typer
from rich.console import Console
from rich.markup import escape

from rewardlab.cli.commands import command
from rewardlab.cli.exit_codes import ExitCode
from rewardlab.cli.options import (
    JUDGING,
    AllowColumns,
    JudgeKeys,
    JudgeOption,
    MaxFailed,
    Out,
    RandomSeed,
    app,
    certificate_app,
    columns_of,
    judge_of,
    refuse_run_keys,
)
from rewardlab.errors import ConfigError
from rewardlab.processes import command_line
from rewardlab.samplers.failures import MAX_FAILED
from rewardlab.types import BOTH_ORDERS, Judgment, Outcome, VerdictStatus
from rewardlab.verdicts.other_formats import other_format, unread_texts
from rewardlab.verdicts.votes import FAILED, both_orders_or_none, in_order

if TYPE_CHECKING:
    from rewardlab.rewards.reward_log import WindowMetrics


@app.command("judge", rich_help_panel=JUDGING)
def judge_command(
    judge: JudgeOption,
    question: Annotated[str, typer.Option("--question", help="The prompt that both responses answer.")],
    first: Annotated[str, typer.Option("--first", help="One response; <image> on a line of its own is an image of it.")],
    second: Annotated[str, typer.Option("--second", help="The other response, in the same form.")],
    overrides: JudgeKeys = None,
    image: Annotated[
        Optional[list[Path]],
        typer.Option("--image", help="An image file; repeat for several, in the order of the texts: question, first, second."),
    ] = None,
) -> None:
    """Judge one pair in both orders and print every vote.

    `rewardlab judge --judge hf:runs/rl/final --image a.png --question "How many?" --first "Two." --second "Three."`

    Responses that are images: `--image a.png --image b.png --question "Draw a rose." --first "<image>" --second "<image>"`.
    If the question has images as well, put an `<image>` into it for each of them.

    A response wins if more than half of the requested votes name it. Exit status 1 if neither wins and it is
    not a tie, or if one order has no valid vote (the other order alone would be position-biased); 3 if every vote of
    one order failed at the endpoint.
    """
    from rewardlab.data.inputs import pair_of
    from rewardlab.data.urls import AllowedUrls
    from rewardlab.judging.engines import open_model_judge

    config = refuse_run_keys(judge_of(judge, overrides))
    row = {"pair_id": "shell", "question": question, "responses": [first, second], "images": image or []}
    pair = pair_of(row, 0, AllowedUrls())
    opened = open_model_judge(config)
    judgment = both_orders_or_none(opened.compare(pair, num_votes=config.votes or 1))
    print_judgment(judgment)
    if opened.decides and opened.verdict_temperature != 1:
        typer.echo(
            f"the log-odds of its verdicts are divided by {opened.verdict_temperature:.4g}, the temperature of this judge"
        )
    end_without_outcome(judgment)


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """Options of `rank`."""

    data: Annotated[
        Path, typer.Argument(help="JSON lines or Parquet: `question`, `responses` (two or more), and optionally more.")
    ]
    overrides: JudgeKeys = None
    judge: JudgeOption
    out: Out
    plan: Annotated[
        str,
        typer.Option(
            "--plan",
            help="adaptive (Bradley-Terry, at most 2 N matches), knockout (N - 1), round_robin (all), circular (N, each "
            "against the next) or anchored (each against the last); PLAN=12: at most 12 matches for a prompt.",
        ),
    ] = "adaptive"
    images: Annotated[Optional[Path], typer.Option("--images", help="Folder of the rows' images.")] = None
    allow: AllowColumns = None
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N prompts.")] = None
    max_failed: MaxFailed = MAX_FAILED
    seed: RandomSeed = 0


@command(app, "rank", rich_help_panel=JUDGING)
def rank_command(options: RankOptions) -> None:
    """Rank the N responses to each question (best of N) by pairwise comparisons in both orders.

    Rows may have `images`, `group`, and `best`, the index of the best response (or a list of indices), which scores the
    result; rows of RewardBench 2 (`prompt`, `chosen`, `rejected`, `subset`) work too. Writes `rankings.jsonl`,
    `matches.jsonl` (every vote) and `report.json`; the same command resumes a killed run. `adaptive` spends its budget
    on the responses that may be best; `knockout` is cheapest if few matches are undecided. **Exit status 3** if an endpoint
    keeps refusing requests, or more than `--max-failed` of the votes failed; no metrics are shown then.
    """
    from rewardlab.data.candidates import read_candidates
    from rewardlab.judging.best_of_n import run_ranking
    from rewardlab.judging.engines import open_model_judge

    config = refuse_run_keys(judge_of(options.judge, options.overrides))
    plan, _, budget = options.plan.partition("=")
    if budget and not (budget.isdecimal() and int(budget)):
        raise ConfigError(f"--plan {options.plan}: expected PLAN=NUMBER of matches, such as adaptive=12")
    names = columns_of(options.allow)
    prompts = read_candidates(options.data, images=options.images, allow_columns=names)[: options.limit]
    report = run_ranking(
        open_model_judge(config),
        prompts,
        options.out,
        plan=plan,
        budget=int(budget) if budget else None,
        num_votes=config.votes or 1,
        seed=options.seed,
        max_failed=options.max_failed,
        command=command_line(),
    )
    if not report["failure"]:
        undecided = 100 * report["undecided_rate"]
        typer.echo(
            f"{report['num_prompts']:,} prompts, {report['matches_per_prompt']:.1f} matches each, {undecided:.1f} % undecided; "
            f"{report['without_one_best']:,} prompts without a single best response"
        )
    if failed := sum(report["statuses"].get(status, 0) for status in ("error", "timeout")):
        typer.echo(f"{failed:,} votes failed at the endpoint; the same command retries them")
    if report["other_format"]:
        typer.echo(report["other_format"])
    if report["cached_votes"]:
        typer.echo(f"cached: {report['cached_votes']:,} of {sum(report['statuses'].values()):,} votes")
    if "best_found" in report:
        for name, cell in {"best found": report["best_found"], **report["groups"]}.items():
            low, high = cell["interval"]
            typer.echo(f"{name}: {100 * cell['accuracy']:.1f} % [{100 * low:.1f}, {100 * high:.1f}] of {cell['n']:,}")
    typer.echo(f"written: {options.out}/rankings.jsonl, matches.jsonl, report.json")
    if report["failure"]:
        typer.echo(f"the run failed: {report['failure']}", err=True)
        raise typer.Exit(ExitCode.ENDPOINT)
    end_without_votes({VerdictStatus(status) for status in report["statuses"]})
    if report["unjudged_rate"] == 1:
        typer.echo("no match could be judged: too few votes are valid, or no vote of an order names a response", err=True)
        raise typer.Exit(ExitCode.ENDPOINT if failed else ExitCode.FINDING)


@certificate_app.command("write")
def certificate_write(
    run: Annotated[Path, typer.Argument(help="Folder of a finished `bench run` with the agreement of people.")],
    out: Annotated[Optional[Path], typer.Option("--out", help="File to write. [default: RUN/certificate.json]")] = None,
    attacked: Annotated[
        Optional[Path], typer.Option("--attacked", help="Folder of a run of the same judge under attack (`NAME:attacked`).")
    ] = None,
) -> None:
    """Write the certificate of a run's judge: config and weights, pairs, agreement with people, guarantee, robustness.

    `rewardlab bench run pairs --labels labels.jsonl ...`, `rewardlab guarantee RUN --labels labels.jsonl`, then
    `rewardlab certificate write RUN`. Its `id` is a hash of its content. A page with the same content is written next to it.
    """
    from rewardlab.benchmarks.certificate import certificate_page, make_certificate
    from rewardlab.data.files import write_atomic
    from rewardlab.judging.certificate import CERTIFICATE, certificate_lines

    path = out or run / CERTIFICATE
    if path.suffix != ".json":
        raise ConfigError(f"--out {path}: expected a .json file; the page of the same name ends in .html")
    content = make_certificate(run, attacked=attacked, command=command_line())
    page, text = path.with_suffix(".html"), certificate_page(content)
    write_atomic(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
    write_atomic(page, text)
    typer.echo("\n".join([*certificate_lines(content), f"written: {path}, {page}"]))


@certificate_app.command("check")
def certificate_check(
    path: Annotated[Path, typer.Argument(help="The certificate, or a folder with a certificate.json.")],
) -> None:
    """Print a certificate. Exit status 1 if it was altered, or if the judge has other weights by now (stale).

    The judge's checkpoint is looked for where the certificate names it. Weights behind an endpoint cannot be compared.
    """
    from rewardlab.errors import DataError
    from rewardlab.judging.certificate import certificate_lines, read_certificate, staleness
    from rewardlab.judging.spec import judge_weights_id

    try:
        content = read_certificate(path)
    except DataError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitCode.FINDING) from error
    typer.echo("\n".join(certificate_lines(content)))
    if why := staleness(content):
        typer.echo(why, err=True)
        raise typer.Exit(ExitCode.FINDING)
    is_known = judge_weights_id(content["judge"]["config"]["judge"])
    typer.echo(f"unaltered; {'the checkpoint has these weights' if is_known else 'its weights cannot be compared'}")


@app.command("guarantee", rich_help_panel=JUDGING)
def guarantee_command(
    run: Annotated[Path, typer.Argument(help="Folder of a finished `bench run`, in both orders.")],
    labels: Annotated[
        Optional[Path],
        typer.Option("--labels", help="People's ratings, labels.jsonl; without it the benchmark's own labels count."),
    ] = None,
    error: Annotated[float, typer.Option("--error", help="Largest fraction of the given verdicts that may be wrong.")] = 0.05,
    confidence: Annotated[
        float, typer.Option("--confidence", help="Probability, over label sets, that the error is at most --error.")
    ] = 0.9,
    seed: RandomSeed = 0,
) -> None:
    """Certify a threshold on the judge's confidence: of the verdicts above it at most `--error` are wrong.

    `rewardlab bench run pairs --judge prob:runs/rl/final --data held_out.parquet --votes 8 --out runs/held_out`, then
    `rewardlab guarantee runs/held_out --labels labels.jsonl`. Writes `guarantee.json` into the run's folder, bound to the
    judge, its weights, template, sampling and votes. The judge abstains from pairs below the threshold. One pair of each prompt
    counts, and a verdict on a pair that people call a tie is wrong. The labelled pairs must be a random sample. Use several
    votes of each order: one rationale saturates its verdict. The file has a sketch of the run, against which `rewardlab serve
    --guarantee` tests its requests.

    **Exit status 1** if no threshold can be certified.
    """
    from rewardlab.benchmarks.calibrate import certify_run, guarantee_lines
    from rewardlab.judging.guarantee import GUARANTEE

    guarantee = certify_run(run, labels, error=error, confidence=confidence, seed=seed, command=command_line())
    guarantee.write(run / GUARANTEE)
    typer.echo("\n".join([*guarantee_lines(guarantee), f"written: {run}/{GUARANTEE}"]))
    if guarantee.certified.threshold is None:
        raise typer.Exit(ExitCode.FINDING)


def end_without_outcome(judgment: Judgment) -> None:
    """Raise typer.Exit, after a sentence, where a judgment in both orders has no outcome."""
    if judgment.outcome not in (Outcome.NO_VALID_VOTE, Outcome.NO_MAJORITY):
        return
    statuses = [{vote.verdict.status for vote in in_order(judgment.votes, order)} for order in BOTH_ORDERS]
    if any(of_order <= set(FAILED) for of_order in statuses):
        every = all(of_order <= set(FAILED) for of_order in statuses)
        typer.echo(f"every vote {'' if every else 'of an order '}failed at the endpoint", err=True)
        raise typer.Exit(ExitCode.ENDPOINT)
    if (other := other_format(unread_texts(judgment.votes), least=1)) is not None:
        typer.echo(other.sentence(f"template={other.name} asks for that form, and reads it"), err=True)
    end_without_votes(set().union(*statuses))
    if judgment.outcome is Outcome.NO_MAJORITY:
        voters = "members" if any(vote.member for vote in judgment.votes) else "votes asked"
        typer.echo(f"neither response has more than half of the {voters}; more votes= may decide", err=True)
    else:
        typer.echo(f"{judgment.outcome.words}; more votes= may", err=True)
    raise typer.Exit(ExitCode.FINDING)


def end_without_votes(statuses: set[VerdictStatus]) -> None:
    """Raise typer.Exit, after a sentence, unless one of the votes of these ``statuses`` names a response."""
    if not statuses or VerdictStatus.OK in statuses:
        return
    if statuses <= set(FAILED):
        typer.echo("every vote failed at the endpoint", err=True)
        raise typer.Exit(ExitCode.ENDPOINT)
    hint = "" if VerdictStatus.TIE in statuses else "; does template= fit the judge, and max_tokens= its judgments?"
    typer.echo(f"no vote names a response{hint}", err=True)
    raise typer.Exit(ExitCode.FINDING)


def print_judgment(judgment: Judgment) -> None:
    """Print a judgment: each vote with the order of its prompt, then the outcome."""
    console, names = Console(emoji=False), ("the first response", "the second response")
    for vote in judgment.votes:
        order = "first response shown first" if vote.order.value == "given" else "second response shown first"
        verdict = f"for {names[vote.winner]}" if vote.winner is not None else f"no verdict: {vote.verdict.status.value}"
        member = f", {escape(vote.member)}" if vote.member else ""
        console.print(f"[dim]{order}{member}[/]: {escape(vote.completion.text or vote.completion.error)}")
        console.print(f"  → {verdict}", highlight=False)
    winner = judgment.outcome.winner
    outcome = f"{names[winner]} is better" if winner is not None else judgment.outcome.words
    quantity = "probability of" if any(v.verdict.rule == "probability" for v in judgment.votes) else "share of votes for"
    share = "" if judgment.share_0 is None else f" ({quantity} the first: {judgment.share_0:.0%})"
    console.print(f"[bold]{outcome}[/]{share}", highlight=False)


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Options of `audit`."""

    data: Annotated[Path, typer.Option("--data", help="Rows (see above), or the samples.jsonl of `rewardlab rl`.")]
    out: Out
    contract: Annotated[
        str,
        typer.Option(
            "--contract", help="Format of the final answer: boxed (\\boxed{}), box (GLM's box tokens) or answer (tags)."
        ),
    ] = "boxed"
    thinking: Annotated[bool, typer.Option(help="Whether responses must open with `<think>…</think>`.")] = True
    judge: Annotated[
        Optional[str],
        typer.Option("--judge", help="Judge for domains without a verifier, in the form of --judge of `rewardlab judge`."),
    ] = None
    overrides: JudgeKeys = None
    images: Annotated[Optional[Path], typer.Option("--images", help="Folder of the rows' images.")] = None
    num_probed: Annotated[int, typer.Option("--probed", min=0, help="Number of prompts to probe per domain.")] = 8


@command(app, "audit", rich_help_panel=JUDGING)
def audit_command(options: AuditOptions) -> None:
    """Audit a reward before training with it: its distribution, and cheap responses that should earn nothing.

    A row has `domain`, `question`, `response` and `truth`; a recorded `reward` is compared with the one computed here.
    Domains: `math`, `number`, `choice`, `exact`, `ocr`, `grounding`, `count`, `code` (truth: its tests), `constraints` (truth:
    `{"words": [null, 50]}` and the like), all verified by rule, `verdict` (a judge's own
    judgment; truth 1 or 2), or any other name (a judge compares with `truth`, or with `best`, a best-of-N sample).

    Probes are responses made from each truth: ranges, alternatives, the question restated, several boxes, look-alike letters,
    enormous texts, instructions to the judge. **Exit status 1** if a probe earns more than it may, or the truth itself earns
    too little.
    """
    from rewardlab.rewards.audit.audit import audit_markdown, audit_sentences, run_audit, write_audit
    from rewardlab.rewards.audit.rows import open_rewarder, read_audit

    rows = read_audit(options.data, images=options.images, contract=options.contract, thinking=options.thinking)
    if options.judge is None and options.overrides:
        raise ConfigError(f"{options.overrides[0]}: judge keys without a judge; give --judge")
    config = None if options.judge is None else refuse_run_keys(judge_of(options.judge, options.overrides))
    report = run_audit(rows, open_rewarder(config), num_probed=options.num_probed)
    write_audit(report, options.out)
    typer.echo(
        "\n".join([audit_markdown(report), *audit_sentences(report), f"written: {options.out}/report.json, report.html"])
    )
    if report.failed:
        raise typer.Exit(ExitCode.FINDING)


@dataclass(frozen=True, kw_only=True)
class SignsOptions:
    """Options of `signs`."""

    log: Annotated[Path, typer.Argument(help="FILE of `rewardlab serve --reward-log FILE`.")]
    overrides: JudgeKeys = None
    data: Annotated[
        Optional[Path],
        typer.Option("--data", help="Pairs like those that the policy is trained on: other wording than theirs is novel."),
    ] = None
    judge: Annotated[
        Optional[str],
        typer.Option(
            "--judge",
            help="The judge that is served, as http://HOST:PORT or in another form of --judge: it is queried again on logged "
            "comparisons with blank images, and on labelled pairs of --data.",
        ),
    ] = None
    out: Annotated[
        Optional[Path],
        typer.Option(
            "--out",
            help="Folder for the metrics, which `rewardlab show` draws; a key with a name has OUT/key=NAME. After an hour's "
            "pause they go to run=2 below it.",
        ),
    ] = None
    key: Annotated[Optional[str], typer.Option("--key", help="Read the groups of the key of this name only.")] = None
    follow: Annotated[bool, typer.Option("--follow", help="Wait for new groups until stopped.")] = False


@command(app, "signs", rich_help_panel=JUDGING)
def signs_command(options: SignsOptions) -> None:
    """Read a server's reward log for signs that a policy exploits the judge: novel or repeated wording, length, and more.

    The answers of each key are read in windows of 512. A sign is a mean of three windows beyond its limit from the mean of the
    first five of the run; an hour without a group ends a run. The log is read from its beginning each time, and OUT is written
    anew. **Exit status 1** if there is a sign.
    """
    from rewardlab.data.pair_table import PairTable
    from rewardlab.judging.engines import open_model_judge
    from rewardlab.rewards.reward_log import LogSigns, log_lines

    if options.judge is None and options.overrides:
        raise ConfigError(f"{options.overrides[0]}: judge keys without a judge; give --judge")
    judge = None
    if options.judge is not None:
        judge = open_model_judge(refuse_run_keys(judge_of(options.judge, options.overrides)))
        judge.check()
    signs = LogSigns(() if options.data is None else PairTable(options.data), judge, options.key)
    try:
        for line in log_lines(options.log, follow=options.follow):
            if (window := signs.add(line)) is None:
                continue
            for name, sentence in window.signs.items():
                typer.echo(f"key {window.key!r}, window {window.step}: {name}: {sentence}")
            if options.out is not None:
                _write_window(window, options.log, options.out)
    finally:
        typer.echo(signs.summary, err=True)
    if signs.num_signs:
        raise typer.Exit(ExitCode.FINDING)


def _write_window(window: WindowMetrics, log: Path, out: Path) -> None:
    """Append the metrics of a window to a folder like that of a policy's run, which the first window of a run begins anew.
    Raise ConfigError for the folder of a training run."""
    from rewardlab.data.files import write_atomic
    from rewardlab.models.checkpoints import commit, versions
    from rewardlab.rewards.reward_log import LIMITS
    from rewardlab.training.run.folder import CONFIG, HEALTH, METRICS
    from rewardlab.training.run.watchdog import append_event

    folder = out / f"key={quote(window.key, safe='')}" if window.key else out
    folder = folder / f"run={window.run}" if window.run > 1 else folder
    if window.step == 1:
        before = json.loads((folder / CONFIG).read_text(encoding="utf-8")) if (folder / CONFIG).exists() else {}
        if before and "log" not in before.get("config", {}):
            raise ConfigError(f"{folder}: holds a training run; choose another --out")
        config = {"log": str(log), "key": window.key, "signs": LIMITS.model_dump(mode="json")}
        record = {"config": config, "data": "", "versions": versions(), "commit": commit()}
        write_atomic(folder / CONFIG, json.dumps(record, indent=1) + "\n")
        for name in (METRICS, HEALTH):
            write_atomic(folder / name, "")
    row = {"step": window.step, "judge_hash": window.judge_hash, **window.metrics}
    with (folder / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    if window.signs:
        append_event(folder, window.step, list(window.signs), "; ".join(window.signs.values()), "warn")
