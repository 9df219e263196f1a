"""What holds on a GPU? `python -m eval.gpu_truth --out OUT`: one process, eight minutes, every figure on disk once it is known.

Stages, in order of worth; `--stage` picks some:

- ``runs``: SFT, every recipe of ``configs/rl``, adapters, a reward model, judging by votes and by probability, the endpoint and
  the doctor, each a command of `rewardlab`, on a model of 70 million weights that is made here and learns the form of a
  judgment first. RL has how far the sampler's log-probabilities are from the trainer's.
- ``equal``: bfloat16 beside float32 (the packaged judge, and 70 million weights), the fused head that training uses beside
  ``log_softmax`` of plain logits, the decoder beside the trainer.
- ``fast``: shapes of 3B with random weights: time, memory and MFU of an SFT step, of an RL step beside TRL's GRPO, and the
  decoder beside transformers' ``generate``. MFU is of tokens without padding, eight operations a weight of the layers (the
  head and attention's products are left out), by the rate of a bfloat16 matrix product measured in the same run. The decoder
  has the time of one more token of all rows (``step_ms``) beside that in which the card can read the layers (``weights_ms``).
- ``learns`` and ``large``, for a second call: the hard demonstration with a judge of more weights, as far as the minutes go;
  adapters of 7B, once.

OUT/gpu_truth.json and OUT/gpu_truth.md grow case by case. The next call skips the cases that worked, on the same card and
commit, and runs all others. The exit status is 0 if every case of the call worked, 1 if one did not. Large files are kept
in ``--work`` while a case runs. The package need not be installed: run it in the root of the source tree, with the packages
of ``eval/gpu_requirements.txt``. ``--on-cpu`` rehearses all of it with small shapes, under the same mixed precision.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shlex
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from eval.gpu_stages import SERVERS, STAGES, TAIL, Case, Options, Row

NAME = "gpu_truth"  # of the files
FIRST_CALL = ("runs", "equal", "fast")
SAME = ("device", "commit", "torch", "transformers", "model")  # facts that all rows of a file share
BEGAN, STICKY = "GPU_TRUTH_BEGAN", "the card no longer answers"


class Record:
    """The rows that are known, by stage and case, on disk after each. Those of another machine, commit or model are dropped."""

    def __init__(self, options: Options, machine: Row) -> None:
        self.path = options.out / f"{NAME}.json"
        facts: Row = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        before = facts.get("machine", {})
        same = all(before.get(name) == machine.get(name) for name in SAME)
        self.facts: Row = {**(facts if same else {}), "machine": machine}
        self._lock = threading.Lock()

    def rows(self, stage: str) -> dict[str, Row]:
        rows: dict[str, Row] = self.facts.setdefault(stage, {})
        return rows

    def add(self, stage: str, name: str, row: Row) -> None:
        from rewardlab.data.files import write_atomic

        with self._lock:
            row = {key: str(value) if value != value or value in (math.inf, -math.inf) else value for key, value in row.items()}
            self.rows(stage)[name] = row
            write_atomic(self.path, json.dumps(self.facts, indent=1) + "\n")
            write_atomic(self.path.with_suffix(".md"), markdown(self.facts))
        seconds = time.time() - float(os.environ[BEGAN])
        print(f"[{seconds:4.0f} s] {stage}: {name}: {json.dumps(row)[:300]}", flush=True)


def run_case(case: Case, device: str) -> Row:
    """Run a case; return its figures, its seconds and its peak of the card's memory, or why it failed."""
    import torch

    began = time.monotonic()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    try:
        row = {"ok": True, **case.call()}
        beyond = [
            f"{name} is {row.get(name, 'missing')}, expected {bounds[0]} to {bounds[1]}"
            for name, bounds in case.bounds.items()
            if not is_within(row.get(name), *bounds)
        ]
        if beyond:
            row |= {"ok": False, "error": "; ".join(beyond)}
    except SystemExit as end:
        row = {"ok": end.code in (0, None), **({} if end.code in (0, None) else {"error": f"exit status {end.code}"})}
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the boundary: it is recorded
        row = {"ok": False, "error": f"{type(error).__name__}: {error}"[:TAIL], "output": traceback.format_exc()[-TAIL:]}
    row["seconds"] = round(time.monotonic() - began, 1)
    if device == "cuda":
        row.setdefault("peak_gib", round(torch.cuda.max_memory_allocated() / 2**30, 2))
    return row


