"""The studies' commands as a user meets them: one sentence for an error, help that teaches."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.studies.__main__ import main
from tests.support.shell import run_main, run_module

CASES = [
    ("no quickstart", ["stability", "--run", "{folder}", "--out", "{out}"], "rewardlab quickstart --out"),
    ("no rate", ["stability", "--rates", "high", "--out", "{out}"], "for example 1e-4,3e-4"),
    ("no arm", ["stability", "--arms", "ppo", "--out", "{out}"], "expected some of reinforce_pp"),
]


@pytest.mark.parametrize(("arguments", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_errors_are_one_sentence(arguments: list[str], message: str, tmp_path: Path) -> None:
    """Exit status 2, what and the cure on standard error, no traceback."""
    done = run_main(main, *(argument.format(folder=tmp_path, out=tmp_path / "out") for argument in arguments))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert message in " ".join(done.stderr.split())


def test_help_lists_the_studies() -> None:
    done = run_module("eval.studies", "--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("stability", "methods", "policy"))
