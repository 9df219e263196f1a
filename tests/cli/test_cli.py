"""The shell as a user meets it: help that teaches, one sentence for an error, nothing half-written."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rewardlab.cli import main
from rewardlab.cli.exit_codes import ExitCode
from rewardlab.data.pairs import write_parquet
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.types import Completion, FinishReason, Judgment, Order, Outcome, Verdict, VerdictStatus, Vote
from tests.support.shell import run_main, run_module

ROOT = Path(__file__).parents[2]


def rewardlab(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_main(main, *arguments)


@pytest.mark.slow
def test_a_process_of_its_own() -> None:
    """Help, and an error of the user's: one sentence and exit status 2."""
    assert "Usage" in run_module("rewardlab.cli", "--help").stdout
    done = run_module("rewardlab.cli", "bench", "official", "nobody", "nothing.jsonl")
    assert (done.returncode, done.stderr.count("error:"), "Traceback" in done.stderr) == (2, 1, False)


@pytest.fixture
def pairs_file(demo_pairs: Any, tmp_path: Path) -> Path:
    write_parquet(demo_pairs[0][:20], tmp_path / "pairs.parquet")
    return tmp_path / "pairs.parquet"


def test_bench(pairs_file: Path, tmp_path: Path) -> None:
    """Four files, and the table on the screen."""
    done = rewardlab("bench", "run", "pairs", "--data", pairs_file, "--judge", "baseline:longest", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "| micro average |" in done.stdout
    left = ["report.html", "report.json", "report.md", "scores.jsonl", "votes.jsonl"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == left
    assert json.loads((tmp_path / "out" / "report.json").read_text())["judge"] == "baseline:longest"


@pytest.mark.slow
def test_required_figures(pairs_file: Path, tmp_path: Path) -> None:
    """Reports are written either way; exit status 1 and the figure that is missed; what is unknown stops before anything."""
    run = ("bench", "run", "pairs", "--data", pairs_file, "--judge", "baseline:first", "--out", tmp_path / "out")
    done = rewardlab(*run, "--require", "accuracy.micro>=0.5", "--require", "position_bias<=0.5")
    assert done.returncode == 0, done.stderr
    assert "accuracy.micro is 50.00 %: it reaches the 50.00 % required" in done.stdout
    done = rewardlab(*run, "--require", "accuracy.micro>=0.5", "--require", "position_bias<=0.2")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "position_bias is 50.00 %: it is above the 20.00 % required"
    done = rewardlab(*run[:-1], tmp_path / "none", "--require", "acuracy.micro>=0.5")
    assert done.returncode == 2
    assert "did you mean 'accuracy'" in done.stderr
    assert not (tmp_path / "none").exists()


def test_audit(tmp_path: Path) -> None:
    """Two files and the probes' table; exit status 1 and a sentence where a probe is paid wrongly."""
    row = {"domain": "choice", "question": "Which?", "truth": "B", "response": "<think>a</think>\\boxed{B}"}
    for truth, status in [("B", 0), ("Paris", 1)]:
        (tmp_path / "rows.jsonl").write_text(json.dumps({**row, "truth": truth}))
        done = rewardlab("audit", "--data", tmp_path / "rows.jsonl", "--out", tmp_path / "out")
        assert done.returncode == status, done.stderr
        assert "| alternatives " in done.stdout
        assert ("choice: the truth itself earned 0 and may earn 1" in done.stdout) == bool(status)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["report.html", "report.json"]


@pytest.mark.slow
def test_judge_of_an_endpoint_that_is_down(tmp_path: Path, demo_pairs: Any) -> None:
    """An outcome without a verdict, and no exit status 0; the reason stands with each vote."""
    (tmp_path / "a.png").write_bytes(demo_pairs[0][0].images[0])
    done = rewardlab(
        *("judge", "--judge", "openai:m@http://127.0.0.1:9/v1", "--question", "Which?", "--first", "a", "--second", "b"),
        *("--image", tmp_path / "a.png", "template=plain"),
    )
    assert done.returncode == ExitCode.ENDPOINT
    assert done.stdout.count("no verdict: error") == 2
    assert "no vote of an order names a response" in done.stdout


CASES: list[tuple[str, list[str], str]] = [
    (
        "missing data",
        ["bench", "run", "pairs", "--data", "none.parquet", "--judge", "baseline:first", "--out", "{out}"],
        "no such file",
    ),
    (
        "unknown judge",
        ["bench", "run", "pairs", "--data", "{pairs}", "--judge", "gpt", "--out", "{out}"],
        "expected demo (the bundled judge), hf:PATH",
    ),
    (
        "unknown control",
        ["bench", "run", "pairs", "--data", "{pairs}", "--judge", "baseline:first", "--controls", "x", "--out", "{out}"],
        "greedy",
    ),
    (
        "place not writable",
        ["bench", "run", "pairs", "--data", "{pairs}", "--judge", "baseline:first", "--out", "{file}/x"],
        "writable",
    ),
    (
        "no checkpoint",
        ["bench", "run", "pairs", "--data", "{pairs}", "--judge", "hf:{folder}", "--out", "{out}"],
        "not a checkpoint",
    ),
    ("unknown key", ["sft", "--data", "{pairs}", "--config", "{bad}", "--out", "{out}"], "unknown key 'learning_rat'"),
    ("nothing taught", ["sft", "--data", "{pairs}", "--model", "{judge}", "--out", "{out}"], "rewardlab distill"),
    (
        "no votes to verify",
        ["sft", "--data", "{pairs}", "--model", "{judge}", "--verify-votes", "{file}", "--out", "{out}"],
        "expected a votes.jsonl",
    ),
    ("another template in rl", ["rl", "--data", "{empty}", "--model", "{carded}", "--out", "{out}"], "(template=plain)"),
    ("nothing labelled", ["rl", "--data", "{bare_pairs}", "--model", "{bare}", "--out", "{out}"], "give `preferred` as 0 or 1"),
    ("nothing to audit", ["audit", "--data", "none.jsonl", "--out", "{out}"], "no such file"),
    ("unknown contract", ["audit", "--data", "{empty}", "--contract", "x", "--out", "{out}"], "boxed"),
    ("judge that cannot go on", ["steps", "--data", "{pairs}", "--judge", "openai:m@http://h/v1", "--out", "{out}"], "hf:PATH"),
    ("no such labels", ["prm", "--data", "{pairs}", "--steps", "none.jsonl", "--out", "{out}"], "rewardlab steps"),
    ("empty set", ["sft", "--data", "{empty}", "--out", "{out}"], "holds no pairs"),
    (
        "missing image",
        ["judge", "--judge", "hf:x", "--question", "q", "--first", "a", "--second", "b", "--image", "no.png"],
        "no.png",
    ),
    (
        "corrupt image",
        ["judge", "--judge", "hf:x", "--question", "q", "--first", "a", "--second", "b", "--image", "{file}"],
        "image",
    ),
    ("equal answers", ["judge", "--judge", "hf:x", "--question", "q", "--first", "a", "--second", "a"], "equal"),
    (
        "other template",
        ["judge", "--judge", "hf:{carded}", "--question", "q", "--first", "a", "--second", "b"],
        "train it again",
    ),
    (
        "vllm nowhere",
        ["bench", "run", "pairs", "--data", "{pairs}", "--judge", "vllm:/nowhere", "--out", "{out}"],
        "/nowhere: no such folder",
    ),
    (
        "prob vllm nowhere",
        ["bench", "run", "pairs", "--data", "{pairs}", "--judge", "prob:vllm:/nowhere", "--out", "{out}"],
        "/nowhere: no such folder",
    ),
    (
        "a key twice",
        ["sft", "--data", "{pairs}", "model=a", "--model", "b", "--out", "{out}"],
        "model is set twice, by model=... and by an option",
    ),
    ("no assignment", ["sft", "--data", "{pairs}", "--out", "{out}", "learning_rate"], "expected KEY=VALUE"),
    (
        "unknown nested key",
        ["rl", "--data", "{pairs}", "--config", "grpo", "--out", "{out}", "consistency.wieght=0"],
        "unknown key 'consistency.wieght'; did you mean 'consistency.weight'?",
    ),
    ("config of no name", ["rl", "--data", "{pairs}", "--config", "rl/grop", "--out", "{out}"], "did you mean rl/grpo"),
    (
        "images elsewhere",
        ["sft", "--data", "{named}", "--images", "{folder}", "--out", "{out}"],
        "folder/a.png: cannot be read",
    ),
    (
        "images elsewhere in rl",
        ["rl", "--data", "{named}", "--images", "{folder}", "--out", "{out}"],
        "folder/a.png: cannot be read",
    ),
    ("images not needed", ["data", "balance", "{pairs}", "--allow", "no-images", "--out", "{out}"], "no-images has no effect"),
    ("votes of a stage", ["steps", "--data", "{pairs}", "--judge", "hf:{bare}", "votes=3", "--out", "{out}"], "leave it out"),
    (
        "keys of no judge",
        ["data", "negatives", "{pairs}", "--answers", "{file}", "--truth", "exact", "judge.max_tokens=8", "--out", "{out}"],
        "a judge that is not queried",
    ),
    ("teacher not there", ["distill", "--data", "none.jsonl", "--out", "{out}"], "no such file"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_errors_are_one_sentence(arguments: list[str], message: str, pairs_file: Path, tmp_path: Path) -> None:
    """Exit status 2, what and the cure on standard error, no traceback, no half-written result."""
    files = {name: tmp_path / name for name in ("file", "bad.yaml", "empty.jsonl", "named.jsonl", "bare_pairs.jsonl")}
    files["file"].write_text("not a folder")
    files["bad.yaml"].write_text("learning_rat: 1\n")
    files["empty.jsonl"].write_text("")
    row = {"question": "Which?", "responses": ["a", "b"], "preferred": 0, "images": ["a.png"]}
    files["named.jsonl"].write_text(json.dumps(row))
    files["bare_pairs.jsonl"].write_text(json.dumps({"question": "Which?", "responses": ["a", "b"]}))
    for name in ("folder", "bare", "carded"):
        (tmp_path / name).mkdir()
        if name != "folder":
            (tmp_path / name / "config.json").write_text("{}")
    card = {"template": "plain", "template_hash": "0" * 16}
    (tmp_path / "carded" / "rewardlab.json").write_text(json.dumps(card))
    out = tmp_path / "out"
    places = {
        "pairs": pairs_file,
        "out": out,
        "judge": DEMO_JUDGE,
        **{name: tmp_path / name for name in ("folder", "bare", "carded")},
    }
    places |= {path.stem: path for path in files.values()}
    done = rewardlab(*(argument.format(**places) for argument in arguments))
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error:"), done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists() or not any(out.iterdir())


def test_a_judgment_is_printed_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    """Markup and names of emoji in an answer are text."""
    from rewardlab.cli.judge import print_judgment
    from rewardlab.types import Choice

    votes = (
        Vote(Order.GIVEN, Verdict(Choice.FIRST, VerdictStatus.OK), Completion("[bold]x[/bold] :x:", FinishReason.STOP)),
        Vote(Order.SWAPPED, Verdict(None, VerdictStatus.TIMEOUT), Completion("", FinishReason.TIMEOUT, error="too late")),
    )
    print_judgment(Judgment("p", votes, Outcome.RESPONSE_0, 1.0))
    text = capsys.readouterr().out
    assert "[bold]x[/bold] :x:" in text
    assert "no verdict: timeout" in text
    assert "too late" in text
    assert re.search(r"the first response is better.*100%", text)
