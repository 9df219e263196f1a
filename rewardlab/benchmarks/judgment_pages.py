"""Every judgment of a run to read: pages of :data:`ROWS_OF_A_PAGE` rows beside its report."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.browser import judge_of_log, judgment_view, read_kinds
from rewardlab.benchmarks.kinds import KINDS
from rewardlab.benchmarks.report_model import Report
from rewardlab.benchmarks.run_files import SCORES, VOTES
from rewardlab.data.files import write_atomic
from rewardlab.data.votes import vote_of
from rewardlab.reporting.pages import page_environment
from rewardlab.types import Vote

ROWS_OF_A_PAGE = 200
FOLDER = "judgments"
_PLACE = re.compile(rb'\{"pass": "votes", "row": (\d+),')


def page_names(rows: Sequence[Row]) -> list[str]:
    """Return the name of each page, by its first and last row: ``judgments/rows-0-199.html``."""
    chunks = [rows[start : start + ROWS_OF_A_PAGE] for start in range(0, len(rows), ROWS_OF_A_PAGE)]
    return [f"{FOLDER}/rows-{chunk[0].row}-{chunk[-1].row}.html" for chunk in chunks]


def write_judgment_pages(report: Report, rows: Sequence[Row], out: Path) -> list[str]:
    """Write all judgments of the run in ``out``; returns the pages' names. One page is in memory at a time.

    Pages of earlier writing that are none now are removed.
    """
    names, places = page_names(rows), _places(out / VOTES)
    kinds, judge = read_kinds(out / SCORES), judge_of_log(out / VOTES)
    template = page_environment("rewardlab.benchmarks").get_template("judgments.html")
    (out / FOLDER).mkdir(exist_ok=True)
    for number, name in enumerate(names):
        chunk = rows[number * ROWS_OF_A_PAGE : (number + 1) * ROWS_OF_A_PAGE]
        with (out / VOTES).open("rb") as log:
            views = [judgment_view(row, _votes_at(log, places[row.row]), kinds[row.row], judge) for row in chunk]
        page = template.render(
            report=report,
            judgments=views,
            first=chunk[0].row,
            last=chunk[-1].row,
            before=names[number - 1].partition("/")[2] if number else "",
            after=names[number + 1].partition("/")[2] if number + 1 < len(names) else "",
            groups=sorted({row.group for row in chunk}),
            totals={kind: sum(kind in view.kinds for view in views) for kind in KINDS},
            num_pairs=report.scores.num_pairs,
            kinds=KINDS,
            most=0,
            pages=(),
        )
        write_atomic(out / name, page)
    for path in (out / FOLDER).glob("rows-*.html"):
        if f"{FOLDER}/{path.name}" not in names:
            path.unlink()
    return names


def _places(votes_file: Path) -> dict[int, int]:
    """Where each row's votes begin in the log, the later of two lines; controls left out."""
    places, place = dict[int, int](), 0
    with votes_file.open("rb") as log:
        for line in log:
            if match := _PLACE.match(line):
                places[int(match[1])] = place
            place += len(line)
    return places


def _votes_at(log: BinaryIO, place: int) -> list[Vote]:
    log.seek(place)
    return [vote_of(vote) for vote in json.loads(log.readline())["votes"]]
