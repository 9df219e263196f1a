"""Would the tests notice a bug? Changes the arithmetic in one place at a time and counts the changes that no test detects.

    make mutants                                # all modules below; hours
    make mutants ONLY="verdicts/votes distill/budget"
    make mutants ONLY="verdicts/votes --again"  # only the changes that survived the last run; minutes

mutmut 3.8.1 runs in an environment of its own, on a copy of the committed files with two differences: decorators are applied
after the function, because mutmut skips decorated functions, and nothing is cached, because its workers would start with the
cache of the first run. It changes the bodies of functions, not constants of a module, regular expressions or fields of a class.
Writes ``eval/results/mutants.json``, with the first and last score of each module, and ``mutants.md``: the scores, and every
surviving change with its reason from ``mutants_reasons.json``.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_ALONE = ("staticmethod", "classmethod", "overload", "abstractmethod", "asynccontextmanager", "contextmanager", "setter")
CACHES = ("lru_cache", "cache")
KILLED = (1, 3)  # mutmut's codes: a test failed, pytest itself did

SCORERS = tuple(
    f"tests/benchmarks/test_{name}.py" for name in ("official_scorers", "vl_rewardbench_scorer", "scorer_edges", "exports")
)

# Each module with its own fast tests: every change runs those that reach it.
MODULES = {
    "verdicts/votes": ("tests/verdicts/test_votes.py",),
    "verdicts/parse": (
        "tests/verdicts",
        "tests/laws/test_orders_and_verdicts.py",
        "tests/judging/test_verdict_probabilities.py",
    ),
    "verdicts/formats": ("tests/verdicts",),
    "verdicts/places": ("tests/verdicts",),
    "verdicts/prose": ("tests/verdicts",),
    "verdicts/other_formats": ("tests/verdicts",),
    "verdicts/panel": ("tests/verdicts/test_panel.py",),
    "verdicts/margins": ("tests/verdicts/test_margins.py", "tests/laws/test_pairwise_laws.py"),
    "verdicts/early_stopping": ("tests/verdicts/test_early_stopping.py", "tests/metrics/test_large_pools.py"),
    "metrics/accuracy": ("tests/metrics/test_accuracy.py", "tests/metrics/test_large_pools.py"),
    "metrics/intervals": (
        "tests/metrics/test_intervals.py",
        "tests/metrics/test_sign_flips.py",
        "tests/metrics/test_accuracy.py",
    ),
    "metrics/calibration": ("tests/metrics/test_calibration.py",),
    "metrics/running": ("tests/metrics/test_running.py",),
    "rl/groups": ("tests/rl", "tests/laws/test_pairwise_laws.py", "tests/verdicts/test_margins.py"),
    "rl/advantages": ("tests/rl", "tests/laws/test_policy_gradient.py"),
    "rl/selection": ("tests/rl",),
    "rl/objectives": ("tests/rl", "tests/laws/test_policy_gradient.py", "tests/verdicts/test_margins.py"),
    "rl/self_verification": ("tests/rl",),
    "benchmarks/vl_rewardbench/__init__": SCORERS,
    "benchmarks/mm_rlhf/__init__": SCORERS,
    "benchmarks/mmrb2/__init__": SCORERS,
    "benchmarks/multimodal_rewardbench/__init__": SCORERS,
    "benchmarks/rewardbench2/official": SCORERS,
    "distill/budget": ("tests/distill/test_budget.py",),
    "distill/journal": ("tests/distill/test_journal.py",),
    "distill/teacher": ("tests/distill/test_tagging.py",),
    "serving/auth": ("tests/serving/test_auth.py", "tests/serving/test_tenants.py"),
    "serving/queue": (
        "tests/serving/test_queue.py",
        "tests/serving/test_queue_accounts.py",
        "tests/serving/test_schedule.py",
    ),
    "serving/voting": ("tests/serving/test_groups.py", "tests/serving/test_voting.py"),
    "serving/media": ("tests/serving/test_media_loader.py", "tests/serving/test_uploads.py"),
}

# By module what a change became, and why nothing can see it.
REASONS: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("mutants_reasons.json").read_text(encoding="utf-8"))

_SQL = re.compile(r"\b(SELECT|WHERE|INSERT|UPDATE|CONFLICT|DELETE|PRAGMA|COALESCE|BEGIN|COMMIT|ROLLBACK)\b")
_SQL_TEXT = re.compile(r"'[^']*'")

CONFIG = """
[tool.mutmut]
source_paths = ["rewardlab"]
only_mutate = ["rewardlab/{module}.py"]
also_copy = ["README.md", "eval"]
pytest_add_cli_args = ["-p", "no:xdist", "-p", "no:cacheprovider", "-m", "not nightly",
                       "-o", "addopts=--import-mode=importlib --strict-markers"]
