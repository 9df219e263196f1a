"""A newcomer's trial: from pairs of one's own to the first correct number. ``python eval/newcomer.py``, a few minutes.

60 pairs with pictures of the demonstration, in ten forms, and a server in a process of its own that looks at the pictures,
answers in eight styles, refuses or dies (`eval/newcomers/server.py`). The newcomer runs the two commands of
`docs/how-to/benchmarks/own_pairs.md` as they stand there, with the file and the address put in, and after one that ends with
another exit status than 0 does what its output says (`eval/newcomers/cures.py`) and nothing else.

The first figure that a command with exit status 0 prints is the newcomer's number. It must equal what the server says it
answered, and the server must have seen all 60 pictures. Writes ``newcomer.json`` and ``newcomer.md``; exit status 1 where a
case fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from eval.newcomers.cures import Attempt, cure_by
from eval.newcomers.eyes import name_of, pixels_of
from eval.newcomers.server import MODEL, STYLES
from eval.newcomers.sets import FORMS, newcomers_pairs
from rewardlab.data.files import write_atomic
from rewardlab.models.checkpoints import commit
from rewardlab.types import PreferencePair

PAGE = "docs/how-to/benchmarks/own_pairs.md"
README = "README.md"
IN_PAGE = {"data": "pairs.jsonl", "judge": "openai:MODEL@http://localhost:8001/v1", "out": "runs/bench"}  # what a page says
NATIVE = next(iter(FORMS))
MOST_COMMANDS, MOST_SECONDS = 6, 300.0
_FIGURE = re.compile(r"^pairs: ([\d.]+) \[", re.MULTILINE)  # of the last line of `bench run`


@dataclass(frozen=True)
class Case:
    """A form of the set, and the server's style or what it does instead of answering."""

    form: str = NATIVE
    style: str = "think_answer"
    refuses: str = ""
    dies_after: int = 0
    page: str = PAGE

    @property
    def server(self) -> str:
        """Return what the server does, in words."""
        refusals = {"401": "401, a wrong key", "404": "404, a wrong model", "400": "400, a field is missing"}
        if self.refuses:
            return refusals.get(self.refuses, "400, older names of fields")
        return f"dies after {self.dies_after} answers" if self.dies_after else self.style


@dataclass(frozen=True)
class Step:
    """A command: its words, exit status and seconds, and the cure that its output led to."""

    command: str
    status: int
    seconds: float
    cure: str = ""


@dataclass
class Outcome:
    """What became of a case. ``figure`` is the newcomer's number in percent, ``truth`` the server's, ``report`` the accuracy
    in report.json; ``unseen`` counts pairs whose picture the server did not see in both orders."""

    case: Case
    steps: list[Step] = field(default_factory=list)
    figure: float | None = None
    report: float | None = None
    truth: float | None = None
    unseen: int = 0

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)

    @property
    def fault(self) -> str:
        """Return what went wrong, "" where nothing did."""
        if self.figure is None or self.report is None or self.truth is None:
            return f"no number; the last command ended with {self.steps[-1].status} and named no cure that helps"
        if self.unseen:
            return f"{self.unseen} pictures were not seen"
        if abs(self.report - self.truth) > 1e-9 or self.figure != round(100 * self.truth, 1):
            return f"{self.figure} % where the server says {100 * self.truth:.1f} %"
        return f"{self.seconds:.0f} s" if self.seconds > MOST_SECONDS else ""

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "server": self.case.server, "seconds": self.seconds, "fault": self.fault}


def documented(page: Path) -> tuple[list[str], list[str]]:
    """Return the words of a page's first `data validate` and its first `bench run` of a judge at an address."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    commands = [shlex.split(line) for line in text.splitlines() if line.startswith("rewardlab ")]
    check = next(words for words in commands if words[1:3] == ["data", "validate"])
    return check, next(words for words in commands if words[1:3] == ["bench", "run"] and IN_PAGE["judge"] in words)


def words_of(documentation: Sequence[str], attempt: Attempt) -> list[str]:
    """Return a documented command with the newcomer's own file, judge and folder, and the flags learnt so far."""
    judge = attempt.judge or f"openai:{attempt.model}@{attempt.address}/v1"
    own = {IN_PAGE["data"]: str(attempt.data.relative_to(attempt.folder)), IN_PAGE["judge"]: judge, IN_PAGE["out"]: attempt.out}
    flags = attempt.flags if "bench" in documentation else {k: v for k, v in attempt.flags.items() if k in OF_DATA}
    return [own.get(word, word) for word in documentation] + [word for flag in flags.items() for word in flag]


OF_DATA = ("--images", "--allow-columns")


