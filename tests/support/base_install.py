"""An environment variable set under which Python finds only what the base install brings: no extra's packages."""

from __future__ import annotations

import os
import re
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

ROOT = Path(__file__).parents[2]

_HOOK = """
import sys

class Hidden:
    names = {names!r}

    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {{fullname!r}}", name=fullname)

sys.meta_path.insert(0, Hidden())
"""


def closure(distribution: str) -> set[str]:
    """The distributions that an install without extras brings, by their metadata."""
    found: set[str] = set()
    pending = [distribution]
    while pending:
        name = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        if name in found:
            continue
        found.add(name)
        try:
            lines = requires(name) or []
        except PackageNotFoundError:  # of another platform or Python
            continue
        pending += [re.match(r"[\w.-]+", line)[0] for line in lines if "extra ==" not in line]  # type: ignore[index]
    return found


def hidden_modules() -> set[str]:
    """The importable names that only packages outside the base install bring."""
    base = closure("rewardlab")
    owners = packages_distributions()
    return {
        module
        for module, distributions in owners.items()
        if not base & {re.sub(r"[-_.]+", "-", name).lower() for name in distributions}
        and module not in {"_distutils_hack", "setuptools", "pkg_resources", "pip", "pytest", "_pytest"}
    }


def base_environment(folder: Path) -> dict[str, str]:
    """Environment variables of a Python in which nothing but the base install can be imported. ``folder`` keeps the hook."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_HOOK.format(names=sorted(hidden_modules())))
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
