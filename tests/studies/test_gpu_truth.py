"""What is tried on a GPU, rehearsed without one: its commands, failures that are seen, a call that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from eval import gpu_truth
from eval.gpu_stages import OTHER_HARDWARE, Case, Options, cli, examine, recipes, rl_words, runs, training_words
from eval.gpu_truth import BEGAN, Record, run_stage
from rewardlab.config import RLConfig, SFTConfig, find_config, load_config, parse_overrides

ROOT = Path(__file__).parents[2]
MACHINE = {"device": "a card", "commit": "abc"}


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.setenv(BEGAN, str(time.time()))
    (tmp_path / "out").mkdir()
    return Options(tmp_path / "out", tmp_path / "work", True, 5.0, "tiny", "abc")


def tried(options: Options, minutes: float = 1, **cases: Case) -> dict[str, Any]:
    record = Record(options, MACHINE)
    run_stage("runs", cases, options, record, deadline=time.time() + 60 * minutes)
    rows: dict[str, Any] = json.loads(record.path.read_text())["runs"]
    assert rows == record.rows("runs")
    return rows


@pytest.mark.parametrize("on_cpu", [True, False])
def test_the_configs_take_the_commands(on_cpu: bool, tmp_path: Path) -> None:
    """Every key of every training exists and has a value that fits."""
    options = Options(tmp_path, tmp_path, on_cpu, 8.0, "3b", "")
    cases = runs(options)
    every = {path.stem for path in (ROOT / "configs" / "rl").glob("*.yaml")}
    assert every == {*recipes(), *OTHER_HARDWARE}
    assert {f"rl {recipe}" for recipe in every - OTHER_HARDWARE.keys() - {"stable_reinforce_qlora_24gb"}} <= cases.keys()
    trainings = [
        training_words(options, "sft", "sft/qwen2_5_vl_7b", "sft"),
        *(rl_words(options, r) for r in recipes()),
    ]
    for words in trainings:
        schema: Any = SFTConfig if words[0] == "sft" else RLConfig
        keys = parse_overrides([word for word in map(str, words) if "=" in word])
        config = load_config(schema, Path(find_config(words[words.index("--config") + 1])), keys, model="m")
        assert config.max_steps == 2, words


def raises(error: BaseException) -> Any:
    raise error


def test_a_failure_of_each_kind_is_seen(options: Options) -> None:
    """An error, too little memory, an exit status, a command that is refused, figures out of bounds or missing, a doctor that
    takes no step. What works beside them is kept, and folders are deleted."""
    folder = options.work / "large"
    folder.mkdir(parents=True)
    missing = ["--data", options.data, "--model", options.start]
    rows = tried(
        options,
        works=Case(lambda: {"gap": 0.5}, folder=folder, bounds={"gap": (0, 1)}),
        error=Case(partial(raises, ValueError("planted"))),
        memory=Case(partial(raises, torch.OutOfMemoryError("CUDA out of memory"))),
        status=Case(partial(raises, SystemExit(1))),
        refused=Case(lambda: {"text": cli("sft", *missing, "--out", folder)}),
        beyond=Case(lambda: {"gap": 1.5}, bounds={"gap": (0, 1)}),
        nan=Case(lambda: {"gap": float("nan")}, bounds={"gap": (0, 1)}),
        missing=Case(dict, bounds={"gap": (0, 1)}),
        doctor=Case(partial(examine, "doctor", "rl/stable_reinforce", f"model={options.start}", "--dry-run")),
    )
    assert [name for name, row in rows.items() if row["ok"]] == ["works"]
    assert not folder.exists()
    errors = {name: row["error"] for name, row in rows.items() if not row["ok"]}
    assert errors["error"] == "ValueError: planted"
    assert "out of memory" in errors["memory"]
    assert errors["status"] == "exit status 1"
    assert "exit status 2" in errors["refused"]
    assert "no such folder" in errors["refused"]
    assert errors["beyond"] == "gap is 1.5, expected 0 to 1"
    assert errors["nan"] == "gap is nan, expected 0 to 1"
    assert errors["missing"] == "gap is missing, expected 0 to 1"
    assert "the doctor took no step" in errors["doctor"]
    page = (options.out / "gpu_truth.md").read_text()
    assert page.count("**no**") == 8
    assert "gap is 1.5" in page


def test_what_worked_is_not_run_again(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a call nothing is tried twice; the next one tries what failed, and what made files that are gone."""
    calls: list[str] = []
    made = options.work / "made"

    def note(name: str, error: Exception | None = None) -> dict[str, Any]:
        calls.append(name)
        if error:
            raise error
        return {}

    cases = {
        "good": Case(partial(note, "good")),
        "bad": Case(partial(note, "bad", ValueError())),
        "gone": Case(partial(note, "gone"), makes=made),
    }
    tried(options, **cases)
    tried(options, **cases)
    assert calls == ["good", "bad", "gone"]
    monkeypatch.setenv(BEGAN, str(time.time() + 1))
    tried(options, **cases)
    assert calls == ["good", "bad", "gone", "bad", "gone"]


