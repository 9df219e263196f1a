"""All commands: each says what it does, each option and argument has words, and each stands in a panel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from rewardlab.cli import app, main
from rewardlab.cli.applications import RESUMABLE
from rewardlab.cli.options import PANELS
from tests.support.shell import run_main


def walk(command: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield (name, command) of every command that can be seen, groups too."""
    yield " ".join(names), command
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from walk(inner, (*names, name))


TREE = dict(walk(typer.main.get_command(app)))


@pytest.mark.parametrize("name", TREE)
def test_help(name: str) -> None:
    """A usage line and no <bool>."""
    done = run_main(main, *name.split(), "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout
    assert "<bool>" not in done.stdout


@pytest.mark.parametrize("name", TREE)
def test_every_command_and_parameter_has_words(name: str) -> None:
    """A first sentence that ends, and help for each option and argument that is not hidden."""
    command = TREE[name]
    first = (command.help or "").strip().split("\n\n")[0].rstrip()
    assert first.endswith((".", "`", "?")), first
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            assert getattr(parameter, "help", None), f"{name} {parameter.name}"


def test_every_command_has_a_panel() -> None:
    """Of those of the first level."""
    for name, command in TREE.items():
        if name and " " not in name:
            assert command.rich_help_panel in PANELS, name


def test_resumable_commands_exist_and_say_so() -> None:
    """What promises that the same command goes on says it in its help."""
    assert set(TREE) >= RESUMABLE
    for name in RESUMABLE:
        words = " ".join(TREE[name].help.split())
        assert re.search(r"same command|an interrupted \w+ continues", words), name


@pytest.mark.slow
def test_help_of_the_demo_and_of_templates() -> None:
    """What `demo` does by itself, in its help and in the list of commands; which template an endpoint gets."""
    for arguments in (("demo", "--help"), ("--help",)):
        assert "Judge six pairs with the bundled judge" in words_of(*arguments)
    assert "the checkpoint's, r1_reward for endpoints" in words_of("configs", "keys", "judge")
    for command in ("bench run", "judge", "rank", "serve"):
        assert "rewardlab configs keys judge" in words_of(*command.split(), "--help")


def words_of(*arguments: str) -> str:
    """Return what a command prints, without the frames of its tables."""
    return " ".join(run_main(main, *arguments).stdout.replace("│", " ").split())


@pytest.mark.parametrize("name", ["distill", "steps", "sft", "rl", "rm", "prm", "policy", "score"])
def test_stages_take_pairs_alike(name: str) -> None:
    """Whatever can be read is named, and where its images are may be said."""
    words = {parameter.name: parameter.help for parameter in TREE[name].params}
    assert ".parquet, .jsonl, or a folder of either" in words["data"]
    assert "image and video paths are relative to" in words["images"]
