"""A guaranteed error of a judge's verdicts: the threshold that labels certified, bound to the judge and weights it is of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rewardlab.config.judge import JudgeConfig
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.drift import DriftReference
from rewardlab.judging.spec import JudgeSpec, named_checkpoint
from rewardlab.metrics.guarantee import CertifiedThreshold, check_levels
from rewardlab.models.checkpoints import VERDICT_TEMPERATURE
from rewardlab.types import BOTH_ORDERS, Judgment, Outcome
from rewardlab.verdicts.votes import FAILED, both_orders_or_none, in_order, winner_share

GUARANTEE = "guarantee.json"
Facts = Mapping[str, str | float]


def judge_facts(config: JudgeConfig, identity: Mapping[str, Any]) -> Facts:
    """Return what a judge is, whatever its folder: engine, weights, template and sampling. ``identity`` is the judge's own, or
    that of a run. Guarantees, certificates, the endpoint and its peers know a judge by these."""
    is_local = named_checkpoint(config.judge) is not None and bool(identity.get("weights"))
    return {
        "judge": str(replace(JudgeSpec.parse(config.judge), target="")) if is_local else config.judge,
        "weights": str(identity.get("weights", "")),
        "template": str(identity.get("template", "")),
        **config.sampling,
        "request": config.request_identity,
        "engine_args": config.engine_args,
        VERDICT_TEMPERATURE: identity.get(VERDICT_TEMPERATURE, 1.0),
    }


def threshold_text(threshold: float) -> str:
    """Return a threshold with four digits, below 1: with few votes there may be no confidence but 1, which exceeds it."""
    return f"{min(threshold, 0.9999):.4f}"


@dataclass(frozen=True)
class Guarantee:
    """Verdicts above ``certified.threshold``, of ``votes`` in each order, are wrong in a fraction ``certified.error`` at most.

    ``judge`` are the :func:`judge_facts` that it holds for, ``evidence`` what it was certified on: benchmark, labels, coverage,
    command; ``reference`` is the sketch that live comparisons are tested against, None without a threshold.
    """

    certified: CertifiedThreshold
    judge: Facts
    votes: int
    evidence: Mapping[str, Any]
    reference: DriftReference | None = None

    def write(self, path: Path) -> None:
        """Write the file that :func:`read_guarantee` reads. Raises OutputError."""
        from rewardlab.data.files import write_atomic

        write_atomic(path, json.dumps(asdict(self), indent=1) + "\n")

    def check(self, error: float, facts: Facts, votes: int | None = None) -> int:
        """Return how many votes to sample in each order for verdicts of an error of at most ``error``.

        Raise ConfigError for an ``error`` that is not between 0 and one half, and where the guarantee does not hold for it: it
        is of another judge or of other weights, of another number of ``votes``, of a larger error, or none was certified.
        """
        if self.certified.threshold is None:
            raise ConfigError(
                f"no threshold was certified for an error of {self.certified.error:g}: the judge abstains from all pairs; "
                "certify with more labels or a larger error"
            )
        try:
            check_levels(error, self.certified.confidence)
        except ValueError as fault:
            raise ConfigError(f"{fault}; such as error=0.05") from fault
        if error < self.certified.error:
            raise ConfigError(
                f"an error of {error:g} was requested, but {self.certified.error:g} was certified; run "
                f"`rewardlab guarantee RUN --error {error:g}`"
            )
        if other := [name for name in (*self.judge, *facts) if facts.get(name) != self.judge.get(name)]:
            raise ConfigError(
                f"the guarantee is of another judge: its {other[0].replace('_', ' ')} is {self.judge.get(other[0])!r}, this "
                f"one's {facts.get(other[0])!r}; certify a run of this judge"
            )
        if votes not in (None, self.votes):
            raise ConfigError(
                f"votes is {votes}, but the guarantee is of {self.votes} in each order; leave votes out, or certify a run with "
                f"--votes {votes}"
            )
        return self.votes

    def decide(self, judged: Judgment) -> Judgment:
        """Return a judgment in both orders as it is if its confidence exceeds the threshold; else one that has ABSTAINED,
        without ``share_0``, and so does one that lacks votes. One of NO_VALID_VOTE stays."""
        judged = both_orders_or_none(judged)
        answered = [vote for vote in judged.votes if vote.verdict.status not in FAILED]
        num_votes = self.votes * len({vote.member for vote in judged.votes})  # of a panel, those of each member
        complete = all(len(in_order(answered, order)) >= num_votes for order in BOTH_ORDERS)
        if judged.outcome is Outcome.NO_VALID_VOTE or (complete and self.certified.gives(winner_share(judged))):
            return judged
        return replace(judged, outcome=Outcome.ABSTAINED, share_0=None)


def read_guarantee(path: Path) -> Guarantee:
    """Return the guarantee of a file, or of the folder of a run. Raise DataError for one that cannot be read."""
    file = path / GUARANTEE if path.is_dir() else path
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        certified = CertifiedThreshold(**values.pop("certified"))
        check_levels(certified.error, certified.confidence)
        threshold = certified.threshold
        if threshold is not None and not 0.5 <= threshold <= 1:
            raise ValueError(f"its threshold is {threshold!r}")
        sketch = values.pop("reference")
        guarantee = Guarantee(certified, **values, reference=None if sketch is None else DriftReference(**sketch))
        if not isinstance(guarantee.judge, dict) or type(guarantee.votes) is not int or guarantee.votes < 1:
            raise ValueError("its judge or its votes are missing")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{file}: not a guarantee ({error}); expected the {GUARANTEE} of `rewardlab guarantee`") from error
    return guarantee
