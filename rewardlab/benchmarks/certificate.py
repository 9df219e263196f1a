"""A certificate of a judge: what was measured on which pairs and raters, bound to the judge's config and weights.

It has a hash of its own content. ``certificate check`` recomputes it (altered), and compares the weights of a local
checkpoint with those of the certificate (stale). A hash proves no author: sign the file with ``ssh-keygen -Y sign``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import VOTES
from rewardlab.benchmarks.comparison import read_run
from rewardlab.benchmarks.report_model import Report, json_form
from rewardlab.benchmarks.settings import NO_ENGINES
from rewardlab.config.judge import JudgeConfig
from rewardlab.data.files import sha256_of
from rewardlab.data.votes import identity_of_votes
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.guarantee import GUARANTEE, judge_facts, read_guarantee
from rewardlab.judging.spec import WITHOUT_SAMPLER, JudgeSpec, judge_config, judge_weights_id, weights_name
from rewardlab.models.checkpoints import commit
from rewardlab.reporting.tables import percent, with_interval

CERTIFICATE = "certificate.json"
FORM = 1  # of the file


def certificate_id(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 (32 hex digits) of a certificate's content but its ``id``, as JSON with sorted keys."""
    text = json.dumps({name: value for name, value in content.items() if name != "id"}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def make_certificate(folder: Path, *, attacked: Path | None = None, command: str = "") -> dict[str, Any]:
    """Return the certificate of the judge of the finished run in ``folder``: its config and weights, the pairs, the agreement
    with people, the guarantee if the folder has one, and the robustness of the run ``attacked`` (`bench run NAME:attacked`).

    Raise DataError for a run that failed or has no agreement with people, ConfigError for a guarantee or an attacked run of
    another judge, or weights that have changed since the run.
    """
    report, facts = _judge_of(folder)
    if report.agreement is None:
        raise DataError(f"{folder}: has no agreement with people; run `rewardlab agree {folder} --labels FILE` first")
    content: dict[str, Any] = {
        "form": FORM,
        "judge": {"config": dict(report.judge_config), "config_hash": report.judge_config_hash, **facts},
        "pairs": {"benchmark": report.benchmark, "sha256": report.data_sha256, "number": report.scores.num_pairs},
        "votes_sha256": sha256_of(folder / VOTES),
        "accuracy": {"micro": report.scores.accuracy.micro, "interval": list(report.scores.interval)},
        "agreement": json_form(report.agreement),
        "guarantee": None,
        "robustness": None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "commit": commit(),
    }
    if (folder / GUARANTEE).exists():
        guarantee = read_guarantee(folder)
        if dict(guarantee.judge) != dict(facts) or guarantee.votes != report.votes:
            raise ConfigError(f"{folder}/{GUARANTEE}: is of another judge; run `rewardlab guarantee {folder}` again")
        content["guarantee"] = json_form(guarantee)
    if attacked is not None:
        other, of_other = _judge_of(attacked)
        if other.robustness is None:
            raise DataError(f"{attacked}: is no run under attack; expected the folder of a `bench run NAME:attacked`")
        if (of_other["judge"], of_other["weights"]) != (facts["judge"], facts["weights"]):
            raise ConfigError(f"{attacked}: is of another judge, {of_other['judge']!r} with weights {of_other['weights']!r}")
        names = ("num_pairs", "attacks", "clean", "held_out", "in_training")
        content["robustness"] = {name: json_form(getattr(other.robustness, name)) for name in names}
    return {"id": certificate_id(content), **content}


def _judge_of(folder: Path) -> tuple[Report, Mapping[str, Any]]:
    """Return the report of a run, and what its judge is. Raise ConfigError if its weights have changed since the run."""
    report, identity = read_run(folder).report, identity_of_votes(folder / VOTES)
    if report.failure:
        raise DataError(f"{folder}: the run failed ({report.failure}); the same `bench run` command retries its votes")
    config = judge_config(JudgeConfig.model_validate(dict(report.judge_config)))
    is_local = JudgeSpec.parse(config.judge, *NO_ENGINES, *WITHOUT_SAMPLER).checkpoint is not None
    if is_local and judge_weights_id(config.judge) != identity.get("weights"):
        raise ConfigError(f"{config.judge}: its weights have changed since the run {folder}, or are not here; run it again")
    return report, judge_facts(config, identity)


def read_certificate(path: Path) -> dict[str, Any]:
    """Return the certificate of a file, or of a folder with one. Raise DataError for another file, and for one whose content is
    not that of its id: it was altered."""
    file = path / CERTIFICATE if path.is_dir() else path
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.get("form") != FORM:
            raise ValueError("no certificate of this form")
        expected = certificate_id(content)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: not a certificate ({error}); expected that of `rewardlab certificate write`") from error
    if content.get("id") != expected:
        raise DataError(f"{file}: altered: its content has the id {expected}, not {content.get('id')!r}")
    return content


def staleness(content: Mapping[str, Any]) -> str:
    """Return why a certificate no longer holds for the judge that it names, "" if it does as far as can be seen here. Weights
    behind an endpoint cannot be seen."""
    judge = content["judge"]
    if not judge["weights"] or weights_name(judge["config"]["judge"]) == judge["weights"]:
        return ""
    now = weights_name(judge["config"]["judge"])
    where = f"has other weights by now ({now!r}" if now else "is not here to compare (expected the checkpoint"
    return f"stale: {judge['config']['judge']} {where}; the certificate is of {judge['weights']!r})"


def certificate_lines(content: Mapping[str, Any]) -> list[str]:
    """Return what a certificate says, in sentences."""
    judge, agreement, guarantee = content["judge"], content["agreement"], content["guarantee"]
    of = f"weights {judge['weights']}" if judge["weights"] else "weights behind an endpoint, which are not known"
    person, own_figure = (
        with_interval(agreement[name]["accuracy"], tuple(agreement[name]["interval"])) for name in ("person", "judge")
    )
    lines = [
        f"certificate {content['id']}, {content['date']}",
        f"judge {judge['config']['judge']}, {of}, config {judge['config_hash']}",
        f"pairs: {content['pairs']['number']:,} of {content['pairs']['benchmark']}, {agreement['num_ratings']:,} ratings",
        f"agreement with the label of all ratings: one person {person} %, the judge {own_figure} %",
    ]
    if agreement["winning_rate"] is not None:
        rate, advantage = agreement["winning_rate"], agreement["advantage"]
        lines.append(f"alternative annotator test: replaces {percent(rate, 0)} % of the raters, advantage {advantage:.2f}")
    if guarantee and guarantee["certified"]["threshold"] is not None:
        certified, covered = guarantee["certified"], guarantee["evidence"]["coverage"][0]
        lines.append(
            f"verdicts above a confidence of {certified['threshold']:.4f}: at most {100 * certified['error']:g} % wrong with a "
            f"probability of {100 * certified['confidence']:g} %, {percent(covered)} % of the pairs"
        )
    if attacks := content["robustness"]:
        lines.append(f"under attack: {attacks['num_pairs']:,} pairs")
    return lines
