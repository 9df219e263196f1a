"""Another tool's recording as the lines of a replay file."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.data_files import reason
from rewardlab.benchmarks.recordings.readers import RECORDERS, Recorder, row_keys
from rewardlab.benchmarks.recordings.samples import Import, Key, RecordedSample, replay_row, rows_by_text
from rewardlab.errors import ConfigError, DataError

MOST_UNMATCHED = 0.05  # share of the samples without a row from which the recording is of other data


def import_recording(name: str, path: Path, rows: Sequence[Row]) -> Import:
    """Return the samples of a file in the form ``name`` (:data:`RECORDERS`) as lines of a replay file of ``rows``.

    Samples that several rows share in all that names them go to these in turn. Raise ConfigError for an unknown form, DataError
    for a file of another one, and where more than a twentieth of the samples belong to no row.
    """
    if name not in RECORDERS:
        raise ConfigError(f"unknown form {name!r} of a recording; expected one of {', '.join(RECORDERS)}")
    recorder = RECORDERS[name]
    table = rows_by_text(rows) if recorder.by == "texts" else _rows_by_key(rows, recorder)
    lines, unmatched, total, turn = [], 0, 0, Counter[Key]()
    for sample in _samples(recorder, path):
        total += 1
        places = table.get(sample.key, [])
        if not places:
            unmatched += 1
            continue
        lines.append(replay_row(places[turn[sample.key] % len(places)], sample))
        turn[sample.key] += 1
    if not total:
        raise DataError(f"{path}: holds no samples")
    if unmatched > MOST_UNMATCHED * total:
        raise DataError(
            f"{path}: {unmatched:,} of {total:,} samples belong to no row of the data; is --data the same benchmark?"
        )
    return Import(tuple(lines), total, unmatched, len({line["row"] for line in lines}), recorder.template)


def _samples(recorder: Recorder, path: Path) -> Iterator[RecordedSample]:
    try:
        yield from recorder.read(path)
    except DataError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, SyntaxError, csv.Error) as error:
        raise DataError(f"{path}: a sample cannot be read ({reason(error)}); expected {recorder.inputs}") from error


def _rows_by_key(rows: Sequence[Row], recorder: Recorder) -> dict[Key, list[Row]]:
    table: dict[Key, list[Row]] = defaultdict(list)
    places: Counter[str] = Counter()
    for row in rows:
        key = row_keys(recorder.by, row.group, places[row.group], row.pair.pair_id, row.cluster, row.medium)
        table[key].append(row)
        places[row.group] += 1
    return table