def is_within(value: float | None, least: float, most: float) -> bool:
    return value is not None and least <= value <= most


def clean_up(case: Case, device: str) -> None:
    """Delete what a case has left on disk and on the card. Raise RuntimeError where the card no longer answers."""
    import torch
    from accelerate.state import AcceleratorState

    from eval.gpu_speed import free_memory

    if case.folder is not None:
        shutil.rmtree(case.folder, ignore_errors=True)
    AcceleratorState._reset_state(reset_partial_state=True)
    free_memory()
    if device == "cuda":
        torch.zeros(1, device="cuda").item()


def run_stage(stage: str, cases: dict[str, Case], options: Options, record: Record, *, deadline: float) -> None:
    """Run the cases of a stage that are not known yet; go on in a new process where one has left the card in a bad state."""
    import torch

    memory = 0.0 if options.on_cpu else torch.cuda.get_device_properties(0).total_memory / 2**30
    for name, case in cases.items():
        row = record.rows(stage).get(name, {})
        is_there = case.makes is None or case.makes.exists()
        if (row.get("ok") and is_there) or row.get("at", 0) >= float(os.environ[BEGAN]):  # tried in this call
            continue
        left = deadline - time.time()
        if not options.on_cpu and left < case.seconds:
            record.add(
                stage, name, {"ok": False, "error": f"not tried: {left:.0f} s were left, it takes some {case.seconds:.0f}"}
            )
            continue
        if not options.on_cpu and case.needs_gib > memory:
            error = f"not tried: needs {case.needs_gib:.0f} GiB of the card's {memory:.0f}"
            record.add(stage, name, {"ok": False, "error": error})
            continue
        at = {"at": time.time()}
        if case.folder is not None:
            shutil.rmtree(case.folder, ignore_errors=True)  # of a call that was killed
        guard = threading.Timer(max(0.1, left), _cut_off, (stage, name, case, at, record))
        guard.daemon = True
        guard.start()
        row = run_case(case, options.device)
        guard.cancel()
        try:
            clean_up(case, options.device)
        except RuntimeError as error:
            record.add(stage, name, {**row, **at, "ok": False, "error": row.get("error") or f"{STICKY}: {error}"[:500]})
            os.execv(sys.executable, [sys.executable, "-m", "eval.gpu_truth", *sys.argv[1:]])
        record.add(stage, name, {**row, **at})


def _cut_off(stage: str, name: str, case: Case, at: Row, record: Record) -> None:
    """End the process and its server: the minutes are over, and nothing else ends a call that hangs."""
    try:
        record.add(stage, name, {"ok": False, "error": "the minutes were over", **at})
        record.add(stage, name, {**record.rows(stage)[name], **case.partial()})
    finally:
        for server in SERVERS:
            server.kill()
        os._exit(1)


def machine_facts(options: Options) -> Row:
    """Return what figures depend on: the card and its driver, versions, the command, the commit."""
    import torch

    from rewardlab.models.checkpoints import commit, versions

    facts: Row = {
        "model": options.model,
        "commit": options.commit or commit(),
        "command": shlex.join(["python", "-m", "eval.gpu_truth", *sys.argv[1:]]),
    }
    facts |= {"python": platform.python_version(), **versions()}
    if options.on_cpu:
        return {"device": "cpu", **facts}
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        driver = f"not known ({type(error).__name__})"
    card = torch.cuda.get_device_properties(0)
    return {
        "device": card.name,
        "memory_gib": round(card.total_memory / 2**30, 1),
        "driver": driver,
        "cuda": torch.version.cuda,
        **facts,
    }


