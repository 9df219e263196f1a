"""Where the judge and the pairs of a study are: the folder of a quickstart."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from eval.studies.trials import digest
from rewardlab.demo.build import TEST
from rewardlab.errors import ConfigError
from rewardlab.training.run.folder import FINAL, is_finished

VALIDATION, UNLIKE = "validation.parquet", "unlike.parquet"  # beside the test pairs


def require_recipes(configs: Path, names: Collection[str]) -> None:
    """Raise ConfigError where the folder lacks one of the recipes."""
    if missing := sorted(name for name in names if not (configs / f"{name}.yaml").exists()):
        raise ConfigError(f"{configs}: has no {missing[0]}.yaml; expected the folder of the methods' recipes, configs/rl")


@dataclass(frozen=True)
class World:
    """A finished quickstart's folder, or one up to SFT: its judge and its sets of pairs."""

    judge: Path
    train: Path
    validation: Path
    test: Path
    unlike: Path | None

    @staticmethod
    def of(run: Path) -> World:
        """Raise ConfigError where something is missing. Without validation pairs, those are the last of the test pairs."""
        demo = run / "demo"
        train, test, validation, unlike = run / "distill" / "distilled.parquet", demo / TEST, demo / VALIDATION, demo / UNLIKE
        if not is_finished(run / "sft") or not train.exists() or not test.exists():
            raise ConfigError(f"{run}: holds no finished quickstart; make one with `rewardlab quickstart --out {run}`")
        return World(
            run / "sft" / FINAL,
            train,
            validation if validation.exists() else test,
            test,
            unlike if unlike.exists() else None,
        )

    def digests(self) -> dict[str, str]:
        """Return what the judge and the pairs are known by."""
        files = {"judge": self.judge / "model.safetensors", "train": self.train}
        files |= {"validation": self.validation, "test": self.test} | ({"unlike": self.unlike} if self.unlike else {})
        return {name: digest(path) for name, path in files.items()}
