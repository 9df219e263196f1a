"""What scoring many recorded samples costs: CPU seconds and peak memory of `rewardlab bench run pairs --judge replay:FILE`.

``python eval/scale.py`` writes ``eval/results/scale.md``. Each shape is pairs x samples, half of them in either order; each
pair has a share of right answers of its own. ``--before FOLDER`` also measures that checkout; a run that takes
more than ``--most-seconds`` is stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rewardlab.models.checkpoints import commit

SHAPES = ((5_000, 20), (50_000, 20), (1_250, 800))
HEADINGS = "| pairs × samples | before: CPU s, MiB | now: CPU s, MiB |"


def write_inputs(folder: Path, num_pairs: int, num_samples: int) -> None:
    """Write ``pairs.parquet`` and ``samples.jsonl``; about one answer in thirty has no verdict."""
    dice = random.Random(0)
    rows = [
        {
            "pair_id": f"p{n}",
            "question": f"Question {n // 4}?",
            "responses": [f"good {'x' * (n % 7)}", f"bad {'x' * (n % 5)}"],
            "preferred": 0,
            "images": list[dict[str, bytes]](),
        }
        for n in range(num_pairs)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "pairs.parquet")
    with (folder / "samples.jsonl").open("w") as file:
        for row in range(num_pairs):
            share = dice.betavariate(2, 1)
            for draw in range(num_samples):
                order = ("given", "swapped")[draw % 2]
                right = dice.random() < share
                text = f"<answer>{1 if right == (order == 'given') else 2}</answer>" if dice.random() < 0.97 else "no answer"
                file.write(json.dumps({"row": row, "order": order, "text": text}) + "\n")


def measure(package: Path, folder: Path, most_seconds: int) -> str:
    """Return "CPU seconds, peak MiB" of a run in a process of its own."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (most_seconds, most_seconds))

    command = [
        sys.executable,
        "-c",
        "from rewardlab.cli import main; main()",
        "bench",
        "run",
        "pairs",
        "--data",
        str(folder / "pairs.parquet"),
    ]
    command += ["--judge", f"replay:{folder / 'samples.jsonl'}", "--controls", "", "--out", str(folder / f"out_{os.getpid()}")]
    process = subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": str(package)},
        cwd=package,
        preexec_fn=limit,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    _, told = process.communicate()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode and usage.ru_utime + usage.ru_stime < most_seconds - 1:
        raise RuntimeError(told.decode())
    cpu, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
    return f"more than {most_seconds}, {peak:,.0f}" if process.returncode else f"{cpu:.1f}, {peak:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", type=Path, default=Path.cwd(), help="Checkout to measure.")
    parser.add_argument("--shape", default="", help="One shape alone, as 50000x20; prints its line.")
    parser.add_argument("--before", type=Path, help="Checkout of the version before.")
    parser.add_argument("--most-seconds", type=int, default=600)
    parser.add_argument("--work", type=Path, default=Path("runs/scale"))
    options = parser.parse_args()
    if options.shape:
        num_pairs, num_samples = map(int, options.shape.split("x"))
        folder = options.work / options.shape
        if not (folder / "samples.jsonl").exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_inputs(folder, num_pairs, num_samples)
        print(measure(options.package.resolve(), folder.resolve(), options.most_seconds))
        return
    lines = [HEADINGS, "|---|---|---|"]
    for num_pairs, num_samples in SHAPES:
        cells = []
        for package in (options.before, options.package):  # each in a process of its own: the peak is that of its child alone
            command = [sys.executable, __file__, "--shape", f"{num_pairs}x{num_samples}", "--work", str(options.work)]
            command += ["--package", str(package), "--most-seconds", str(options.most_seconds)]
            told = subprocess.run(command, check=True, capture_output=True, text=True) if package else None
            cells.append(told.stdout.strip() if told else "–")
        lines.append(f"| {num_pairs:,} × {num_samples} | {cells[0]} | {cells[1]} |")
        print(lines[-1], flush=True)
    head = ["# A million recorded samples", "", f"`{shlex.join(['python', *sys.argv])}`, commit {commit()[:12]}.", ""]
    Path("eval/results/scale.md").write_text("\n".join([*head, *lines]) + "\n")


if __name__ == "__main__":
    main()
