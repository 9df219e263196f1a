"""`rewardlab data validate` and `stats`: check a set of pairs, and show its statistics."""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from rewardlab.cli.exit_codes import ExitCode
from rewardlab.cli.options import AllowColumns, AsJson, Data, Images, Out, RandomSeed, columns_of, data_app
from rewardlab.errors import ConfigError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rewardlab.types import PreferencePair


SHOWN = 5  # bad rows of a kind
_NUMBER = re.compile(r"\d+")


class ReasonCount:
    """Counts reasons by kind: reasons of one kind differ only in numbers."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def is_shown(self, reason: str) -> bool:
        """Count a reason and return whether it is among the first of its kind."""
        kind = _NUMBER.sub("0", reason)
        self._first.setdefault(kind, reason)
        self._counts[kind] += 1
        return self._counts[kind] <= SHOWN

    def rest(self) -> list[str]:
        """Return a line for each kind with more reasons than are shown."""
        return [
            f"and {number - SHOWN:,} more like: {self._first[kind]}" for kind, number in self._counts.items() if number > SHOWN
        ]


@data_app.command("validate")
def data_validate(
    data: Data,
    out: Annotated[Optional[Path], typer.Option("--out", help="Folder for the good rows, as Parquet shards.")] = None,
    images: Images = None,
    allow: AllowColumns = None,
    suggest: Annotated[
        bool, typer.Option("--suggest", help="Print a mapping of the file's columns for `data build`, and check nothing.")
    ] = False,
) -> None:
    """Check every row: list the bad ones with their reasons, and with --out keep the good ones.

    Exit status 1 if any row is bad, or there are no rows. Five rows are listed per reason, and the others
    counted. Unknown columns are listed once, at the end; rows that have them are not kept.
    """
    if suggest:
        if out or images or allow:
            raise ConfigError("--suggest prints a mapping and checks nothing; give it without other options")
        from rewardlab.data.column_mapping import suggested_mapping

        return typer.echo(suggested_mapping(data), nl=False)
    from rewardlab.data.columns import UnreadColumnsError, unread_words
    from rewardlab.data.pairs import BadRow, validate_rows, write_shards
    from rewardlab.data.set_checks import SetCheck

    reasons = ReasonCount()
    bad, unlabelled, names, media = 0, 0, set[str](), SetCheck()
    unread, num_unread = dict[str, str](), 0

    def checked() -> Iterator[PreferencePair]:
        nonlocal bad, unlabelled, num_unread
        with closing(validate_rows(data, images=images, allow_columns=columns_of(allow), decode=True)) as rows:
            for index, row in enumerate(rows):
                error = row.error if isinstance(row, BadRow) else None
                if isinstance(error, UnreadColumnsError):
                    unread.update(error.columns)
                    row = BadRow(index, error.rest) if isinstance(error.rest, InputError) else error.rest
                reason = row.reason if isinstance(row, BadRow) else ""
                if not isinstance(row, BadRow) and row.pair_id in names:
                    reason = f"{data}, row {index}: pair_id {row.pair_id!r} appears twice; every pair needs its own"
                if reason:
                    bad += 1
                    if reasons.is_shown(reason):
                        typer.echo(reason)
                elif not isinstance(row, BadRow):
                    media.add(row, index)
                    unlabelled += row.preferred is None
                    names.add(row.pair_id)
                    num_unread += error is not None
                    if error is None:
                        yield row

    for _ in write_shards(checked(), out) if out else checked():
        pass
    for line in reasons.rest():
        typer.echo(line)
    without = f" ({unlabelled:,} without a label: not for a benchmark, nor to train on)" if unlabelled else ""
    if unread:
        typer.echo(unread_words(unread))
    but_for = f", {num_unread:,} good but for columns that are not read" if num_unread else ""
    num_good = len(names) - num_unread
    typer.echo(f"{num_good:,} good{but_for}{without}, {bad:,} bad, {media.num_with_media:,} with images")
    for note in media.notes():
        typer.echo(note)
    if not names and not bad:
        typer.echo(f"{data}: holds no pairs")
    media.refuse_broken(str(data))
    if bad or unread or not names:
        raise typer.Exit(ExitCode.FINDING)


@data_app.command("stats")
def data_stats(
    data: Data,
    out: Out,
    images: Images = None,
    allow: AllowColumns = None,
    seed: RandomSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Show statistics of a set: balance, lengths, length bias. Writes `stats.json`, and `stats.html`
    with example pairs."""
    from rewardlab.curation.overview import Overview, summary_lines
    from rewardlab.data.pairs import stream_pairs
    from rewardlab.reporting.progress import bar

    overview = Overview(seed)
    with bar("stats", None) as advance:
        for pair in stream_pairs(data, images=images, allow_columns=columns_of(allow)):
            overview.add(pair)
            advance()
    numbers = overview.write(out, title=f"{data.name}: {overview.num_pairs:,} pairs")
    if as_json:
        typer.echo(json.dumps(numbers))
        return
    for line in summary_lines(numbers):
        typer.echo(line)
    typer.echo(f"written: {out}/stats.json, stats.html")