def test_a_card_that_no_longer_answers(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured is written, then a new process goes on."""
    cleaned = gpu_truth.clean_up

    def sticky(case: Case, device: str) -> None:
        cleaned(case, device)
        if case.needs_gib:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(gpu_truth, "clean_up", sticky)
    monkeypatch.setattr(os, "execv", lambda program, words: raises(SystemExit(" ".join(words[:3]))))
    with pytest.raises(SystemExit, match=r"-m eval\.gpu_truth"):
        tried(options, first=Case(dict), second=Case(dict, needs_gib=1), third=Case(dict))
    rows = Record(options, MACHINE).rows("runs")
    assert rows["first"]["ok"]
    assert "illegal memory access" in rows["second"]["error"]
    monkeypatch.setattr(gpu_truth, "clean_up", cleaned)
    rows = tried(options, first=Case(dict), second=Case(dict, needs_gib=1), third=Case(dict))  # the new process
    assert [row["ok"] for row in rows.values()] == [True, False, True]


PLANTED = """
import sys, time
from pathlib import Path
from eval import gpu_truth
def partial():
    raise ValueError("half a line")
hang = gpu_truth.Case(lambda: time.sleep(600) or {}, partial=partial)
gpu_truth.STAGES["equal"] = lambda options: {"known": gpu_truth.Case(lambda: {"figure": 1}), "hangs": hang}
gpu_truth.main()
"""


@pytest.mark.parametrize("how", ["minutes", "SIGTERM", "SIGKILL"])
def test_a_call_that_is_cut_off(how: str, tmp_path: Path) -> None:
    """A case that hangs ends with the minutes; a call that is stopped or killed leaves what was measured."""
    words = [
        sys.executable,
        "-c",
        PLANTED,
        "--out",
        tmp_path / "out",
        "--work",
        tmp_path / "work",
        "--on-cpu",
        "--stage",
        "equal",
    ]
    words += ["--minutes", "0.5" if how == "minutes" else "5"]
    env = {name: value for name, value in os.environ.items() if name != BEGAN}
    process = subprocess.Popen(list(map(str, words)), cwd=ROOT, stdout=subprocess.PIPE, text=True, env=env)
    with process.stdout or pytest.fail("no output") as lines:
        assert any("known" in line for line in lines)
        if how != "minutes":
            time.sleep(0.5)
            process.send_signal(signal.Signals[how])
        assert process.wait(timeout=120) != 0
    rows = json.loads((tmp_path / "out" / "gpu_truth.json").read_text())["equal"]
    assert rows["known"]["figure"] == 1
    if how == "minutes":
        assert rows["hangs"] | {"at": 0} == {"ok": False, "error": "the minutes were over", "at": 0}
