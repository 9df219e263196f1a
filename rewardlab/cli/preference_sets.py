"""`rewardlab data dpo`, `data kto`: what a judge decided, as training data of other trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rewardlab.cli.options import AllowColumns, Images, columns_of, data_app

Judged = Annotated[Path, typer.Argument(help="A finished `bench run pairs`, or `rank`: its folder or its log of votes.")]
JudgedData = Annotated[Path, typer.Option("--data", help="The pairs (or candidates) that were judged: the run's own --data.")]
File = Annotated[Path, typer.Option("--out", help="A .parquet file.")]
MinMargin = Annotated[
    float,
    typer.Option("--min-margin", min=0.0, max=1.0, help="Least share of votes for the winner less that for the other."),
]
Inconsistent = Annotated[
    bool, typer.Option("--keep-inconsistent", help="Keep pairs whose winner depends on the order they are shown in.")
]


@data_app.command("dpo")
def data_dpo(
    run: Judged,
    data: JudgedData,
    out: File,
    min_margin: MinMargin = 0.0,
    keep_inconsistent: Inconsistent = False,
    images: Images = None,
    allow_columns: AllowColumns = None,
) -> None:
    """Write pairs as a judge decided them, for DPO: prompt, chosen, rejected, images, in TRL's conversational form.

    Beside them stand `margin`, `share`, `swap_consistent` and `pair_id`. The judge's winner is the chosen one, whatever the
    label. Every pair left out is counted by its reason.
    `rewardlab data dpo runs/bench --data pairs.parquet --min-margin 0.5 --out dpo.parquet`
    """
    _write("dpo", run, data, out, min_margin, keep_inconsistent, images, allow_columns)


@data_app.command("kto")
def data_kto(
    run: Judged,
    data: JudgedData,
    out: File,
    min_margin: MinMargin = 0.0,
    keep_inconsistent: Inconsistent = False,
    images: Images = None,
    allow_columns: AllowColumns = None,
) -> None:
    """Write responses as a judge decided them, for KTO: prompt, completion, label, images; two rows for each pair kept.

    `rewardlab data kto runs/rank --data candidates.jsonl --out kto.parquet`
    """
    _write("kto", run, data, out, min_margin, keep_inconsistent, images, allow_columns)


def _write(
    kind: str,
    run: Path,
    data: Path,
    out: Path,
    min_margin: float,
    keep_inconsistent: bool,
    images: Path | None,
    allow_columns: str | None,
) -> None:
    from rewardlab.data.judgments import read_judged
    from rewardlab.data.preferences import PreferenceRules, write_preferences

    rules = PreferenceRules(min_margin, keep_inconsistent)
    judged = read_judged(run, data, images=images, allow_columns=columns_of(allow_columns))
    counts = write_preferences(judged, out, kind, rules)
    typer.echo(f"{counts.num_rows:,} rows of {counts.kept:,} pairs in {out}; {sum(counts.dropped.values()):,} pairs left out")
    for reason, number in counts.dropped.items():
        typer.echo(f"  {number:,} × {reason}")
