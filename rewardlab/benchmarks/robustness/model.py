"""What a run under attack came to. Shares are in 0..1 of judgments, intervals 95 % over prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rewardlab.metrics.intervals import DifferenceEstimate
from rewardlab.metrics.revision import ShareEstimate


@dataclass(frozen=True)
class FamilyScores:
    """What a family of attacks does.

    ``named``: the share of judgments that name the attacker; of a picture's edit, the wrong answer. Of judgments that are right
    where there is no attack, ``turned`` is the share that name the attacker with it, ``lost`` that of all that are right no
    longer, those without a verdict included; None where none is right, and of answers that are changed as a whole.
    ``claim``: whether the attacker is known to be the worse answer; without it ``named`` is neither good nor bad.
    """

    kind: str
    words: str
    in_training: bool
    claim: bool
    num_pairs: int
    named: ShareEstimate
    turned: ShareEstimate | None
    lost: ShareEstimate | None
    invalid_rate: float


@dataclass(frozen=True)
class Figures:
    """The families of a kind together; None where there are none of it.

    ``degenerate_over_good``, ``degenerate_over_wrong``: degenerate answers that are named over the good answer, and over an
    honest wrong one; ``good_unnamed``, ``wrong_unnamed``: judgments that do not name the good or wrong answer there, for they
    name the degenerate one, or none. ``turned_by_...``: right judgments that name the wrong answer with a text in it;
    ``lost_by_...``: that are right no longer, with a text in either. ``insertions_over_harmless``: how much more often attacks
    in the wrong answer cost a right judgment than texts that say nothing, of pairs with both.
    ``right_unseen``: judgments that are right though what is asked about cannot be seen; guessing gives a half.
    """

    degenerate_over_good: ShareEstimate | None
    good_unnamed: ShareEstimate | None
    degenerate_over_wrong: ShareEstimate | None
    wrong_unnamed: ShareEstimate | None
    turned_by_insertions: ShareEstimate | None
    lost_by_insertions: ShareEstimate | None
    turned_by_harmless: ShareEstimate | None
    lost_by_harmless: ShareEstimate | None
    insertions_over_harmless: DifferenceEstimate | None
    lost_by_edits: ShareEstimate | None
    lost_by_captions: ShareEstimate | None
    right_unseen: ShareEstimate | None


@dataclass(frozen=True)
class Robustness:
    """A run under attack: ``clean`` is the share of right judgments without any, ``held_out`` the figures of families that
    `rewardlab data harden` does not train on, ``in_training`` those of the others. ``attacks`` is a hash of all attacked pairs:
    runs with the same can be compared."""

    num_pairs: int
    attacks: str
    clean: ShareEstimate
    held_out: Figures
    in_training: Figures
    families: Mapping[str, FamilyScores]