pytest_add_cli_args_test_selection = {tests}
use_git_change_detection = false
process_isolation = "fork"
"""


def with_plain_functions(source: str) -> str:
    """Return Python source whose decorators are calls after the function, without caches; other lines keep their numbers up to
    the first such call."""
    lines, calls = source.split("\n"), []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or not node.decorator_list:
            continue
        decorators = {ast.unparse(one): ast.unparse(one).split("(")[0].rsplit(".", 1)[-1] for one in node.decorator_list}
        if any(name in LEFT_ALONE for name in decorators.values()):
            continue
        for line in range(node.decorator_list[0].lineno, node.lineno):
            lines[line - 1] = ""
        call = node.name
        for decorator, name in reversed(decorators.items()):
            if name not in CACHES:
                call = f"{'property' if name == 'cached_property' else decorator}({call})"
        calls.append((node.end_lineno or 0, f"{' ' * node.col_offset}{node.name} = {call}"))
    for end, text in sorted(calls, reverse=True):
        lines.insert(end, text)
    return "\n".join(lines)


@dataclass(frozen=True)
class Survivor:
    """A change that no test detects: mutmut's name for it, the line before and after."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class FirstScore:
    """The first score of a module."""

    commit: str
    changes: int
    killed: int


@dataclass(frozen=True)
class Score:
    """The score of a module at a commit: changes by outcome, the survivors, and the first score."""

    module: str
    commit: str
    counts: Counter[str]
    survivors: tuple[Survivor, ...]
    before: FirstScore | None = None

    @property
    def killed(self) -> int:
        """Changes that made a test fail or exceed its time limit."""
        return self.counts["killed"] + self.counts["timeout"]

    @property
    def first(self) -> FirstScore:
        return self.before or FirstScore(self.commit, self.counts.total(), self.killed)

    def to_json(self) -> dict[str, object]:
        return {
            "module": self.module,
            "commit": self.commit,
            "before": asdict(self.first),
            "counts": dict(sorted(self.counts.items())),
            "survivors": [asdict(gone) for gone in self.survivors],
        }

    def reason(self, gone: Survivor) -> str:
        """Return why no test can detect a change; "" if there is no reason."""
        texts = [_SQL_TEXT.findall(line) for line in (gone.before, gone.after)]
        if _SQL.search(gone.before) and gone.before.lower() == gone.after.lower() and texts[0] == texts[1]:
            return "SQL does not mind capitals"
        return REASONS.get(self.module, {}).get(gone.after, "")

    @property
    def num_explained(self) -> int:
        return sum(bool(self.reason(gone)) for gone in self.survivors)


def read_scores(path: Path) -> dict[str, Score]:
    """Return the scores of a file by module; none without the file."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return {
        row["module"]: Score(
            row["module"],
            row["commit"],
            Counter(row["counts"]),
            tuple(Survivor(**gone) for gone in row["survivors"]),
            FirstScore(**row["before"]),
        )
        for row in rows
    }


def stage(module: str, folder: Path) -> None:
    """Copy the committed files into ``folder``, the one module with plain functions."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    archive = ["git", "-C", str(ROOT), "archive", "HEAD", "rewardlab", "tests", "eval", "pyproject.toml", "README.md"]
    files = subprocess.run(archive, check=True, capture_output=True).stdout
    subprocess.run(["tar", "x", "-C", str(folder)], check=True, input=files)
    source = folder / "rewardlab" / f"{module}.py"
    source.write_text(with_plain_functions(source.read_text(encoding="utf-8")), encoding="utf-8")
    with (folder / "pyproject.toml").open("a", encoding="utf-8") as config:
        config.write(CONFIG.format(module=module, tests=list(MODULES[module])))


