"""What a distillation came to: difficulty, agreement, the teacher's own lean, tokens and money."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from scipy.stats import spearmanr

from rewardlab.config import DistillConfig
from rewardlab.distill.journal import Journal
from rewardlab.prompts import load_template
from rewardlab.types import Choice, PreferencePair
from rewardlab.verdicts import verdict_of

TAGS = ("1", "2", "3", "unsolved")


def difficulty(tag: str) -> int:
    """A tag as a rank: 1, 2, 3, and 4 for unsolved."""
    return TAGS.index(tag) + 1


def rank_correlation(pairs: Sequence[PreferencePair]) -> float | None:
    """Spearman's rho between the maker's level and the teacher's tag; None where no level is known or nothing varies."""
    known = [(pair.level, difficulty(pair.attempts)) for pair in pairs if pair.level is not None]
    if len({level for level, _ in known}) < 2 or len({tag for _, tag in known}) < 2:
        return None
    levels, tags = zip(*known, strict=True)
    return float(spearmanr(levels, tags).statistic)


def summarize(pairs: Sequence[PreferencePair], journal: Journal, config: DistillConfig, *, num_failed: int) -> dict[str, Any]:
    """The statistics of a finished run, from its tagged pairs and its journal."""
    convention = load_template(config.template).convention
    answers = list(journal.answers.values())
    verdicts = [verdict_of(answer.completion(), convention) for answer in answers]
    choices = [verdict.choice for verdict in verdicts if verdict.choice is not None]
    tokens_in = sum(answer.num_prompt_tokens for answer in answers)
    tokens_out = sum(answer.num_tokens for answer in answers)
    usd = (tokens_in * config.usd_per_million_prompt_tokens + tokens_out * config.usd_per_million_completion_tokens) / 1e6
    levels = sorted({pair.level for pair in pairs if pair.level is not None})
    return {
        "num_pairs": len(pairs),
        "num_kept": sum(bool(pair.judgment) for pair in pairs),
        "num_failed_pairs": num_failed,
        "attempts": {tag: sum(pair.attempts == tag for pair in pairs) for tag in TAGS},
        "attempts_by_level": {
            str(level): {tag: sum(p.attempts == tag and p.level == level for p in pairs) for tag in TAGS} for level in levels
        },
        "level_tag_spearman": rank_correlation(pairs),
        "num_requests": sum(journal.asked.values()),
        "num_asked_again": journal.asked_again,
        "num_failed_requests": journal.failures,
        "verdict_statuses": dict(Counter(verdict.status.value for verdict in verdicts)),
        "teacher_position_lean": choices.count(Choice.FIRST) / len(choices) - 0.5 if choices else None,
        "prompt_tokens": tokens_in,
        "completion_tokens": tokens_out,
        "cost_usd": round(usd, 6),
        "model": config.model,
        "template": config.template,
        "seed": config.seed,
    }
