"""One exception tree, and the sentence for a package that is not installed.

RewardlabError
├── InputError (also ValueError)     what the user gave cannot be used: the text says what, what was expected, the cure
│   ├── ConfigError                  a YAML or an option
│   ├── DataError                    a pair, a data file, an empty set
│   ├── MediaError                   an image that is missing, corrupt, empty or a bomb
│   └── CheckpointError              a folder that is no checkpoint, or was trained with another template
├── MissingPackageError (also ImportError)  a package of an extra is not installed: the text names the extra
├── HealthError                      a run showed a sign of going wrong and was ended
├── EndpointError                    a remote model failed: down, 429, 5xx, garbage, out of time
└── OutputError (also OSError)       a place that cannot be written
"""

from __future__ import annotations

import re
from pathlib import Path
from traceback import walk_tb


class RewardlabError(Exception):
    """Root of every error this package raises on purpose."""


class InputError(RewardlabError, ValueError):
    """The user's input cannot be used."""


class ConfigError(InputError):
    """A configuration file or option is wrong."""


class DataError(InputError):
    """A pair, a data file or a set of them is wrong."""


class MediaError(InputError):
    """An image is missing, corrupt, empty or too large."""


class CheckpointError(InputError):
    """A checkpoint folder is missing, incomplete, or does not fit the template asked for."""


class MissingPackageError(RewardlabError, ImportError):
    """A package that only some uses need is not installed."""


class HealthError(RewardlabError):
    """A training run was ended because of what it logged."""


class EndpointError(RewardlabError):
    """A remote model did not give a usable answer."""


class OutputError(RewardlabError, OSError):
    """An output path cannot be written."""


# Which extra a room of the package, or a file of the command line, is used with.
_EXTRA_OF_PLACE = {
    "training": "train",
    "train": "train",
    "health": "train",
    "configs": "train",
    "serving": "serve",
    "serve": "serve",
    "benchmarks": "bench",
    "bench": "bench",
    "curation": "curate",
    "distill": "curate",
    "data": "curate",
    "demo": "demo",
    "verifiable": "verify",
}
_DISTRIBUTION_OF_MODULE = {"sympy": "math-verify", "safetensors": "transformers"}


def missing_package(error: ModuleNotFoundError) -> MissingPackageError | None:
    """Return the error that names the extra to install; None where the missing module is of no extra of this package.

    Several extras bring torch or pyarrow: the one named is that of the outermost place in the traceback that has one.
    """
    module = (error.name or "").split(".")[0]
    distribution = _DISTRIBUTION_OF_MODULE.get(module, module.replace("_", "-")).lower()
    extras = [extra for extra, packages in _packages_of_extras().items() if distribution in packages]
    if not extras:
        return None
    package = Path(__file__).parent
    files = [Path(frame.f_code.co_filename) for frame, _ in walk_tb(error.__traceback__)]
    places = [
        part for file in files if file.is_relative_to(package) for part in file.relative_to(package).with_suffix("").parts
    ]
    extra = next((extra for place in places if (extra := _EXTRA_OF_PLACE.get(place)) in extras), extras[0])
    return MissingPackageError(f"{module} is not installed, which this needs; pip install 'rewardlab[{extra}]'")


def _packages_of_extras() -> dict[str, set[str]]:
    """Return the distributions of each extra, those of extras within it included, in the order they are declared."""
    from importlib.metadata import PackageNotFoundError, requires  # slow to import, and rarely needed

    try:
        lines = requires("rewardlab") or []
    except PackageNotFoundError:  # a checkout on the path
        return {}
    direct: dict[str, set[str]] = {}
    nested: dict[str, set[str]] = {}
    for line in lines:
        extra, name = re.search(r"extra == ['\"]([\w-]+)", line), re.match(r"([\w.-]+)(?:\[([\w,.-]+)\])?", line)
        if extra is None or name is None:
            continue
        if name[1] == "rewardlab":
            nested.setdefault(extra[1], set()).update(name[2].split(","))
        direct.setdefault(extra[1], set()).update(() if name[1] == "rewardlab" else {name[1].lower()})

    def packages(extra: str) -> set[str]:
        return direct.get(extra, set()).union(*(packages(inner) for inner in nested.get(extra, ())))

    return {extra: packages(extra) for extra in direct}
