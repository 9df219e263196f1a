"""Were two runs asked alike? What differs between them beside the judge."""

from __future__ import annotations

from collections.abc import Sequence

from rewardlab.benchmarks.comparison import Run
from rewardlab.errors import ConfigError

PROTOCOL = ("orders", "votes", "stop_error", "temperature", "top_p", "max_tokens")
SAMPLING = ("temperature", "top_p", "max_tokens")  # that a replay of texts, or a served judge, does not name


def protocol_differences(old: Run, new: Run, *, unknown_differs: bool = True) -> list[str]:
    """Return a phrase for each part of the protocol that differs, as "votes (1 and 3)"; another template is another judge.

    ``unknown_differs`` False: sampling that one of the two does not name is no difference.
    """
    values = {name: (getattr(old.report, name), getattr(new.report, name)) for name in PROTOCOL}
    return [
        f"{name.replace('_', ' ')} ({before} and {after})"
        for name, (before, after) in values.items()
        if before != after and (unknown_differs or name not in SAMPLING or None not in (before, after))
    ]


def check_protocols(old: Run, new: Run) -> None:
    """Raise ConfigError where the two were not asked alike; another template is another judge, and no difference here."""
    if differ := protocol_differences(old, new):
        raise ConfigError(f"{old.name} and {new.name} were not asked alike: they differ in {', '.join(differ)}; ask both alike")


def different_protocols(runs: Sequence[Run]) -> list[str]:
    """Return a sentence for each run that was asked otherwise than the first; baselines, which nothing is asked of, are not."""
    sentences = []
    for run in runs[1:]:
        judges = (runs[0].report.judge, run.report.judge)
        differ = protocol_differences(runs[0], run, unknown_differs=False)
        if differ and not any(judge.startswith("baseline:") for judge in judges):
            sentences.append(f"{run.name} was asked otherwise than {runs[0].name}: they differ in {', '.join(differ)}")
    return sentences
