"""What judging held-out pairs while training takes: prompts side by side, tokens, rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rewardlab.config import RLConfig, RMConfig, SFTConfig, TrainConfig
from rewardlab.health.lengths import Lengths
from rewardlab.prompts import load_template
from rewardlab.training.run.evaluation import answer_tokens, sequences_at_once
from rewardlab.training.run.parallel import Launch


@dataclass(frozen=True)
class HeldOutData:
    """How many pairs are evaluated, and the lengths of their prompts."""

    pairs: int
    lengths: Lengths


@dataclass(frozen=True)
class EvaluationLoad:
    """One evaluation on one process: ``rounds`` of ``rows`` prompts side by side, two of a pair, with answers of at most
    ``answer`` tokens (0: verdicts or numbers are read, none is written). ``pairs`` are those of all processes.

    ``shares``: what both orders of a pair begin with, pictures ahead of all, is read once for both. ``is_scalar``: by a head,
    without keys and values kept and without logits. ``blank``: how many of the pairs are judged with grey pictures, too.
    """

    lengths: Lengths
    pairs: int
    rows: int
    rounds: int
    answer: int
    shares: bool
    is_scalar: bool
    blank: int

    @property
    def after_pictures(self) -> int:
        """Return the tokens of a prompt behind its pictures."""
        return self.lengths.prompt - round(self.lengths.pictures * self.lengths.picture.tokens)

    @property
    def positions(self) -> tuple[int, str]:
        """Return how many tokens are read at once, at most, and of what, in words."""
        whole, half = f"prompts of {self.lengths.prompt:,} tokens", self.rows // 2
        if not self.shares:
            return self.rows * self.lengths.prompt, f"{self.rows} {whole}"
        first, then = half * self.lengths.prompt, self.rows * self.after_pictures
        if first >= then:
            return first, f"{half} {whole}, read once for both orders"
        return then, f"{self.rows} prompts' {self.after_pictures:,} tokens after their pictures, which both orders share"

    @property
    def tokens_read(self) -> float:
        """Return the tokens of prompts that one process reads in a whole evaluation."""
        shared = self.lengths.pictures * self.lengths.picture.tokens / 2 if self.shares else 0.0
        return self.rounds * self.rows * (self.lengths.mean_prompt - shared)


def evaluation_load(
    config: TrainConfig, launch: Launch, lengths: Lengths, held_out: HeldOutData | None, *, has_grids: bool
) -> EvaluationLoad | None:
    """Return what an evaluation takes, None where nothing is evaluated. Without ``held_out`` there are ``num_pairs`` pairs of
    the lengths of those trained on. ``has_grids``: of a family whose prompts share what they begin with."""
    if not isinstance(config, SFTConfig | RLConfig) or not config.evaluation.is_on:
        return None
    evaluation, scalar = config.evaluation, isinstance(config, RMConfig)
    lengths, pairs = (held_out.lengths, held_out.pairs) if held_out else (lengths, evaluation.num_pairs)
    at_once = max(1, sequences_at_once(config) // 2)
    blank = math.ceil(pairs * lengths.with_pictures) if evaluation.blank_images else 0
    tasks = math.ceil(pairs / at_once) + math.ceil(blank / at_once)
    writes = not scalar and load_template(config.template).verdict_format != "bare"
    return EvaluationLoad(
        lengths=lengths,
        pairs=pairs,
        rows=2 * min(at_once, pairs),
        rounds=math.ceil(tasks / launch.processes),
        answer=answer_tokens(config) if writes else 0,
        shares=has_grids and not scalar,
        is_scalar=scalar,
        blank=blank,
    )
