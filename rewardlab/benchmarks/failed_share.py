"""Is a run one of its judge, or of an endpoint that failed? By the share of votes that have no answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rewardlab.samplers.failures import failure_sentence
from rewardlab.types import Judgment

VOTES = "votes"  # the pass that is no control


def failure_of(
    passes: Mapping[str, Sequence[Judgment]], most: float, others: Mapping[str, Sequence[Judgment]] | None = None
) -> str:
    """Return why a run failed: a sentence for each pass, by its name, of whose votes more than the share ``most`` (0..1) failed
    at the endpoint; "" where none did. ``others`` are passes that are no controls, and cannot be left out."""
    sentences = []
    for name, judgments in (others or {}).items():
        completions = [vote.completion for judgment in judgments for vote in judgment.votes]
        if sentence := failure_sentence(completions, most, f"votes of {name}"):
            sentences.append(sentence)
    for name, judgments in passes.items():
        completions = [vote.completion for judgment in judgments for vote in judgment.votes]
        what = "votes" if name == VOTES else f"votes of the control {name}"
        if sentence := failure_sentence(completions, most, what):
            sentences.append(sentence if name == VOTES else f"{sentence} (--controls leaves it out)")
    return "; ".join(sentences)
