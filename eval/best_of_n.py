"""What a plan of comparisons is worth: the quickstart's judge picks the right one of eight readings of a handwritten number.

``python eval/best_of_n.py --quickstart runs/quickstart``. Candidates are the right answer of each held-out question "Which
number is written?" and seven with other digits, at drawn places. Writes ``eval/results/best_of_n.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from rewardlab.data.pairs import read_pairs
from rewardlab.judging.best_of_n import rank_many
from rewardlab.judging.engines import open_generative_judge
from rewardlab.metrics.intervals import difference_interval, mean_interval
from rewardlab.models.checkpoints import commit
from rewardlab.types import Candidates, PreferencePair

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
NUM = 8
PLANS: list[tuple[str, int | None]] = [
    ("knockout", None),
    ("adaptive", 8),
    ("adaptive", 12),
    ("adaptive", 16),
    ("adaptive", 24),
]
PLANS.append(("round_robin", None))
SEEDS = (0, 1, 2)


def candidates(pair: PreferencePair, dice: random.Random) -> Candidates:
    """The right reading among seven others of which one or two digits differ."""
    right = pair.responses[pair.preferred or 0]
    words = right.rstrip(".").split()
    ten, one = words[-2:]
    others = [(a, b) for a in DIGITS for b in DIGITS if (a == ten) != (b == one)]
    readings = [(ten, one), *dice.sample(others, NUM - 1)]
    dice.shuffle(readings)
    texts = tuple(f"It is {a} {b}." for a, b in readings)
    return Candidates(pair.pair_id, pair.question, texts, pair.images, (readings.index((ten, one)),))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quickstart", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--out", type=Path, default=Path("eval/results/best_of_n"))
    options = parser.parse_args()
    pairs = [p for p in read_pairs(options.quickstart / "demo" / "test.parquet") if p.question == "Which number is written?"]
    judge = open_generative_judge(f"hf:{options.quickstart / 'rl' / 'final'}", template="plain", max_tokens=64)
    rows: list[dict[str, Any]] = []
    base: list[float] = []
    for plan, budget in PLANS:
        start_time, right, matches, tied = time.perf_counter(), [0.0] * len(pairs), 0, 0
        for seed in SEEDS:
            prompts = [candidates(pair, random.Random(f"{seed} {n}")) for n, pair in enumerate(pairs)]
            ranked = rank_many(judge, prompts, plan=plan, budget=budget, num_votes=1, seed=seed)
            for n, (prompt, ranking) in enumerate(zip(prompts, ranked, strict=True)):
                right[n] += (ranking.best in prompt.best) / len(SEEDS)
                matches, tied = matches + ranking.num_matches, tied + (ranking.best is None)
        base = base or right
        gaps = [after - before for before, after in zip(base, right, strict=True)]
        row = {"plan": plan, "budget": budget, "matches": matches / len(pairs) / len(SEEDS), "found": sum(right) / len(right)}
        row |= {
            "interval": mean_interval(right),
            "difference": sum(gaps) / len(gaps),
            "difference_interval": difference_interval(gaps),
        }
        row |= {"shared_first": tied / len(pairs) / len(SEEDS), "seconds": time.perf_counter() - start_time}
        rows.append(row)
        print(row, flush=True)
    command = shlex.join(["python", *sys.argv])
    result = {
        "command": command,
        "commit": commit(),
        "num_questions": len(pairs),
        "num_candidates": NUM,
        "seeds": SEEDS,
        "plans": rows,
    }
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    lines = [f"# The right one of {NUM} readings, {len(pairs)} questions, {len(SEEDS)} seeds", ""]
    lines += [
        "| plan | matches | right one found, % | over knockout, points | shared first place, % |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        (low, high), (less, more) = row["interval"], row["difference_interval"]
        cells = [row["plan"] + (f", budget {row['budget']}" if row["budget"] else ""), f"{row['matches']:.1f}"]
        cells += [f"{100 * row['found']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"]
        cells += [f"{100 * row['difference']:+.1f} [{100 * less:+.1f}, {100 * more:+.1f}]", f"{100 * row['shared_first']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Each match is one vote in each order; intervals 95 %, over questions, seeds averaged within.", ""]
    lines += [f"`{command}`, commit {result['commit']}"]
    options.out.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
