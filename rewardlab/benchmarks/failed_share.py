"""Is a run one of its judge, or of an endpoint that failed? By the share of votes that have no answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rewardlab.samplers.failures import errors_in_words
from rewardlab.types import Judgment

VOTES = "votes"  # the pass that is no control


def failure_of(passes: Mapping[str, Sequence[Judgment]], most: float) -> str:
    """Return why a run failed: a sentence for each pass, by its name, of whose votes more than the share ``most`` (0..1) failed
    at the endpoint; "" where none did."""
    sentences = []
    for name, judgments in passes.items():
        completions = [vote.completion for judgment in judgments for vote in judgment.votes]
        failed = sum(completion.failed for completion in completions)
        if failed > most * len(completions):
            of_control = "" if name == VOTES else f" of the control {name}"
            share = f"{100 * failed / len(completions):.1f} %, more than the {100 * most:g} % of --max-failed"
            sentences.append(
                f"{failed:,} of {len(completions):,} votes{of_control} failed at the endpoint ({share}): "
                f"{errors_in_words(completions)}"
            )
    return "; ".join(sentences)
