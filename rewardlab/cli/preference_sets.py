"""`rewardlab data dpo`, `data kto`: a judge's decisions as training data for other trainers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rewardlab.cli.commands import command
from rewardlab.cli.options import AllowColumns, Images, columns_of, data_app


@dataclass(frozen=True, kw_only=True)
class PreferenceSet:
    """Options of `rewardlab data dpo` and `rewardlab data kto`."""

    run: Annotated[Path, typer.Argument(help="A finished `bench run pairs`, or `rank`: its folder or its log of votes.")]
    data: Annotated[Path, typer.Option("--data", help="The pairs (or candidates) that were judged: the run's own --data.")]
    out: Annotated[Path, typer.Option("--out", help="A .parquet file.")]
    min_margin: Annotated[
        float,
        typer.Option("--min-margin", min=0.0, max=1.0, help="Least fraction of votes for the winner minus that for the other."),
    ] = 0.0
    keep_inconsistent: Annotated[
        bool, typer.Option("--keep-inconsistent", help="Keep pairs whose winner depends on the order they are shown in.")
    ] = False
    images: Images = None
    allow_columns: AllowColumns = None


@command(data_app, "dpo")
def data_dpo(options: PreferenceSet) -> None:
    """Write pairs as a judge decided them, for DPO: prompt, chosen, rejected, images, in TRL's conversational form.

    Further columns: `margin`, `share`, `swap_consistent` and `pair_id`. The judge's winner is the chosen response, whatever the
    label. Dropped pairs are counted by reason.
    `rewardlab data dpo runs/bench --data pairs.parquet --min-margin 0.5 --out dpo.parquet`
    """
    _write("dpo", options)


@command(data_app, "kto")
def data_kto(options: PreferenceSet) -> None:
    """Write responses as a judge decided them, for KTO: prompt, completion, label, images; two rows for each pair kept.

    `rewardlab data kto runs/rank --data candidates.jsonl --out kto.parquet`
    """
    _write("kto", options)


def _write(kind: str, options: PreferenceSet) -> None:
    from rewardlab.data.judgments import read_judged
    from rewardlab.data.preferences import PreferenceRules, write_preferences

    judged = read_judged(options.run, options.data, images=options.images, allow_columns=columns_of(options.allow_columns))
    rules = PreferenceRules(options.min_margin, options.keep_inconsistent)
    counts = write_preferences(judged, options.out, kind, rules)
    dropped = sum(counts.dropped.values())
    typer.echo(f"{counts.num_rows:,} rows of {counts.kept:,} pairs in {options.out}; {dropped:,} pairs left out")
    for reason, number in counts.dropped.items():
        typer.echo(f"  {number:,} × {reason}")
