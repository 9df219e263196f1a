"""Does an endpoint see that its traffic leaves what was certified before the error of its verdicts passes the bound?

The certified run is that of ``eval/guarantee.py``. ``python eval/drift.py --sets runs/drift --data
runs/quickstart/demo/test.parquet --hard runs/quickstart_hard/demo/test.parquet --judge runs/quickstart/sft/final`` writes
shifted pairs, 250 of each set, and a judge with noise in its weights. Each set is judged by ``rewardlab bench run pairs --judge
prob:runs/quickstart/sft/final --data runs/drift/NAME.parquet --votes 8 --controls '' --out runs/drift/NAME``, the set
``weaker`` by ``prob:runs/drift/judge max_tokens=64``. Then ``python eval/drift.py --run runs/guarantee --shifts runs/drift``
(ten minutes) writes ``eval/results/drift.md`` and ``.json``.

A stream begins with comparisons of the certified run, drawn with replacement, and continues with those of a shift. Each has
its own reference, as many comparisons of the run drawn with replacement.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from rewardlab.benchmarks.base import VOTES
from rewardlab.benchmarks.calibrate import certify_run
from rewardlab.benchmarks.comparison import logged_votes, read_run
from rewardlab.data.attacks.insertions import attacks
from rewardlab.data.files import write_atomic
from rewardlab.data.pair_table import PairTable
from rewardlab.data.pairs import write_parquet
from rewardlab.data.rows import with_blank_images, with_other_images
from rewardlab.judging.drift import DriftMonitor, DriftReference
from rewardlab.metrics.guarantee import at_most
from rewardlab.models.checkpoints import commit
from rewardlab.types import Judgment, PreferencePair
from rewardlab.verdicts.votes import both_orders_or_none, reduce_votes, winner_share

RESULTS = Path(__file__).parent / "results"
ERROR, NUM, STREAMS, LONG, LONG_STREAMS, LIMIT = 0.05, 250, 100, 10_000, 200, 2000
NOISE = 0.1
SETTINGS = {  # certified comparisons before the shift, and the share of later ones that is shifted
    **{f"Shifted after {start:,} comparisons": (start, 1.0) for start in (250, 1000, 2000)},
    "A quarter is shifted after 1,000 comparisons": (1000, 0.25),
}
FILLER = "That is what the picture shows, as far as one can see it from here."
DIGITS = ("read", "larger", "sum")
SHIFTS = {
    "hard": "pairs of the hard demonstration",
    "attacked": "a text that attacks judges in the worse answer",
    "long": "two idle sentences after the worse answer",
    "blank": "grey pictures",
    "other": "the pictures of other pairs",
    "weaker": "noise of 10 % in the weights",
}


def write_sets(folder: Path, data: Path, hard: Path, judge: Path) -> None:
    """Write the shifted pairs of each set, and a judge with noise of :data:`NOISE` of its weights' standard deviation."""
    dice = random.Random(0)
    some = dice.sample(list(PairTable(data)), NUM)
    texts = [attack for attack in attacks() if attack.kind != "image"]
    sets = {
        "hard": list(PairTable(hard))[:NUM],
        "attacked": [_with_worse(pair, dice.choice(texts).apply(_worse(pair))) for pair in some],
        "blank": with_blank_images(some),
        "other": with_other_images(some),
        "long": [_with_worse(pair, f"{_worse(pair)} {FILLER} {FILLER}") for pair in some],
        "weaker": some,
    }
    for name, pairs in sets.items():
        write_parquet(pairs, folder / f"{name}.parquet")
    shutil.copytree(judge, folder / "judge", dirs_exist_ok=True)
    torch.manual_seed(0)
    weights = load_file(judge / "model.safetensors")
    noisy = {name: w + NOISE * w.std() * torch.randn_like(w) if w.dim() > 1 else w for name, w in weights.items()}
    save_file(noisy, folder / "judge" / "model.safetensors", metadata={"format": "pt"})


def _worse(pair: PreferencePair) -> str:
    return pair.responses[1 - (pair.preferred or 0)]


def _with_worse(pair: PreferencePair, text: str) -> PreferencePair:
    return replace(pair, responses=(pair.responses[0], text) if pair.preferred == 0 else (text, pair.responses[1]))


