"""rewardlab: train, benchmark and serve generative multimodal judges whose numbers can be trusted.

Importing this package loads neither torch nor any other heavy dependency; each name below is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rewardlab.models import torchvision_cpu as _torchvision_cpu  # noqa: F401  (a finder; see there)

if TYPE_CHECKING:
    from rewardlab.benchmarks.benchmark import benchmark as benchmark
    from rewardlab.benchmarks.report_model import Report as Report
    from rewardlab.data.pairs import read_pairs as load_pairs
    from rewardlab.errors import ConfigError as ConfigError
    from rewardlab.errors import DataError as DataError
    from rewardlab.errors import EndpointError as EndpointError
    from rewardlab.errors import RewardlabError as RewardlabError
    from rewardlab.judging.api import AsyncJudge as AsyncJudge
    from rewardlab.judging.api import ComparisonResult as ComparisonResult
    from rewardlab.judging.api import SyncJudge as SyncJudge
    from rewardlab.judging.api import open_async_judge as open_async_judge
    from rewardlab.judging.api import open_judge as open_judge
    from rewardlab.judging.ranking import Ranking as Ranking
    from rewardlab.training.rl import train_rl as train_rl
    from rewardlab.training.sft import train_sft as train_sft
    from rewardlab.types import PreferencePair as PreferencePair

__version__ = "0.1.0"

# Name -> the module that has it, and what it is called there.
_HOMES = {
    "AsyncJudge": "rewardlab.judging.api:AsyncJudge",
    "ComparisonResult": "rewardlab.judging.api:ComparisonResult",
    "ConfigError": "rewardlab.errors:ConfigError",
    "DataError": "rewardlab.errors:DataError",
    "EndpointError": "rewardlab.errors:EndpointError",
    "PreferencePair": "rewardlab.types:PreferencePair",
    "Ranking": "rewardlab.judging.ranking:Ranking",
    "Report": "rewardlab.benchmarks.report_model:Report",
    "RewardlabError": "rewardlab.errors:RewardlabError",
    "SyncJudge": "rewardlab.judging.api:SyncJudge",
    "benchmark": "rewardlab.benchmarks.benchmark:benchmark",
    "load_pairs": "rewardlab.data.pairs:read_pairs",
    "open_async_judge": "rewardlab.judging.api:open_async_judge",
    "open_judge": "rewardlab.judging.api:open_judge",
    "train_rl": "rewardlab.training.rl:train_rl",
    "train_sft": "rewardlab.training.sft:train_sft",
}
__all__ = [
    "AsyncJudge",
    "ComparisonResult",
    "ConfigError",
    "DataError",
    "EndpointError",
    "PreferencePair",
    "Ranking",
    "Report",
    "RewardlabError",
    "SyncJudge",
    "__version__",
    "benchmark",
    "load_pairs",
    "open_async_judge",
    "open_judge",
    "train_rl",
    "train_sft",
]


def __getattr__(name: str) -> Any:
    """Return a public name from where it lives. Raise MissingPackageError where that needs an extra that is not installed."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rewardlab' has no attribute {name!r}; it has {', '.join(_HOMES)}")
    module, _, attribute = _HOMES[name].partition(":")
    try:
        value = globals()[name] = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        from rewardlab.errors import missing_package

        raise missing_package(error) or error from error
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
