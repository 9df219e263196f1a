"""`rewardlab audit`: what a reward pays, and what earns it without deserving it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Optional

import typer

from rewardlab.cli.commands import command
from rewardlab.cli.exit_codes import ExitCode
from rewardlab.cli.options import JUDGING, JudgeKeys, Out, RandomSeed, app, judge_of, refuse_run_keys
from rewardlab.errors import ConfigError


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
    seed: RandomSeed = 0


@command(app, "audit", rich_help_panel=JUDGING)
def audit_command(options: AuditOptions) -> None:
    """Audit a reward before training with it: its distribution, and cheap responses that should earn nothing.

    A row has `domain`, `question`, `response` and `truth`; a recorded `reward` is compared with the one computed here.
    Domains: `math`, `number`, `choice`, `exact`, `ocr`, `grounding`, `count` (verified by rule), `verdict` (a judge's own
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
    with open_rewarder(config, seed=options.seed) as rewarder:
        report = run_audit(rows, rewarder, num_probed=options.num_probed, seed=options.seed)
    write_audit(report, options.out)
    typer.echo(
        "\n".join([audit_markdown(report), *audit_sentences(report), f"written: {options.out}/report.json, report.html"])
    )
    if report.failed:
        raise typer.Exit(ExitCode.FINDING)
