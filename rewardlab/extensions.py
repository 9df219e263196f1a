"""Parts from outside the package: an object in a Python file given by its path, or an entry point of an installed package.

Benchmarks, data recipes, reward terms and verdict formats are found so; CONTRIBUTING has an example of each.
"""

from __future__ import annotations

import importlib.util
import sys
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeVar

from rewardlab.errors import ConfigError

T = TypeVar("T")


def load_extension(name: str, kind: type[T], *, attribute: str, group: str, expected: str | None = None) -> T | None:
    """Return the ``attribute`` of the Python file ``name``, or the entry point called so in ``group``; None where there is
    none.

    ``expected`` says in an error how the attribute is written; by default ``ATTRIBUTE = Kind(...)``. Raise ConfigError for a
    file that is not there or cannot be run, and for an object that is no ``kind``.
    """
    if name.endswith(".py"):
        where, value = name, getattr(_run(Path(name), attribute), attribute, None)
    elif name in (installed := entry_points(group=group)).names:
        where = f"the entry point {name} of {group}"
        try:
            value = installed[name].load()
        except (Exception, SystemExit) as error:  # the boundary: another's code may fail in any way
            raise ConfigError(f"{where}: could not be loaded ({type(error).__name__}: {error})") from error
    else:
        return None
    if not isinstance(value, kind):
        expected = expected or f"{attribute} = {kind.__name__}(...)"
        raise ConfigError(f"{where}: has no {attribute}; expected {expected} at its top level")
    return value


def extension_names(group: str) -> list[str]:
    """Return the names of the entry points in ``group``."""
    return sorted(entry_points(group=group).names)


def _run(path: Path, attribute: str) -> object:
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "no such file"
        raise ConfigError(f"{path}: {what}; expected a Python file with a module-level {attribute}")
    spec = importlib.util.spec_from_file_location(
        f"rewardlab_extension_{sha256(str(path.resolve()).encode()).hexdigest()[:16]}", path
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look it up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the boundary: another's code may fail in any way
        del sys.modules[spec.name]
        raise ConfigError(f"{path}: could not be loaded ({type(error).__name__}: {error})") from error
    return module
