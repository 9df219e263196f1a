"""A certificate of a judge: what was measured on which pairs and raters, bound to the judge's config and weights.

It has a hash of its own content. ``certificate check`` recomputes it (altered), and compares the weights of a local
checkpoint with those of the certificate (stale). A hash proves no author: sign the file with ``ssh-keygen -Y sign``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rewardlab.errors import DataError
from rewardlab.judging.guarantee import Facts, threshold_text
from rewardlab.judging.spec import judge_weights_id, named_checkpoint
from rewardlab.reporting.tables import percent, with_interval
from rewardlab.verdicts.formats import without_doubles

CERTIFICATE = "certificate.json"
FORM = 1  # of the file


def certificate_id(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 (32 hex digits) of a certificate's content but its ``id``, as JSON with sorted keys."""
    text = json.dumps({name: value for name, value in content.items() if name != "id"}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def read_certificate(path: Path) -> dict[str, Any]:
    """Return the certificate of a file, or of a folder with one. Raise DataError for another file, and for one whose content is
    not that of its id: it was altered."""
    file = path / CERTIFICATE if path.is_dir() else path
    try:
        content = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=without_doubles)
        if not isinstance(content, dict) or content.get("form") != FORM:
            raise ValueError("no certificate of this form")
        expected = certificate_id(content)
        if content.get("id") == expected:
            certificate_lines(content)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DataError(f"{file}: not a certificate ({error}); expected that of `rewardlab certificate write`") from error
    if content.get("id") != expected:
        raise DataError(f"{file}: altered: its content has the id {expected}, not {content.get('id')!r}")
    return content


def staleness(content: Mapping[str, Any]) -> str:
    """Return why a certificate no longer holds for the judge that it names, "" if it does as far as can be seen here. Weights
    behind an endpoint, and those of a panel, cannot be seen."""
    judge = content["judge"]
    now = judge_weights_id(judge["config"]["judge"])
    if named_checkpoint(judge["config"]["judge"]) is None or now == judge["weights"]:
        return ""
    where = f"has other weights by now ({now!r}" if now else "is not here to compare (expected the checkpoint"
    return f"stale: {judge['config']['judge']} {where}; the certificate is of {judge['weights']!r})"


def certificate_lines(content: Mapping[str, Any]) -> list[str]:
    """Return what a certificate says, in sentences."""
    judge, agreement, guarantee, pairs = (content[name] for name in ("judge", "agreement", "guarantee", "pairs"))
    of = f"weights {judge['weights']}" if judge["weights"] else "weights behind an endpoint, which are not known"
    person, own_figure = (
        f"{with_interval(value['accuracy'], tuple(value['interval']))} %" if (value := agreement[name]) else "not known"
        for name in ("person", "judge")
    )
    accuracy = with_interval(content["accuracy"]["micro"], tuple(content["accuracy"]["interval"]))
    lines = [
        f"certificate {content['id']}, {content['date']}",
        f"judge {judge['config']['judge']}, {of}, config {judge['config_hash']}",
        f"benchmark {pairs['benchmark']}: accuracy {accuracy} % on {pairs['number']:,} pairs",
        f"agreement with the label of all ratings ({agreement['num_ratings']:,} ratings, {agreement['num_pairs']:,} pairs): "
        f"one person {person}, the judge {own_figure}",
    ]
    if agreement["winning_rate"] is not None:
        rate, advantage = agreement["winning_rate"], agreement["advantage"]
        lines.append(
            f"alternative annotator test (epsilon {agreement['epsilon']:g}; 50 % pass): replaces {percent(rate, 0)} % of the "
            f"raters, advantage {advantage:.2f}"
        )
    if guarantee is None or guarantee["certified"]["threshold"] is None:
        lines.append("no error of single verdicts is guaranteed")
    else:
        certified, covered = guarantee["certified"], guarantee["evidence"]["coverage"][0]
        lines.append(
            f"verdicts above a confidence of {threshold_text(certified['threshold'])}: at most {100 * certified['error']:g} % "
            f"wrong with a probability of {100 * certified['confidence']:g} %, {percent(covered)} % of the pairs"
        )
    if attacks := content["robustness"]:
        lost = attacks["held_out"]["lost_by_insertions"]
        loss = lost and f", {with_interval(lost['share'], tuple(lost['interval']))} % of right judgments lost by inserted words"
        lines.append(f"under attack: {attacks['num_pairs']:,} pairs{loss or ''}")
    # It may be someone else's: no text of it begins a line, or commands a terminal.
    return ["".join(mark if mark.isprintable() else " " for mark in line) for line in lines]


def misfit(content: Mapping[str, Any], facts: Facts) -> str:
    """Return why a certificate is of another judge than that of ``facts``, "" if it is of this one."""
    other = next((name for name in facts if content["judge"].get(name) != facts[name]), None)
    if other is None:
        return ""
    return f"its {other.replace('_', ' ')} is {content['judge'].get(other)!r}, this judge's {facts[other]!r}"
