"""A reward term of one's own: short sentences are worth up to 0.2 (CONTRIBUTING quotes this file, tests/rewards runs it)."""

from __future__ import annotations

from rewardlab.rewards.judgment import JudgedCompletion, RewardParts, RewardTerm

LONGEST = 12  # words


def short_sentences(judged: JudgedCompletion, part: RewardParts) -> float:
    """Return the share of sentences of at most 12 words, 0..1."""
    sentences = [sentence for sentence in judged.completion.text.split(".") if sentence.strip()]
    return sum(len(sentence.split()) <= LONGEST for sentence in sentences) / max(1, len(sentences))


REWARD_TERM = RewardTerm("short_sentences", weight=0.2, score=short_sentences)
