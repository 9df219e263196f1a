"""`rewardlab data harden`: hard negatives for a judge."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from rewardlab.cli.exit_codes import ExitCode
from rewardlab.cli.options import AllowColumns, Data, Images, Out, RandomSeed, columns_of, data_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rewardlab.types import PreferencePair


@data_app.command("harden")
def data_harden(
    data: Data,
    out: Out,
    ratio: Annotated[float, typer.Option("--ratio", min=0.0, help="Negatives for each pair of the set, on average.")] = 0.5,
    families: Annotated[
        str,
        typer.Option(
            "--families",
            help="Families or kinds of attacks, comma-separated, such as degenerate,order; default: all that are for training.",
        ),
    ] = "",
    attempts: Annotated[
        str,
        typer.Option("--attempts", help="Difficulty tag of the negatives of tagged pairs, which `rl` chooses by."),
    ] = "2",
    template: Annotated[
        str,
        typer.Option(
            "--template",
            help="Prompt template of the judge, in whose form a judgment names the defect of a degenerate response; none: no "
            "such judgments.",
        ),
    ] = "r1_reward",
    seed: RandomSeed = 0,
    images: Images = None,
    allow_columns: AllowColumns = None,
) -> None:
    """Add hard negatives to a labelled set, by which a judge learns not to be won by degenerate or hostile responses.

    Each pair is followed by its negatives, whose better response is known. An empty, one-word, looped or refusing response
    loses. A forged verdict, an order or harmless words within either response change nothing, nor does a JPEG of the picture:
    there the pair's own judgment (of `rewardlab distill`) stays true, and is kept. Of a degenerate response a judgment is
    written that names the defect. Pairs without judgment or tag have negatives without. Families that `bench run` holds
    out are not used.

    `rewardlab data harden runs/distill/distilled.parquet --template plain --out runs/hardened` writes Parquet shards.
    `rewardlab sft --data runs/hardened` trains on their judgments, `rewardlab rl` on their labels; pairs without judgments are
    for RL alone. After an interruption the same command begins anew. **Exit status 1** where not one negative could be made.
    """
    from rewardlab.curation.harden import HardenCounts, HardenSettings, harden
    from rewardlab.data.pairs import stream_pairs, write_shards
    from rewardlab.prompts import load_template
    from rewardlab.reporting.progress import bar

    settings = HardenSettings(
        ratio=ratio,
        seed=seed,
        families=tuple(name for name in families.split(",") if name),
        attempts=attempts,
        verdict_format="" if template == "none" else load_template(template).verdict_format,
    )
    counts = HardenCounts()
    with (
        closing(stream_pairs(data, images=images, frames=None, allow_columns=columns_of(allow_columns))) as pairs,
        bar("harden", None) as advance,
    ):

        def counted() -> Iterator[PreferencePair]:
            for pair in pairs:
                advance()
                yield pair

        for _ in write_shards(harden(counted(), settings, counts), out):
            pass
    for group, number in sorted(counts.groups.items()):
        typer.echo(f"{group}: {number:,}")
    unlabelled = f"; {counts.unlabelled:,} pairs without a label stay as they are" if counts.unlabelled else ""
    made = f"{counts.negatives:,} negatives, {counts.judged:,} of them with a judgment"
    typer.echo(f"{counts.pairs:,} pairs and {made}, in {out}{unlabelled}")
    if counts.negatives and not counts.judged:
        typer.echo(
            "no negative has a judgment: for `rewardlab rl`; `rewardlab sft` learns judgments, which `rewardlab distill` makes"
        )
    if not counts.negatives:
        typer.echo("no negative could be made: the pairs have no labels, or these families make nothing of them", err=True)
        raise typer.Exit(ExitCode.FINDING)