class Judged:
    """Judged pairs: which verdicts are ``given``, and which of these are ``wrong``."""

    def __init__(self, judgments: Sequence[Judgment], right: np.ndarray, threshold: float) -> None:
        self.judgments, self.right = judgments, right
        self.given = np.array([(winner_share(one) or 0) > threshold for one in judgments])
        self.wrong = self.given & ~right

    @property
    def error(self) -> float:
        return float(self.wrong.sum() / max(1, self.given.sum()))

    def part(self, rows: Sequence[int], threshold: float) -> Judged:
        return Judged([self.judgments[n] for n in rows], self.right[list(rows)], threshold)


def read(folder: Path, threshold: float) -> tuple[Judged, list[str]]:
    """Return the judged pairs of a run, and the task of each."""
    run, votes = read_run(folder), dict(logged_votes(folder / VOTES))
    judgments = [both_orders_or_none(reduce_votes(row.pair_id, votes[row.row])) for row in run.rows]
    right = np.array([one.outcome.winner == row.preferred for one, row in zip(judgments, run.rows, strict=True)])
    return Judged(judgments, right, threshold), [row.pair_id.rsplit("-", 1)[-1] for row in run.rows]


Stream = tuple[DriftMonitor, list[dict[str, float]]]  # a monitor without comparisons, and the measures of the run's


def new_stream(run: Judged, num: int, dice: np.random.Generator) -> Stream:
    """Return a stream whose reference are ``num`` comparisons of the run."""
    monitor = DriftMonitor(DriftReference.of([run.judgments[n] for n in dice.integers(0, len(run.judgments), num)]))
    return monitor, [monitor.measures(one) for one in run.judgments]


def false_alarms(run: Judged, num: int, dice: np.random.Generator) -> float:
    """Return the fraction of streams of :data:`LONG` certified comparisons with an alarm, against references of ``num``."""
    alarms = 0
    for _ in range(LONG_STREAMS):
        monitor, rows = new_stream(run, num, dice)
        alarms += any(monitor.add_measures(rows[n]) for n in dice.integers(0, len(rows), LONG))
    return alarms / LONG_STREAMS


def shifted(
    streams: Sequence[Stream], run: Judged, shift: Judged, start: int, share: float, dice: np.random.Generator
) -> dict[str, Any]:
    """Return what streams come to of which a ``share`` is shifted after ``start`` comparisons: comparisons since then until the
    alarm, until the error of all given verdicts passes the bound, and until it does significantly (exact test, 10 %)."""
    alarms, passed, significant, kinds = [], [], [], Counter[str]()
    for unused, rows in streams:
        monitor, of_shift = deepcopy(unused), [unused.measures(one) for one in shift.judgments]
        early, is_new = dice.integers(0, len(rows), start), dice.random(LIMIT) < share
        places = np.where(is_new, dice.integers(0, len(of_shift), LIMIT), dice.integers(0, len(rows), LIMIT))
        given, wrong = (
            before[early].sum() + np.where(is_new, after[places % len(of_shift)], before[places]).cumsum()
            for before, after in ((run.given, shift.given), (run.wrong, shift.wrong))
        )
        over = np.flatnonzero(wrong > ERROR * given)
        if run.wrong[early].sum() > ERROR * run.given[early].sum():
            over = over[:0]  # passed before the shift, by chance
        passed.append(int(over[0]) + 1 if over.size else None)
        clearly = (int(n) + 1 for n in over if 1 - at_most(int(wrong[n]) - 1, int(given[n]), ERROR) <= 0.1)
        significant.append(next(clearly, None))
        alarm = 0 if any(monitor.add_measures(rows[n]) for n in early) else None
        for number, (at, new) in enumerate(zip(places, is_new, strict=True), start=1):
            if alarm is not None:
                break
            alarm = number if monitor.add_measures((of_shift if new else rows)[at]) else None
        alarms.append(alarm)
        kinds.update(list(monitor.left))

    def before(times: Sequence[int | None]) -> float | None:
        pairs = [(alarm, time) for alarm, time in zip(alarms, times, strict=True) if time is not None]
        return float(np.mean([alarm is not None and alarm <= time for alarm, time in pairs])) if pairs else None

    return {
        "alarms": quantiles(alarms),
        "passed": quantiles(passed),
        "significant": quantiles(significant),
        "before_passed": before(passed),
        "before_significant": before(significant),
        "kinds": dict(kinds),
    }


