"""The versions of Python and of packages that the project admits, and what tests them."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from tests.support.repository import tracked_files

ROOT = Path(__file__).parents[2]
GPU_WHEELS = ROOT / "eval" / "gpu_requirements.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIREMENTS = [
    Requirement(line)
    for lines in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for line in lines
    if not line.startswith("rewardlab[")
]


def output_of(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_every_python_that_is_promised_is_tested() -> None:
    """The classifiers begin at the lowest Python that pip admits, and the workflow runs each of them."""
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert PROJECT["requires-python"] == f">={promised[0]}"
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    assert [promised[0], *jobs["pythons"]["strategy"]["matrix"]["python"]] == promised


@pytest.mark.parametrize("target", ["demo", "quickstart", "test", "wheel"])
@pytest.mark.parametrize(("version", "is_admitted"), [((3, 10, 13), False), ((3, 11, 0), True), ((3, 13, 0), True)])
def test_make_refuses_an_old_python_before_it_installs(
    tmp_path: Path, version: tuple[int, ...], is_admitted: bool, target: str
) -> None:
    """A stand-in for the interpreter tells its version, and writes down what else it is asked to do."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "python").write_text(
        f'#!/bin/sh\n[ "$1" = -c ] || {{ echo "$@" >> asked; exit 1; }}\n'
        f"exec {sys.executable} -c 'import sys; sys.version_info = {version}; exec(sys.argv[1])' \"$2\"\n"
    )
    (tmp_path / "python").chmod(0o755)
    done = subprocess.run(["make", "PYTHON=./python", target], cwd=tmp_path, capture_output=True, text=True)
    said = "rewardlab needs Python 3.11 or later; ./python is Python 3.10: make PYTHON=python3.11"
    assert (tmp_path / "asked").exists() == is_admitted
    assert done.stderr.splitlines()[0] == said or is_admitted


def test_make_takes_the_lower_bounds_of_pyproject() -> None:
    """`make check-lowest` holds every package at its own bound, by its own command."""
    [command] = re.findall(r"^(sed .*) > \S+$", output_of("make", "--dry-run", "check-lowest"), re.MULTILINE)
    printed = output_of("sh", "-c", command)
    lowest: dict[str, Version] = {}
    for requirement in REQUIREMENTS:
        [bound] = [Version(part.version) for part in requirement.specifier if part.operator == ">="]
        lowest[requirement.name] = max(bound, lowest.get(requirement.name, bound))
    assert {name: Version(version) for name, version in (line.split("==") for line in printed.splitlines())} == lowest


def versions_in(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", text.replace("_", "-"), re.MULTILINE))


def test_the_wheels_for_a_gpu_machine_are_enough() -> None:
    """The tested versions, within all bounds; what they and the project require is among them or is on the machine."""
    text = GPU_WHEELS.read_text(encoding="utf-8")
    pins = versions_in(text)
    assert [line for line in text.splitlines() if not line.startswith("#")] == [f"{name}=={pin}" for name, pin in pins.items()]
    assert pins.items() <= versions_in((ROOT / "constraints.txt").read_text(encoding="utf-8")).items()
    header = text[: text.index("# Fetch")]
    versions = pins | dict(re.findall(r"([a-z][\w-]+) (\d+\.\d+\.\d+)", header))
    known = {*versions, *header[header.index("and any:") :].split()}
    extras = PROJECT["optional-dependencies"]
    needed = [*PROJECT["dependencies"], *(line for name in ("hf", "train", "bench", "serve") for line in extras[name])]
    needed += [line for name, pin in pins.items() if metadata.version(name) == pin for line in metadata.requires(name) or []]
    there = {"extra": "", "python_version": "3.12"}
    required = [found for found in map(Requirement, needed) if found.marker is None or found.marker.evaluate(there)]
    assert {found.name.replace("_", "-") for found in required} - {"rewardlab"} <= known
    for requirement in [*REQUIREMENTS, *required]:
        version = versions.get(requirement.name.replace("_", "-"))
        assert version is None or version in requirement.specifier, f"{requirement}: {version}"


def test_the_wheels_for_a_gpu_machine_fit_beside_the_tree() -> None:
    """Below 60 MiB together, by the size that the file states, and by the wheels themselves if they were fetched."""
    [(number, stated)] = re.findall(r"(\d+) wheels, ([\d.]+) MiB", GPU_WHEELS.read_text(encoding="utf-8"))
    assert int(number) == len(versions_in(GPU_WHEELS.read_text(encoding="utf-8")))
    wheels = sum(path.stat().st_size for path in (ROOT / "wheels").glob("*.whl")) / 2**20
    assert wheels < float(stated) + 0.05
    tree = sum(path.stat().st_size for path in tracked_files()) / 2**20
    assert tree + float(stated) < 60


def packages_of(extra: str) -> set[str]:
    """Return every distribution that comes with an extra, by what is installed here."""
    extras, found = PROJECT["optional-dependencies"], set[str]()
    waiting = [(line, "") for line in [*PROJECT["dependencies"], *extras[extra]]]
    while waiting:
        line, wanted = waiting.pop()
        requirement = Requirement(line)
        name = requirement.name.lower().replace("_", "-")
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": wanted}):
            continue
        if name == "rewardlab":
            waiting += [(line, "") for part in requirement.extras for line in extras[part]]
        elif name not in found:
            found.add(name)
            waiting += [(line, part) for part in ("", *requirement.extras) for line in metadata.requires(name) or []]
    return found


def imported_by(path: Path) -> set[str]:
    """Return the top-level modules that a file imports as it is loaded."""
    modules = set[str]()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            modules.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Import):
            modules |= {name.name.partition(".")[0] for name in node.names}
    return modules


@pytest.mark.slow
def test_an_extra_brings_what_its_commands_import() -> None:
    """What distillation, training and the doctor import as they are loaded comes with ``train``; Ray has its own extra."""
    owners, there = metadata.packages_distributions(), packages_of("train") | {"rewardlab", "ray"}
    for room in ("distill", "health", "training"):
        for path in (ROOT / "rewardlab" / room).rglob("*.py"):
            for module in imported_by(path):
                names = {name.lower().replace("_", "-") for name in owners.get(module, [])}
                assert not names or names & there, f"{path}: {module} is not in the extra train"
