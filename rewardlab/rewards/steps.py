"""Which step of a judge's reasoning went wrong, and what that pays: dense rewards at the ends of sentences.

The method is that of arXiv 2410.17621: complete the prefix that ends with step k many times; as long as enough completions
are right, the steps so far are good; the first one after which they are not is found by bisection; a model is fitted to the
labels and pays at the end of every step. What differs here, because a verdict has only two values and a test suite many:

- A guess is right half the time, so "any completion is right" says nothing (of 20 guesses one is right but once in a million).
  A prefix counts as good where guessing would hardly ever be right so often: :func:`least_correct_or_raise`.
- For the same reason a right verdict does not make its reasoning good. The whole reasoning is tested as every other prefix
  is, and the judgment's own verdict is not looked at.
- No step is labelled 0. A piece that says nothing (a list number, a line of dashes) is a part of the step that follows it,
  so it changes neither the number of steps nor any reward; whether a sentence is mere filler is not for a rule to say.

Shapes: ``N`` rollouts, ``T`` tokens.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rewardlab.config import RLConfig
from rewardlab.errors import CheckpointError
from rewardlab.metrics.running import Metric
from rewardlab.models.checkpoints import check_template
from rewardlab.models.loading import load_processor
from rewardlab.models.padding import PassLimits
from rewardlab.models.value_model import WEIGHTS, ValueModel, completion_values
from rewardlab.prompts import Template
from rewardlab.samplers.hf import thinking_opening, token_texts
from rewardlab.verdicts.places import reasoning_span

_BREAK = re.compile(r"""(?<![.!?…])[.!?…]+["'”’)\]*_]*(?=\s|$)|[。！？]+["”’」）]*|\n+""")
_LIST_MARK = re.compile(r"[\s>#*•-]*(?:\(?(?:\d{1,3}|[a-zA-Z])[.)](?:\s|$))?")


def step_ends(text: str) -> list[int]:
    """Return where each step of a reasoning ends: offsets behind the last character of sentences and lines, blanks not counted.
    A sentence ends with a full stop (question mark, ...) before a blank, so that "1.5" is whole; the rest is a step too. A
    piece without a letter or digit, or a list number, belongs to the next step; at the very end, to none. "e.g. " splits: one
    step too many costs at most one more query.
    """
    ends, begin = [], 0
    for stop, following in [
        *((m.end() if m[0].strip() else m.start(), m.end()) for m in _BREAK.finditer(text)),
        (len(text),) * 2,
    ]:
        piece = text[begin:stop].rstrip()
        mark = _LIST_MARK.match(piece)
        assert mark is not None  # it matches nothing at all, too
        if re.search(r"\w", piece[mark.end() :]):
            ends.append(begin + len(piece))
        begin = following  # also behind what says nothing: looked at again and again it would take quadratic time
    return ends


def judgment_steps(text: str, *, opened: bool = False) -> list[int]:
    """Return :func:`step_ends` of the reasoning of a whole judgment, as offsets in it; none without a closed reasoning. The
    verdict is no step. ``opened``: the prompt ends in ``<think>``, which the text lacks."""
    span = reasoning_span(text, opened=opened)
    return [span[0] + end for end in step_ends(text[span[0] : span[1]])] if span else []


def token_ends(ends: Sequence[int], token_texts: Sequence[str]) -> list[int]:
    """Return the index of the token that holds the last character of each step; ``token_texts`` joined are the text of
    ``ends``. A token may reach beyond the step, and two short steps may end in one. Raise ValueError for an end beyond the
    text.
    """
    bounds = list(accumulate(map(len, token_texts)))
    if ends and ends[-1] > (bounds[-1] if bounds else 0):
        raise ValueError(f"a step ends at character {ends[-1]}, but the tokens hold {bounds[-1] if bounds else 0}")
    return [bisect_left(bounds, end) for end in ends]


def search(n: int) -> Generator[int, bool, int | None]:
    """:func:`first_bad` that can wait: yields the prefix to ask about, is sent the answer, returns the step."""
    if n == 0 or (yield n):
        return None
    good, bad = 0, n
    while bad - good > 1:
        middle = (good + bad) // 2
        if (yield middle):
            good = middle
        else:
            bad = middle
    return bad


def first_bad(n: int, feasible: Callable[[int], bool]) -> int | None:
    """Return the step b of 1..n after which the verdict is lost: feasible(b - 1) and not feasible(b); None if feasible(n). At
    most ceil(log2 n) + 1 queries; ``feasible(0)`` is assumed. If feasibility is not monotone, b is one such boundary."""
    queries = search(n)
    try:
        k = next(queries)
        while True:
            k = queries.send(feasible(k))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def chance_of_at_least(right: int, num: int, guess: float = 0.5) -> float:
    """P(X >= right) for X ~ Binomial(num, guess), summed exactly (no normal approximation)."""
    return math.fsum(math.comb(num, r) * guess**r * (1 - guess) ** (num - r) for r in range(max(right, 0), num + 1))


def least_correct_or_raise(num: int, alpha: float, guess: float = 0.5) -> int:
    """Return how many of ``num`` completions must be right so that a guesser gets there with probability at most ``alpha``: 15
    of 20 at 0.025. Raise ValueError if even ``num`` would not do."""
    if chance_of_at_least(num, num, guess) > alpha:
        raise ValueError(
            f"{num} right of {num} would happen by guessing with probability "
            f"{guess**num:.3g}, more than {alpha}: take more samples"
        )
    return next(right for right in range(num + 1) if chance_of_at_least(right, num, guess) <= alpha)


def has_footing(right_given: int, right_swapped: int, num: int, alpha: float) -> bool:
    """Return whether a judge knows the answer before its first step: only then can a step lose it. Under both orders, ``num``
    completions each: a guesser, and a judge that always names the first, are right in half of the 2 num. Both orders must be
    right more often than not, and together more often than ``alpha`` allows.
    """
    return 2 * min(right_given, right_swapped) > num and right_given + right_swapped >= least_correct_or_raise(2 * num, alpha)


def step_labels(n: int, bad: int | None) -> list[int]:
    """+1 for the steps before the first bad one, -1 from it on."""
    return [1 if bad is None or step < bad else -1 for step in range(1, n + 1)]


def step_counts(ends: Sequence[Sequence[int]], mask_NT: Tensor) -> Tensor:
    """[N, T] how many steps end at each token: 0 nearly everywhere, 1 at step ends, more where steps share a token."""
    counts_NT = torch.zeros(mask_NT.shape, device=mask_NT.device)
    for row, tokens in enumerate(ends):
        for token in tokens:
            counts_NT[row, token] += 1
    return counts_NT


def process_rewards(
    scores_NT: Tensor, counts_NT: Tensor, right_N: Tensor, *, wrong_weight: float = 0.25, right_weight: float = 0.025
) -> Tensor:
    """Return [N, T] the reward of each step on its last token: its score, clamped to -1..1, by the number of steps. The sum
    over a rollout is a mean within +-weight, however many steps there are. The weight is ``wrong_weight`` for ``right_N`` 0 and
    ``right_weight`` for 1. A rollout without steps earns 0.
    """
    weight_N = torch.where(right_N.bool(), right_weight, wrong_weight)
    share_NT = counts_NT / counts_NT.sum(1, keepdim=True).clamp(min=1)
    return scores_NT.clamp(-1, 1) * share_NT * weight_N[:, None]


def step_tokens(tokenizer: Any, ids: Sequence[int], *, opened: bool = False) -> list[int]:
    """Where in a completion's tokens the steps of its reasoning end; none where it has no closed reasoning. ``opened`` as in
    :func:`judgment_steps`."""
    texts = token_texts(tokenizer, ids)
    return token_ends(judgment_steps("".join(texts), opened=opened), texts)


class ProcessReward:
    """A process reward model that does not learn, and the weights of what it pays by outcome."""

    opened = False  # whether the chat template opens the thinking, which completions then lack

    def __init__(self, model: ValueModel, tokenizer: Any, *, wrong_weight: float, right_weight: float) -> None:
        self.model, self.tokenizer = model.eval().requires_grad_(False), tokenizer
        self.wrong_weight, self.right_weight = wrong_weight, right_weight

    @staticmethod
    def load(config: RLConfig, template: Template, tokenizer: Any, *, device: torch.device) -> ProcessReward:
        """Return the model that ``config.process_reward`` names. Raise CheckpointError unless `rewardlab prm` made it for this
        template and tokenizer."""
        folder = Path(config.process_reward or "")
        check_template(folder, template)
        if not (folder / WEIGHTS).exists():
            raise CheckpointError(f"{folder}: not a process reward model (no {WEIGHTS} in it); train one with `rewardlab prm`")
        processor = load_processor(str(folder))
        if processor.tokenizer.get_vocab() != tokenizer.get_vocab():
            raise CheckpointError(
                f"{folder}: its tokenizer differs from the policy's; train it from a model of the policy's family"
            )
        reward = ProcessReward(
            ValueModel.for_scoring(folder, device, attention=config.attn_implementation),
            tokenizer,
            wrong_weight=config.process_wrong_weight,
            right_weight=config.process_correct_weight,
        )
        reward.opened = bool(thinking_opening(processor))
        return reward

    def __call__(
        self,
        batch: dict[str, Any],
        right: Sequence[float],
        read: Sequence[bool],
        *,
        limits: PassLimits,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> tuple[Tensor, dict[str, float | Metric]]:
        """Return [N, T] rewards at step ends, and metrics. ``right`` is 1 for right rollouts; one whose verdict could not be
        ``read`` earns nothing for its steps."""
        mask_NT = batch["completion_mask"]
        lengths = mask_NT.sum(1).tolist()
        ends = [
            step_tokens(self.tokenizer, ids[:length].tolist(), opened=self.opened)
            for ids, length in zip(batch["completion_ids"], lengths, strict=True)
        ]
        counts_NT = step_counts([places if ok else [] for places, ok in zip(ends, read, strict=True)], mask_NT)
        scores_NT = completion_values(self.model, batch, limits=limits, autocast=autocast)[:, 1:]
        right_N = torch.tensor(right, device=mask_NT.device)
        weights = {"wrong_weight": self.wrong_weight, "right_weight": self.right_weight}
        rewards_NT = process_rewards(scores_NT, counts_NT, right_N, **weights)
        at_ends = counts_NT > 0
        scores = scores_NT[at_ends]
        metrics: dict[str, float | Metric] = {
            "process/steps": counts_NT.sum(1).mean().item(),
            "process/without_steps_frac": (counts_NT.sum(1) == 0).float().mean().item(),
            "process/reward": rewards_NT.sum(1).mean().item(),
        }
        if len(scores):
            metrics |= {
                "process/score": Metric(scores.mean().item(), len(scores)),
                "process/clamped_frac": Metric((scores.abs() > 1).float().mean().item(), len(scores)),
            }
        return rewards_NT, metrics