def run(words: Sequence[str], attempt: Attempt) -> tuple[int, str, float]:
    """Run `rewardlab` in the newcomer's folder. Return its exit status, what it printed, and its seconds."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "REWARDLAB_"))}
    environment |= {"PYTHONPATH": str(ROOT), "COLUMNS": "400", **attempt.environment}
    start = time.monotonic()
    command = [sys.executable, "-m", "rewardlab.cli", *words[1:]]
    done = subprocess.run(command, cwd=attempt.folder, env=environment, capture_output=True, text=True, timeout=MOST_SECONDS)
    return done.returncode, done.stdout + done.stderr, time.monotonic() - start


@contextmanager
def server_of(case: Case, folder: Path) -> Iterator[tuple[str, Attempt]]:
    """A server in its own process, and an attempt that can start it again, without its faults."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes: list[subprocess.Popen[bytes]] = []
    script = [sys.executable, str(ROOT / "eval/newcomers/server.py"), str(port), str(folder / "asked.jsonl")]

    def start(*faults: str) -> None:
        processes.append(subprocess.Popen([*script, "--style", case.style, "--refuses", case.refuses, *faults]))
        for _ in range(1200):  # a minute, on a machine with much to do
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.05)
        raise RuntimeError(f"{shlex.join(script)} does not answer")

    model = "eyes-large" if case.refuses == "404" else MODEL
    try:
        start("--dies-after", str(case.dies_after))
        yield Attempt(folder, folder, model, f"http://127.0.0.1:{port}", start)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def truth_of(pairs: Sequence[PreferencePair], asked: Path) -> tuple[float, int]:
    """Return the share of trials, of both orders, in which the server named the better response, by its own record, and how
    many pairs it was not asked about in both orders with their picture in sight."""
    rows = [json.loads(line) for line in asked.read_text(encoding="utf-8").splitlines()] if asked.exists() else []
    named = {(row["picture"], *row["shown"]): row["shown"][row["named"]] for row in rows if row["sees"]}
    right, unseen = 0.0, 0
    for pair in pairs:
        picture = pixels_of(pair.images[0])
        key = name_of(picture) if picture is not None else ""
        answers = [named.get((key, *responses)) for responses in (pair.responses, pair.responses[::-1])]
        unseen += None in answers
        right += sum(answer == pair.responses[pair.preferred or 0] for answer in answers) / 2
    return right / len(pairs), unseen


def try_case(case: Case, pairs: Sequence[PreferencePair], folder: Path) -> Outcome:
    """Do as a newcomer does, in ``folder``, until there is a number or no cure."""
    outcome, check_and_run = Outcome(case), documented(ROOT / case.page)
    with server_of(case, folder) as attempt:
        attempt.data = FORMS[case.form].write(pairs, folder)
        for documentation in check_and_run:
            while len(outcome.steps) < MOST_COMMANDS:
                words = words_of(documentation, attempt)
                status, output, seconds = run(words, attempt)
                cure = cure_by(output, attempt) if status else ""
                outcome.steps.append(Step(shlex.join(words), status, round(seconds, 2), cure))
                if not cure:
                    break
            if status:
                return outcome
        figure = _FIGURE.search(output)
        outcome.figure = float(figure[1]) if figure else None
        report = json.loads((folder / attempt.out / "report.json").read_text(encoding="utf-8"))
        outcome.report = report["accuracy"]["micro"]
        outcome.truth, outcome.unseen = truth_of(pairs, folder / "asked.jsonl")
    return outcome


def all_cases(num_pairs: int) -> list[Case]:
    """Return every form in every style; and in the first form refusals, a death half way, and the README's commands."""
    refusals = [Case(refuses=refusal) for refusal in ("401", "404", "400", "newer")]
    others = [*refusals, Case(dies_after=3 * num_pairs), Case(page=README)]
    in_styles = [Case(NATIVE, style) for style in STYLES]
    return [*in_styles, *others, *(Case(form, style) for style in STYLES for form in FORMS if form != NATIVE)]


def table(outcomes: Sequence[Outcome], num_pairs: int, command: str, at: str) -> str:
    """Return the page of the results."""
    faults = [outcome for outcome in outcomes if outcome.fault]
    slowest = max(outcome.seconds for outcome in outcomes)
    lines = [
        "# A newcomer's trial",
        "",
        f"`{command}`, commit {at[:7]}{'+dirty' * at.endswith('+dirty')}; what is tried and how is in `eval/newcomer.py`.",
        "",
        f"{num_pairs} pairs. {len(outcomes) - len(faults)} of {len(outcomes)} cases came to the server's own number, with "
        "every picture seen, by what the commands themselves said. "
        f"The slowest took {slowest:.0f} s of commands; reading is not in it.",
        "",
        "| pairs | server | commands | seconds | number, % | server's own, % | pictures unseen | exit statuses | cures |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        number, truth = ("–" if value is None else f"{value:.1f}" for value in (one.figure, one.truth and 100 * one.truth))
        cures = ", ".join(step.cure for step in one.steps if step.cure) or "none"
        of_page = f" ({one.case.page})" if one.case.page != PAGE else ""
        cells = (one.case.form + of_page, one.case.server, len(one.steps), f"{one.seconds:.1f}", number, truth, one.unseen)
        statuses = " ".join(str(step.status) for step in one.steps)
        lines.append("| " + " | ".join(map(str, (*cells, statuses, cures))) + " |")
    if faults:
        lines += ["", *(f"- {one.case.form}, {one.case.server}: **{one.fault}**" for one in faults)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--only", default="", help="cases whose form or server has this in its name")
    parser.add_argument("--out", type=Path, default=ROOT / "eval" / "results" / "newcomer", help="of .json and .md")
    options = parser.parse_args()
    pairs, outcomes, at = newcomers_pairs(options.pairs), list[Outcome](), commit()
    command = shlex.join(["python", "eval/newcomer.py", *sys.argv[1:]])
    for case in all_cases(options.pairs):
        if options.only not in f"{case.form} / {case.server}":
            continue
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(try_case(case, pairs, Path(folder)))
        last = outcomes[-1]
        print(
            f"{case.form} / {case.server}: {last.fault or 'right'}, {len(last.steps)} commands, {last.seconds:.1f} s",
            flush=True,
        )
        results = {"command": command, "commit": at, "pairs": options.pairs, "cases": [one.to_json() for one in outcomes]}
        write_atomic(options.out.with_suffix(".json"), json.dumps(results, indent=1) + "\n")
        write_atomic(options.out.with_suffix(".md"), table(outcomes, options.pairs, command, at))
    sys.exit(any(outcome.fault for outcome in outcomes))


if __name__ == "__main__":
    main()