def quantiles(times: Sequence[int | None]) -> list[float]:
    """Return the 10 %, 50 % and 90 % quantiles, infinite where there is no time."""
    values = np.array([np.inf if time is None else time for time in times])
    return [float(value) for value in np.quantile(values, [0.1, 0.5, 0.9], method="inverted_cdf")]


def _times(values: Sequence[float]) -> str:
    low, middle, high = ("–" if value == np.inf else f"{value:,.0f}" for value in values)
    return f"{middle} ({low} to {high})" if middle != "–" or low != "–" else "–"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f}"


def study(folder: Path, shifts: Path) -> tuple[str, dict[str, Any]]:
    """Return the page and the numbers."""
    certified = certify_run(folder, error=ERROR, confidence=0.9).certified
    assert certified.threshold is not None
    run, tasks = read(folder, certified.threshold)
    dice = np.random.default_rng(0)
    judged = {words: read(shifts / name, certified.threshold)[0] for name, words in SHIFTS.items()}
    judged["questions on digits alone"] = run.part([n for n, task in enumerate(tasks) if task in DIGITS], certified.threshold)
    flipped = run.right ^ (dice.random(len(run.right)) < 0.1)
    judged["labels of 10 % of the pairs flipped"] = Judged(run.judgments, flipped, certified.threshold)
    results: dict[str, Any] = {"commit": commit(), "threshold": certified.threshold}
    results["false_alarms"] = {num: false_alarms(run, num, dice) for num in (300, 1000)}
    streams = [new_stream(run, len(run.judgments), dice) for _ in range(STREAMS)]
    results["shifts"] = {
        words: {
            "given": float(shift.given.mean()),
            "error": shift.error,
            **{title: shifted(streams, run, shift, start, share, dice) for title, (start, share) in SETTINGS.items()},
        }
        for words, shift in judged.items()
    }
    alarms = " and ".join(f"{100 * rate:.1f} % with {num:,}" for num, rate in results["false_alarms"].items())
    lines = ["# Alarms where traffic leaves what was certified", ""]
    lines += [f"`{shlex.join(['python', *sys.argv])}`, commit {results['commit']}.", ""]
    lines += [f"The run gives {100 * run.given.mean():.1f} % of its verdicts, {100 * run.error:.1f} % of these are wrong, and"]
    lines += [
        f"{100 * ERROR:g} % are allowed. Of {LONG_STREAMS} streams of {LONG:,} comparisons of the run a false alarm is in"
    ]
    lines += [f"{alarms} certified comparisons.", ""]
    lines += [
        f"{STREAMS} streams of each shift. Times are comparisons since the shift, median (10 to 90 %); –: none in {LIMIT:,}."
    ]
    lines += [
        "The bound is passed where the error of all verdicts since the start is above it, and significantly where an exact"
    ]
    lines += [
        "test at 10 % says so. Before: % of the streams whose bound is passed with an earlier alarm, or one at the same time."
    ]
    for title in SETTINGS:
        lines += ["", f"## {title}", "", "| shift | given, % | wrong, % of given | alarm | bound passed | significantly "]
        lines[-1] += "| alarm before | before significantly | what left, streams |"
        lines += ["|---|---|---|---|---|---|---|---|---|"]
        for words, one in results["shifts"].items():
            found = one[title]
            cells = [f"{100 * one['given']:.0f}", f"{100 * one['error']:.1f}"]
            cells += [_times(found[name]) for name in ("alarms", "passed", "significant")]
            cells += [percent(found[name]) for name in ("before_passed", "before_significant")]
            cells.append(", ".join(f"{kind} {number}" for kind, number in sorted(found["kinds"].items())))
            lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n", results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=Path, help="folder to write the shifted pairs to")
    parser.add_argument("--data", type=Path, help="the pairs of the certified run")
    parser.add_argument("--hard", type=Path, help="the test pairs of the hard demonstration")
    parser.add_argument("--judge", type=Path, help="the checkpoint of the certified run")
    parser.add_argument("--run", type=Path, help="the certified run")
    parser.add_argument("--shifts", type=Path, help="folder of the runs on the shifted pairs")
    options = parser.parse_args()
    if options.sets:
        write_sets(options.sets, options.data, options.hard, options.judge)
        return
    page, results = study(options.run, options.shifts)
    write_atomic(RESULTS / "drift.md", page)
    write_atomic(RESULTS / "drift.json", json.dumps(results, indent=1) + "\n")
    print(page)


if __name__ == "__main__":
    main()
