"""What works without any extra, and what is said where one is missing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rewardlab
from rewardlab.errors import MissingPackageError, missing_package
from tests.support.base_install import base_environment, hidden_modules

ROOT = Path(__file__).parents[2]
ADAPTERS = ("client", "trl", "verl", "openrlhf", "ms_swift", "easyr1", "slime", "flow_grpo", "verl_omni")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables of a Python with the base install alone."""
    return base_environment(tmp_path_factory.mktemp("base"))


def python(base: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=base, timeout=120)


@pytest.mark.slow
def test_the_base_is_small() -> None:
    """The hook hides what makes an install heavy, and nothing of the base."""
    hidden = hidden_modules()
    assert {"torch", "transformers", "pyarrow", "scipy", "matplotlib", "starlette", "datasets", "trl"} <= hidden
    assert not {"httpx", "PIL", "pydantic", "yaml", "numpy", "typer", "rich", "openai", "rewardlab"} & hidden


@pytest.mark.slow
def test_adapters_import_without_any_framework(base: dict[str, str]) -> None:
    """They run within trainers, which bring torch and transformers of their own versions."""
    modules = [f"rewardlab.integrations.{name}" for name in ADAPTERS]
    code = f"import importlib, sys; [importlib.import_module(name) for name in {modules!r}]; print('torch' in sys.modules)"
    done = python(base, "-c", code)
    assert (done.stdout.strip(), done.returncode) == ("False", 0), done.stderr


@pytest.mark.slow
def test_every_command_explains_itself(base: dict[str, str]) -> None:
    """``--help`` of all of them, in one process."""
    code = (
        "import typer, rewardlab.cli as cli; from typer.testing import CliRunner\n"
        "def walk(command, path):\n"
        "    result = CliRunner().invoke(cli.app, [*path, '--help'])\n"
        "    assert result.exit_code == 0, (path, result.output)\n"
        "    global count; count += 1\n"
        "    for name, inner in getattr(command, 'commands', {}).items():\n"
        "        if not inner.hidden: walk(inner, [*path, name])\n"
        "count = 0; walk(typer.main.get_command(cli.app), []); print(count)"
    )
    done = python(base, "-c", code)
    assert int(done.stdout or 0) > 40, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("sft --data x --out y", "train"),
        ("rl --data x --out y", "train"),
        ("bench run pairs --data x.jsonl --judge baseline:longest --out o", "bench"),
        ("serve --judge openai:m@http://127.0.0.1:9/v1", "serve"),
        ("data build rlaif_v --from x --out y --against none", "curate"),
        ("distill --data x.jsonl --out o", "curate"),
        ("judge --judge hf:{checkpoint} --question q --first a --second b", "hf"),
    ],
)
def test_a_missing_extra_is_one_sentence(base: dict[str, str], tmp_path: Path, command: str, extra: str) -> None:
    """Exit status 2, the line that installs it, and no traceback."""
    (tmp_path / "config.json").write_text("{}")
    done = python(base, "-m", "rewardlab.cli", *command.format(checkpoint=tmp_path).split())
    assert done.returncode == 2, done.stderr
    assert f"pip install 'rewardlab[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_extra_is_that_of_the_room(tmp_path: Path) -> None:
    """What `doctor` and the health of a run miss is what training needs."""
    for place in ("cli/configs.py", "health/run_page.py", "training/rl.py"):
        code = compile("raise ModuleNotFoundError('x', name='torch')", str(Path(rewardlab.__file__).parent / place), "exec")
        with pytest.raises(ModuleNotFoundError) as caught:
            exec(code)
        assert str(missing_package(caught.value)).endswith("pip install 'rewardlab[train]'")


def test_another_package_that_is_missing_is_not_explained() -> None:
    """The name of an extra would be a guess."""
    assert missing_package(ModuleNotFoundError("No module named 'x'", name="nowhere_to_be_found")) is None
    found = missing_package(ModuleNotFoundError("No module named 'torch'", name="torch.nn"))
    assert isinstance(found, MissingPackageError)
    assert str(found).endswith("pip install 'rewardlab[hf]'")


@pytest.mark.slow
def test_an_endpoint_judges_without_any_extra(
    base: dict[str, str], demo_server: Callable[..., str], demo_pairs: Any, tmp_path: Path
) -> None:
    """One pair with its picture, through the command line, in both orders."""
    pair = demo_pairs[0][0]
    (tmp_path / "picture.png").write_bytes(pair.images[0])
    done = python(
        base,
        *("-m", "rewardlab.cli", "judge", "--judge", f"openai:demo-teacher@{demo_server()}", "--question", pair.question),
        *("--first", pair.responses[0], "--second", pair.responses[1], "--image", str(tmp_path / "picture.png")),
    )
    assert done.returncode == 0, done.stderr
    assert "1 - 0" in done.stdout or "votes" in done.stdout, done.stdout


def test_every_bound_has_both_ends() -> None:
    """An upper bound is what a later release has not been tried with."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: lines for name, lines in project["optional-dependencies"].items() if name != "dev"}
    lines = [*project["dependencies"], *(line for extra in extras.values() for line in extra)]
    assert [line for line in lines if not line.startswith("rewardlab[") and not (">=" in line and ",<" in line)] == []
    names = "train hf vllm serve bench curate verify video demo all"
    assert set(names.split()) <= set(extras)
