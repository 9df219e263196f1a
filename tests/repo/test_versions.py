"""The versions of packages that the project admits, and what tests them."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIREMENTS = [
    Requirement(line)
    for lines in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for line in lines
    if not line.startswith("rewardlab[")
]


def output_of(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_make_takes_the_lower_bounds_of_pyproject() -> None:
    """`make check-lowest` holds every package at its own bound, by its own command."""
    [command] = re.findall(r"^(sed .*) > \S+$", output_of("make", "--dry-run", "check-lowest"), re.MULTILINE)
    printed = output_of("sh", "-c", command)
    lowest: dict[str, Version] = {}
    for requirement in REQUIREMENTS:
        [bound] = [Version(part.version) for part in requirement.specifier if part.operator == ">="]
        lowest[requirement.name] = max(bound, lowest.get(requirement.name, bound))
    assert {name: Version(version) for name, version in (line.split("==") for line in printed.splitlines())} == lowest
