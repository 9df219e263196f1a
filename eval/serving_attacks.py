"""Attacks on an endpoint: requests that are too large, too deep, too slow or unreadable, against a real ``rewardlab serve``.

``python eval/serving_attacks.py`` (no training needed: the judge is the one that travels with the package). While each runs,
``/health`` and ``/ready`` are asked ten times a second on new connections, and the memory of server and engine is summed.
Writes ``eval/results/serving_attacks.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]  # for eval.attacks, however this is started

from eval.attacks.requests import attacks
from eval.attacks.server import Watch, cpu_seconds, endpoint
from eval.attacks.traffic import UNJUDGED, fuzz, rate
from rewardlab.models.checkpoints import commit

RESULTS = Path(__file__).parent / "results"
BEFORE = "at 42e8c34, on a machine of the same size"


def run_attacks() -> list[dict[str, Any]]:
    rows, all_attacks = list[dict[str, Any]](), attacks()
    for files in (4096, 256):
        with endpoint(files=files) as (url, process):
            for name, before, attack in all_attacks:
                if ("256 files" in name) != (files == 256):
                    continue
                begun = time.monotonic()
                with Watch(url, process) as watch:
                    answer = attack(url)
                    time.sleep(1)  # what it leaves behind counts too
                row = {
                    "attack": name,
                    "before": before,
                    "answer": answer,
                    "seconds": time.monotonic() - begun,
                    **watch.result(),
                }
                print(json.dumps(row), flush=True)
                rows.append(row)
    return rows


def run_fuzz(number: int) -> dict[str, Any]:
    with endpoint("--group-timeout", "0.1", "--group-size", "2") as (url, process), Watch(url, process) as watch:
        statuses = fuzz(url, number)
    faults = sum(count for status, count in statuses.items() if status != UNJUDGED and not "200" <= status < "500")
    return {"requests": number, "statuses": statuses, "faults": faults, **watch.result()}


def run_poison(seconds: float, turns: int) -> dict[str, Any]:
    """Clean and poisonous turns one after the other, in both orders: the machine's speed changes. Pairs per CPU second of
    server and engine are compared too: what else the machine does has no part in them."""
    with endpoint() as (url, process), Watch(url, process) as watch:
        rate(url, seconds / 2, 0, "warm")
        pairs = []
        for turn in range(turns):
            both, per_cpu = dict[int, float](), dict[int, float]()
            for per_s in (0, 2) if turn % 2 else (2, 0):
                before = cpu_seconds(process)
                both[per_s], statuses = rate(url, seconds, per_s, f"{turn} {per_s}")
                per_cpu[per_s] = both[per_s] * seconds / (cpu_seconds(process) - before)
                print(turn, per_s, f"{both[per_s]:.1f} pairs/s, {per_cpu[per_s]:.1f} per CPU second", statuses, flush=True)
                if per_s:
                    seen = statuses
            row = {"clean": both[0], "poisoned": both[2], "ratio": both[2] / both[0], "ratio_per_cpu": per_cpu[2] / per_cpu[0]}
            pairs.append(row | {"statuses": seen})
    medians = {name: statistics.median(pair[name] for pair in pairs) for name in ("ratio", "ratio_per_cpu")}
    return {"seconds": seconds, "turns": pairs, **medians, **watch.result()}


def _commits(result: dict[str, Any]) -> str:
    return ", ".join(f"{commit} ({part})" for part, commit in result["commits"].items())


def report(result: dict[str, Any]) -> str:
    lines = ["# Attacks on an endpoint", "", f"Before: {BEFORE}. Now: `{result['command']}` at {_commits(result)}.", ""]
    lines += [
        "| attack | before | answer now | `/health`, worst, ms | `/ready` | peak of server and engine, MB |",
        "|---|---|---|---|---|---|",
    ]
    for row in result.get("attacks", []):
        ready = ", ".join(f"{status}: {number}" for status, number in sorted(row["ready"].items()))
        cells = (row["attack"], row["before"], row["answer"], f"{row['health_worst_ms']:.0f}", ready, f"{row['peak_mb']:,.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    if fuzzed := result.get("fuzz"):
        statuses = ", ".join(f"{number:,} x {status}" for status, number in sorted(fuzzed["statuses"].items()))
        lines += [
            "",
            f"{fuzzed['requests']:,} requests with changed bytes: {statuses}; {fuzzed['faults']} of 500 or above, or none.",
        ]
        lines += [f"`/health` at worst {fuzzed['health_worst_ms']:.0f} ms, {fuzzed['peak_mb']:,.0f} MB."]
    if poisoned := result.get("poison"):
        lines += ["", "| turn | clean, pairs/s | with two poisonous requests a second | ratio | ratio per CPU second |"]
        lines += ["|---|---|---|---|---|"]
        for n, turn in enumerate(poisoned["turns"]):
            numbers = f"{turn['clean']:.1f} | {turn['poisoned']:.1f} | {turn['ratio']:.2f} | {turn['ratio_per_cpu']:.2f}"
            lines.append(f"| {n + 1} | {numbers} |")
        lines += ["", f"The median of the ratios: {poisoned['ratio']:.2f}, per CPU second of server and engine"]
        lines += [f"{poisoned['ratio_per_cpu']:.2f}; before: 0.12 (41.9 and 4.6 pairs/s). `/ready` said"]
        lines += [", ".join(f"{status}: {number}" for status, number in sorted(poisoned["ready"].items())) + "."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="attacks,fuzz,poison", help="what is run; the rest stays as it was measured")
    parser.add_argument("--fuzz", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each turn of the poison")
    parser.add_argument("--turns", type=int, default=8)
    options = parser.parse_args()
    path = RESULTS / "serving_attacks.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    result["command"] = "python eval/serving_attacks.py"
    for part in options.parts.split(","):
        match part:
            case "attacks":
                result["attacks"] = run_attacks()
            case "fuzz":
                result["fuzz"] = run_fuzz(options.fuzz)
            case "poison":
                result["poison"] = run_poison(options.seconds, options.turns)
        result.setdefault("commits", {})[part] = commit()
        path.write_text(json.dumps(result, indent=1) + "\n")
        path.with_suffix(".md").write_text(report(result))


if __name__ == "__main__":
    main()
