"""`rewardlab data verl`: pairs as other people's trainers read them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from rewardlab.cli.data import Data, Images
from rewardlab.cli.options import data_app
from rewardlab.errors import OutputError


@data_app.command("verl")
def data_verl(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="A .parquet file for data.train_files or data.val_files.")],
    both_orders: Annotated[
        bool, typer.Option("--both-orders", help="Each pair twice, the two orders one after the other; else in its own.")
    ] = False,
    template: Annotated[str, typer.Option("--template", help="Of the checkpoint that is to be trained.")] = "r1_reward",
    shuffle: Annotated[
        Optional[int], typer.Option("--shuffle", help="A seed to shuffle the pairs by, in memory, for data.shuffle=False.")
    ] = None,
    images: Images = None,
) -> None:
    """Write pairs as the Parquet that verl trains a judge on (`configs/verl/stable_reinforce_7b.sh`).

    `rewardlab data verl runs/hard --template r1_reward --out train.parquet`
    """
    import random

    from rewardlab.data.pairs import PairSet, read_pairs
    from rewardlab.integrations.verl_rows import write_verl_rows
    from rewardlab.prompts import load_template

    if out.suffix != ".parquet":
        raise OutputError(f"{out}: verl tells files by their ending; name it .parquet")
    judge_template = load_template(template)
    pairs = PairSet(data, images=images) if shuffle is None else read_pairs(data, images=images)
    if isinstance(pairs, list):
        random.Random(shuffle).shuffle(pairs)
    written = write_verl_rows(pairs, out, judge_template, both_orders=both_orders)
    typer.echo(f"{written.num_rows:,} rows in {out}; {written.num_unlabelled:,} pairs without a label left out")
    typer.echo(f"template {judge_template.name} {judge_template.hash}; verdicts are read as {judge_template.verdict_format}")