def markdown(facts: Row) -> str:
    """Return the page of all rows."""
    from rewardlab.reporting.tables import markdown_table

    about = facts.get("machine", {})
    lines = [f"# What holds on {about.get('device', 'a GPU')}", "", "Written by `python -m eval.gpu_truth`.", ""]
    lines += markdown_table(("", ""), [(name, str(value)) for name, value in about.items()])
    for stage in STAGES:
        if rows := facts.get(stage):
            table = [
                (name, "yes" if row["ok"] else "**no**", str(row.get("seconds", "")), _figures(row))
                for name, row in rows.items()
            ]
            lines += ["", f"## {stage}", "", *markdown_table(("case", "works", "s", "figures"), table)]
    if ratio := _step_ratio(facts.get("fast", {})):
        lines += ["", ratio]
    return "\n".join(lines) + "\n"


def _figures(row: Row) -> str:
    left_out = {"ok", "seconds", "output", "at", "curves"}
    shown = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in row.items()}
    return ", ".join(f"{name} {text[:300]}" for name, text in shown.items() if name not in left_out).replace("|", "/")


def _step_ratio(rows: dict[str, Row]) -> str:
    ours, theirs = rows.get("rl", {}), rows.get("rl, TRL's GRPO", {})
    if not (ours.get("ok") and theirs.get("ok")):
        return ""
    memory = f", {ours['peak_gib'] / theirs['peak_gib']:.2f} times its memory" if "peak_gib" in ours else ""
    return f"An RL step takes {ours['step_s'] / theirs['step_s']:.2f} times as long as TRL's{memory}, in the same run."


def rehearse() -> None:
    """Have trainings on this CPU compute in bfloat16, as on a card."""
    from rewardlab.models import precision

    precision.trains_in_bfloat16 = lambda: True


def parse(arguments: Sequence[str] | None = None) -> tuple[Options, Sequence[str]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the figures")
    parser.add_argument("--minutes", type=float, default=8.0, help="time limit of the whole call, in minutes (default: 8)")
    parser.add_argument(
        "--stage", action="append", choices=STAGES, help=f"repeat for several (default: {', '.join(FIRST_CALL)})"
    )
    parser.add_argument("--model", choices=("small", "3b", "7b"), help="shapes that are timed (default: 3b)")
    parser.add_argument("--work", type=Path, help="folder of large files (default: runs/gpu_work in the current folder)")
    parser.add_argument("--commit", default="", help="of the source tree, if it is no checkout")
    parser.add_argument("--on-cpu", action="store_true", help="rehearse with small shapes")
    given = parser.parse_args(arguments)
    work = (given.work or Path("runs") / "gpu_work").resolve()
    model = given.model or ("tiny" if given.on_cpu else "3b")
    return Options(given.out.resolve(), work, given.on_cpu, given.minutes, model, given.commit), given.stage or FIRST_CALL


def main() -> None:
    options, stages = parse()
    os.environ.setdefault(BEGAN, str(time.time()))
    os.environ["HF_HUB_OFFLINE"] = "1"
    import rewardlab  # noqa: F401  (before transformers, see rewardlab/models/torchvision_cpu.py)

    # isort: split
    import torch

    if not options.on_cpu and not torch.cuda.is_available():
        sys.exit("not measured: no GPU here (torch.cuda.is_available() is false); --on-cpu rehearses")
    if options.on_cpu:
        rehearse()
    for folder in (options.out, options.work):
        folder.mkdir(parents=True, exist_ok=True)
    record = Record(options, machine_facts(options))
    deadline = float(os.environ[BEGAN]) + 60 * options.minutes
    known: list[tuple[str, str]] = []
    for stage in stages:
        cases = STAGES[stage](options)
        run_stage(stage, cases, options, record, deadline=deadline)
        known += [(stage, name) for name in cases]
    failed = [f"{stage}: {name}" for stage, name in known if not record.rows(stage).get(name, {}).get("ok")]
    sys.exit(f"did not work: {'; '.join(failed)}; see {record.path}" if failed else 0)


if __name__ == "__main__":
    main()
