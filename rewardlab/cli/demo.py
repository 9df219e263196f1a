"""Measuring: benchmarks, the whole pipeline, studies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Optional

import typer

from rewardlab.cli.options import Out, app
from rewardlab.judging.spec import spec_help


@app.command()
def audit(
    data: Annotated[Path, typer.Option("--data", help="Rows (see above), or the samples.jsonl of `rewardlab rl`.")],
    out: Out,
    contract: Annotated[
        str, typer.Option("--contract", help="Where the final answer stands: boxed, box (GLM's box tokens) or answer (tags).")
    ] = "boxed",
    thinking: Annotated[bool, typer.Option(help="Whether responses must open with `<think>…</think>`.")] = True,
    judge: Annotated[Optional[str], typer.Option("--judge", help=f"Pays domains without a verifier: {spec_help()}.")] = None,
    votes: Annotated[int, typer.Option("--votes", min=1, help="The judge's samples in each of the two orders.")] = 1,
    images: Annotated[Optional[Path], typer.Option("--images", help="Folder of the images the rows name.")] = None,
    probed: Annotated[int, typer.Option("--probed", min=0, help="Prompts of each domain that are probed.")] = 8,
    api_key_env: Annotated[str, typer.Option("--api-key-env")] = "OPENAI_API_KEY",
    seed: Annotated[int, typer.Option("--seed")] = 0,
) -> None:
    """Audit a reward before it trains anything: what does each value look like, and what earns one without deserving it?

    A row has `domain`, `question`, `response` and `truth`; a `reward` that was paid is compared with the one computed here.
    Domains: `math`, `number`, `choice`, `exact`, `ocr`, `grounding`, `count` (verified by rule), `verdict` (a judge's own
    judgment; truth 1 or 2), or any other name (a judge compares with `truth`, or with `best`, a best-of-N sample).

    Probes are responses made from each truth: ranges, alternatives, the question restated, several boxes, look-alike letters,
    enormous texts, orders to the judge. **Exit status 1** where one earns more than it may, or the truth itself is not paid.
    """
    from rewardlab.rewards.audit.audit import run_audit
    from rewardlab.rewards.audit.page import audit_markdown, audit_sentences, write_audit
    from rewardlab.rewards.audit.rows import open_rewarder, read_audit

    rows = read_audit(data, images=images, contract=contract, thinking=thinking)
    key = os.environ.get(api_key_env, "none")
    with open_rewarder(judge, votes=votes, api_key=key, seed=seed) as rewarder:
        report = run_audit(rows, rewarder, num_probed=probed, seed=seed)
    write_audit(report, out)
    typer.echo("\n".join([audit_markdown(report), *audit_sentences(report), f"written: {out}/report.json, report.html"]))
    if report.failed:
        raise typer.Exit(1)


@app.command()
def quickstart(
    out: Out = Path("runs/quickstart"),
    configs: Annotated[Path, typer.Option("--configs", help="Folder of the stages' configs.")] = Path("configs/tiny"),
    seed: Annotated[int, typer.Option("--seed")] = 0,
) -> None:
    """Run the whole pipeline on the embedded demonstration: pairs, teacher, SFT, StableReinforce, votes, report, endpoint.

    Stages already done in OUT are kept, so an interrupted quickstart continues.
    """
    from rewardlab.demo.quickstart import quickstart as run

    run(out, configs, seed)
    typer.echo(f"report: {out}/report.html\nserve:  rewardlab serve --judge hf:{out}/rl/final --max-tokens 64")