def mutmut(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    command = [str(Path(sys.executable).parent / "mutmut"), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        last = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()][-12:]
        sys.exit("\n".join([f"{folder}: mutmut {arguments[0]} ended with {done.returncode}", *(line[-200:] for line in last)]))
    return done.stdout


def kills(results: Path) -> str:
    """Return mutmut's results file with the kills alone, "" if there is none.

    mutmut runs the changes that have no result, and those of functions that are not what they were.
    """
    if not results.exists():
        return ""
    codes = json.loads(results.read_text(encoding="utf-8"))
    codes["exit_code_by_key"] = {name: code for name, code in codes["exit_code_by_key"].items() if code in KILLED}
    return json.dumps(codes)


def score_of(module: str, folder: Path, processes: int, again: bool = False) -> Score:
    """Return the score of a module on a fresh copy in ``folder``; ``again`` keeps the kills of the last copy."""
    commit = _commit()
    results = folder / "mutants" / "rewardlab" / f"{module}.py.meta"
    kept = kills(results) if again else ""
    stage(module, folder)
    if kept:
        results.parent.mkdir(parents=True)
        results.write_text(kept, encoding="utf-8")
    mutmut(folder, "run", "--max-children", str(processes))
    lines = mutmut(folder, "results", "--all", "true").splitlines()
    became = [line.strip().rpartition(": ") for line in lines if ": " in line]
    survivors = [_survivor(folder, name) for name, _, status in became if status == "survived"]
    return Score(module, commit, Counter(status for _, _, status in became), tuple(survivors))


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _survivor(folder: Path, name: str) -> Survivor:
    diff = [line for line in mutmut(folder, "show", name).splitlines() if not line.startswith(("---", "+++"))]
    before, after = (" ".join(line[1:].strip() for line in diff if line.startswith(sign)) for sign in "-+")
    return Survivor(name.rpartition(".")[2], before, after)


def sorted_scores(scores: Mapping[str, Score]) -> list[Score]:
    """Return the scores in the order of :data:`MODULES`, without those of deleted modules."""
    return [scores[module] for module in MODULES if module in scores]


def report(scores: Sequence[Score]) -> str:
    """Return the page of the results."""
    how = "`make mutants`, one module after the other; how, and what is not changed, is in `eval/mutants.py`."
    lines = ["# Changes that the tests see", "", how, ""]
    lines += [
        "| module | seen before | at | changes | seen | at | survived | of these explained | met by no test |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in scores:
        cells = (
            f"{one.first.killed} of {one.first.changes}",
            one.first.commit,
            one.counts.total(),
            one.killed,
            one.commit,
            len(one.survivors),
            one.num_explained,
            one.counts["no tests"],
        )
        lines.append(f"| `{one.module}` | " + " | ".join(map(str, cells)) + " |")
    for one in scores:
        if one.survivors:
            lines += ["", f"## `{one.module}`", ""]
        for gone in one.survivors:
            reason = one.reason(gone) or "**not explained**"
            lines.append(f"- `{gone.before}` became `{gone.after}`: {reason}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(MODULES)}; all of them if none is named")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "mutants", help="folder for the copies")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "eval" / "results" / "mutants", help="of .json and .md")
    parser.add_argument(
        "--again", action="store_true", help="keep the kills of the copies in --work, and run what else has become of a change"
    )
    parser.add_argument("--page", action="store_true", help="write the .md anew from the .json, and run nothing")
    options = parser.parse_args()
    if unknown := set(options.modules) - set(MODULES):
        parser.error(f"unknown modules {', '.join(sorted(unknown))}; expected some of {', '.join(MODULES)}")
    modules = [] if options.page else options.modules or list(MODULES)
    path = options.out.with_suffix(".json")
    for module in modules:
        score = score_of(module, options.work / module.replace("/", "_"), options.processes, options.again)
        print(module, dict(score.counts), flush=True)
        scores = read_scores(path)  # read anew: another run may have written meanwhile
        scores[module] = replace(score, before=scores[module].first) if module in scores else score
        path.write_text(json.dumps([one.to_json() for one in sorted_scores(scores)], indent=1) + "\n", encoding="utf-8")
    page = report(sorted_scores(read_scores(path)))
    options.out.with_suffix(".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
