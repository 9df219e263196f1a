"""One whole RL step in plain torch, top to bottom, to be read first.

``training/policy_gradient/trainer.py`` does the same on TRL's
trainer; a test holds the two equal, for every recipe of ``configs/rl``,
in loss, gradient and weights over several minibatches and epochs. Nothing here is shared with the code it checks, on purpose.

Shapes: ``N`` rollouts in the batch, ``M`` in a minibatch, ``T`` completion tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:  # a method is declared once; nothing of it runs here
    from rewardlab.config import Method


@dataclass(frozen=True)
class Rollouts:
    """What one sampling left: ``mask_NT`` is 1 on generated tokens, ``rewards_N`` one reward per rollout.

    ``old_logprobs_NT`` are of the policy that sampled, ``ref_logprobs_NT`` of the frozen reference (None: no KL term).
    ``groups`` names each rollout's prompt, where the advantage is relative to its group; ``correct_N`` is 1 for a right
    verdict. A critic adds ``values_NT``, its values before each token when sampling. Rollouts that grow by windows:
    ``finished_N`` is 0 for those to be continued, ``window_NT`` 1 on the tokens the policy is trained on now. Verified
    judgments: ``turns_NT`` names the policy's turn of each token (0: the user's), ``turn_rewards_NK`` what each turn earned
    instead of ``rewards_N``. ``step_rewards_NT`` is what single tokens earn beside the outcome, at the ends of steps.

    A reward of nan is none: nothing could score that rollout, and nothing is learnt from it. ``sampled_logprobs_NT`` are those
    of an engine, where another program sampled; nan where it gave none. ``hot_position`` is that of a token that was drawn at
    another temperature, from which nothing is learnt either. ``kl_coefs_N`` is each rollout's weight of the KL divergence
    (None: all have the method's). ``entropies_NT`` are the policy's before each token, ``uniforms_NT`` in [0, 1) for random
    choices. ``left_out_NT`` is 1 on tokens that are left out of the loss and of all counts: of truncated rollouts, and those
    that an importance correction masks.
    """

    mask_NT: Tensor
    rewards_N: Tensor
    old_logprobs_NT: Tensor
    ref_logprobs_NT: Tensor | None = None
    groups: Sequence[int] = ()
    correct_N: Tensor | None = None
    values_NT: Tensor | None = None
    finished_N: Tensor | None = None
    window_NT: Tensor | None = None
    turns_NT: Tensor | None = None
    turn_rewards_NK: Tensor | None = None
    step_rewards_NT: Tensor | None = None
    sampled_logprobs_NT: Tensor | None = None
    hot_position: int | None = None
    kl_coefs_N: Tensor | None = None
    entropies_NT: Tensor | None = None
    uniforms_NT: Tensor | None = None
    left_out_NT: Tensor | None = None

    @property
    def loss_mask(self) -> Tensor:
        """1 on the tokens the policy is trained on."""
        mask_NT = (self.mask_NT if self.window_NT is None else self.window_NT).clone()
        if self.turns_NT is not None:
            mask_NT[self.turns_NT == 0] = 0
        mask_NT[self.rewards_N.isnan()] = 0
        if self.left_out_NT is not None:
            mask_NT[self.left_out_NT.bool()] = 0
        if self.hot_position is not None:
            mask_NT[:, self.hot_position : self.hot_position + 1] = 0
        return mask_NT

    @property
    def roles(self) -> list[Tensor]:
        """The tokens whose advantages are whitened together: of judging apart from those of verifying, turn 2."""
        if self.turns_NT is None:
            return [self.loss_mask]
        mask_NT = self.loss_mask
        return [mask_NT * ((self.turns_NT == 1) | (self.turns_NT == 3)), mask_NT * (self.turns_NT == 2)]

    def stretches(self, n: int) -> list[list[int]]:
        """The token positions of rollout ``n`` over which a reward is carried back, turn by turn."""
        if self.turns_NT is None:
            return [list(range(int(self.mask_NT[n].sum())))]
        return [(self.turns_NT[n] == turn).nonzero()[:, 0].tolist() for turn in (1, 2, 3)]


def advantages(rollouts: Rollouts, method: Method) -> Tensor:
    """[N, T] advantages of the method, whitened over all tokens where it whitens, outliers treated."""
    if method.advantage in ("grpo", "dr_grpo", "rloo"):
        relative_N = torch.tensor([_relative(rollouts, n, method) for n in range(len(rollouts.rewards_N))])
        return relative_N[:, None] * rollouts.loss_mask
    if method.advantage not in ("reinforce_pp", "reinforce_pp_baseline", "gae"):
        raise NotImplementedError(f"advantage {method.advantage} has no step in rl/reference.py; add it")
    return_NT = _returns_to_go(rollouts, method) if method.advantage != "gae" else _gae(rollouts, method, None)
    total_NT = torch.zeros_like(return_NT)
    for role_NT in rollouts.roles:
        total_NT += _whiten(return_NT, role_NT, method)
    return total_NT.float()


def _whiten(return_NT: Tensor, mask_NT: Tensor, method: Method) -> Tensor:
    """Mean 0 and deviation 1 over the tokens of the mask, outliers treated, 0 elsewhere."""
    tokens = return_NT[mask_NT.bool()]
    mean, deviation = tokens.mean(), tokens.std(correction=0) if len(tokens) else torch.tensor(0.0)
    if method.whiten_by == "sequence":
        rows = [row[kept.bool()] for row, kept in zip(return_NT, mask_NT, strict=True) if kept.any()]
        mean = torch.stack([row.mean() for row in rows]).mean()
        deviation = torch.stack([((row - mean) ** 2).mean() for row in rows]).mean().sqrt()
    if not deviation > 1e-6 * (1 + mean.abs()):
        return torch.zeros_like(return_NT)
    whitened_NT = (return_NT - mean) / deviation
    if method.outliers == "delete":
        whitened_NT = torch.where(whitened_NT.abs() <= method.outlier_sigma, whitened_NT, torch.zeros_like(whitened_NT))
    elif method.outliers == "clip":
        whitened_NT = whitened_NT.clamp(-method.outlier_sigma, method.outlier_sigma)
    return whitened_NT * mask_NT


def _gae(rollouts: Rollouts, method: Method, lam: float | None) -> Tensor:
    """A_t = sum over k of lam^k delta_{t+k}, written as the sum it is; ``lam`` None: the policy's own."""
    assert rollouts.values_NT is not None
    reward_NT = _rewards_by_token(rollouts, method)
    out_NT = torch.zeros_like(reward_NT)
    for n in range(len(reward_NT)):
        finished = rollouts.finished_N is None or bool(rollouts.finished_N[n])
        for places in filter(None, rollouts.stretches(n)):
            discount = lam if lam is not None else method.gae_lambda
            if lam is None and method.length_alpha is not None:  # by the length of the turn
                expected = len(places) + (0.0 if finished or method.window is None else method.window / 2)
                discount = min(1.0, max(0.95, 1 - 1 / (method.length_alpha * expected)))
            values = rollouts.values_NT[n, places].double().tolist()
            after = [*values[1:], 0.0 if finished else values[-1]]
            delta = [reward_NT[n, t].item() + after[k] - values[k] for k, t in enumerate(places)]
            for k, t in enumerate(places):
                out_NT[n, t] = sum(discount ** (j - k) * delta[j] for j in range(k, len(places)))
    return out_NT


def value_loss(values_MT: Tensor, rollouts: Rollouts, rows_M: Tensor, method: Method, num_minibatches: int) -> Tensor:
    """Half the squared distance to A + V, or of the clipped value where that is further; whole rollouts only."""
    assert rollouts.values_NT is not None
    mask_NT = rollouts.mask_NT if rollouts.finished_N is None else rollouts.mask_NT * rollouts.finished_N[:, None]
    if rollouts.turns_NT is not None:
        mask_NT = (rollouts.turns_NT > 0).long()
    mask_NT = mask_NT * rollouts.loss_mask.any(1)[:, None]
    target_MT = (_gae(rollouts, method, method.gae_lambda_critic) + rollouts.values_NT)[rows_M].float()
    old_MT = rollouts.values_NT[rows_M]
    high = method.value_clip if method.value_clip_high is None else method.value_clip_high
    near_MT = old_MT + torch.clamp(values_MT - old_MT, -method.value_clip, high)
    worse_MT = torch.maximum((values_MT - target_MT) ** 2, (near_MT - target_MT) ** 2)
    return _average(worse_MT / 2, mask_NT[rows_M], mask_NT, method, num_minibatches)


def _relative(rollouts: Rollouts, n: int, method: Method) -> float:
    """The reward of rollout ``n`` against its group's; a group of one has nothing to be relative to.

    A rollout that nothing could score counts as the mean of the others of its group (0 where none has a reward).
    """
    rewards = _responses_rewards(rollouts, method)
    group = [r for r, g in zip(rewards, rollouts.groups, strict=True) if g == rollouts.groups[n]]
    known = [r for r in group if not math.isnan(r)]
    mean = sum(known) / max(1, len(known))
    reward, size = mean if math.isnan(rewards[n]) else rewards[n], len(group)
    if size == 1 or method.advantage in ("dr_grpo", "reinforce_pp_baseline"):
        return reward - mean
    if method.advantage == "rloo":
        return reward - (mean * size - reward) / (size - 1)
    deviation = math.sqrt(sum((r - mean) ** 2 for r in known) / (size - 1))
    return (reward - mean) / (deviation + 1e-4)


def _kl_coef(rollouts: Rollouts, n: int, method: Method) -> float:
    return method.kl_coef if rollouts.kl_coefs_N is None else float(rollouts.kl_coefs_N[n])


def _responses_rewards(rollouts: Rollouts, method: Method) -> list[float]:
    """One reward a response; less kl_coef times the log-ratio of the whole response, where a response is one action."""
    rewards: list[float] = rollouts.rewards_N.tolist()
    if method.advantage == "rloo" and method.kl_coef and method.kl == "k1_reward":
        assert rollouts.ref_logprobs_NT is not None
        for n, row in enumerate((rollouts.old_logprobs_NT - rollouts.ref_logprobs_NT) * rollouts.loss_mask):
            rewards[n] -= _kl_coef(rollouts, n, method) * row.sum().item()
    return rewards


def _returns_to_go(rollouts: Rollouts, method: Method) -> Tensor:
    """What the tokens from each on earn."""
    reward_NT = _rewards_by_token(rollouts, method)
    return_NT = torch.zeros_like(reward_NT)
    to_go_N = torch.zeros(len(reward_NT), dtype=reward_NT.dtype)
    for t in reversed(range(reward_NT.shape[1])):
        to_go_N = to_go_N + reward_NT[:, t]
        return_NT[:, t] = to_go_N
    return return_NT


def _rewards_by_token(rollouts: Rollouts, method: Method) -> Tensor:
    """1[last token] R + what steps earn - kl_coef (logp - ref); R less the mean of its group for reinforce_pp_baseline."""
    mask_NT = (rollouts.mask_NT if method.advantage == "gae" else rollouts.loss_mask).double()
    reward_NT = torch.zeros_like(mask_NT)
    if rollouts.turn_rewards_NK is not None:
        mask_NT = (rollouts.turns_NT > 0).double() if rollouts.turns_NT is not None else mask_NT
        for row in range(len(mask_NT)):
            for turn, places in enumerate(rollouts.stretches(row)):
                if places:
                    reward_NT[row, places[-1]] = rollouts.turn_rewards_NK[row, turn]
    else:
        for row, mask_T in enumerate(mask_NT):
            reward = rollouts.rewards_N[row].item()
            if method.advantage == "reinforce_pp_baseline":
                reward = _relative(rollouts, row, method)
            if mask_T.any() and not math.isnan(reward):
                reward_NT[row, int(mask_T.nonzero()[-1])] = reward
    if rollouts.step_rewards_NT is not None:
        reward_NT += rollouts.step_rewards_NT
    if rollouts.ref_logprobs_NT is not None and method.kl == "k1_reward":
        for n, row in enumerate((rollouts.old_logprobs_NT - rollouts.ref_logprobs_NT) * mask_NT):
            reward_NT[n] -= _kl_coef(rollouts, n, method) * row
    return reward_NT


def loss(
    logprobs_MT: Tensor, rollouts: Rollouts, advantages_NT: Tensor, rows_M: Tensor, method: Method, num_minibatches: int
) -> Tensor:
    """The loss of one minibatch but for entropy: the objective on the (pre-clipped) ratio, KL, likelihood of right rollouts."""
    advantages_MT, mask_MT = advantages_NT[rows_M], rollouts.loss_mask[rows_M]
    log_ratio_MT = logprobs_MT - rollouts.old_logprobs_NT[rows_M]
    if method.preclip is not None:
        bounds = torch.log(torch.tensor(method.preclip))
        log_ratio_MT = torch.clamp(log_ratio_MT, bounds[0].item(), bounds[1].item())
    if method.objective == "gmpo":  # what pushes a token further than the clip is cut, token by token
        log_ratio_MT = torch.where(advantages_MT > 0, log_ratio_MT.clamp(max=_clip_high(method)), log_ratio_MT)
        log_ratio_MT = torch.where(advantages_MT < 0, log_ratio_MT.clamp(min=-method.clip_low), log_ratio_MT)
        log_ratio_MT = torch.where(advantages_MT == 0, 0.0, log_ratio_MT)
    if method.objective in ("gspo", "gmpo"):
        means = [_over_rollout(row, mask, torch.mean) for row, mask in zip(log_ratio_MT, mask_MT, strict=True)]
        log_ratio_MT = torch.stack(means)
    if method.objective == "response_clip":
        sums = [_over_rollout(row, mask, torch.sum) for row, mask in zip(log_ratio_MT, mask_MT, strict=True)]
        log_ratio_MT = torch.stack(sums)
    ratio_MT = torch.exp(torch.clamp(log_ratio_MT, -20, 20))
    token_loss_MT = _objective(ratio_MT, logprobs_MT, advantages_MT, method)
    if method.importance is not None and rollouts.sampled_logprobs_NT is not None:
        token_loss_MT = token_loss_MT * torch.stack([_importance(rollouts, n, method)[0] for n in rows_M.tolist()])
    if method.covariance is not None and method.covariance.kind == "kl":
        held_MT = _held(rollouts, advantages_NT, method.covariance.fraction)[rows_M]
        distance_MT = (logprobs_MT - rollouts.old_logprobs_NT[rows_M]).abs()
        token_loss_MT = token_loss_MT + method.covariance.coef * held_MT * distance_MT
    if rollouts.ref_logprobs_NT is not None and method.kl != "k1_reward":
        d_MT = logprobs_MT - rollouts.ref_logprobs_NT[rows_M]
        near_MT = torch.clamp(d_MT, -20, 20)
        kl_MT = d_MT**2 / 2 if method.kl == "k2_loss" else torch.exp(-near_MT) - 1 + near_MT
        if method.kl == "k3_corrected":
            kl_MT = kl_MT * ratio_MT
        coef_M = torch.tensor([_kl_coef(rollouts, n, method) for n in rows_M.tolist()])
        token_loss_MT = token_loss_MT + coef_M[:, None] * kl_MT
    total = _average(token_loss_MT, mask_MT, rollouts.loss_mask, method, num_minibatches)
    if method.positive_nll:
        assert rollouts.correct_N is not None
        chosen_MT = mask_MT * rollouts.correct_N[rows_M][:, None]
        num_chosen = (rollouts.loss_mask * rollouts.correct_N[:, None]).sum().clamp(min=1) / num_minibatches
        total = total - method.positive_nll * (logprobs_MT * chosen_MT).sum() / num_chosen
    return total


def _over_rollout(row_T: Tensor, mask_T: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean or sum over a rollout's tokens, on each of them; 0 without any."""
    return (reduce(row_T[mask_T.bool()]) if mask_T.any() else row_T.sum() * 0).expand(len(row_T))


def _objective(ratio_MT: Tensor, logprobs_MT: Tensor, advantages_MT: Tensor, method: Method) -> Tensor:
    """The loss of each token."""
    if method.objective == "gmpo":
        return -ratio_MT * advantages_MT
    if method.objective == "cispo":  # REINFORCE, weighted by a clipped ratio without gradient
        return -torch.clamp(ratio_MT, max=1 + _clip_high(method)).detach() * advantages_MT * logprobs_MT
    if method.objective == "sapo":  # a gate of slope 1 at ratio 1 instead of a clip
        gates = [torch.sigmoid(tau * (ratio_MT - 1)) * 4 / tau for tau in method.sapo_temperatures]
        return -torch.where(advantages_MT > 0, gates[0], gates[1]) * advantages_MT
    clipped_MT = torch.clamp(ratio_MT, 1 - method.clip_low, 1 + _clip_high(method)) * advantages_MT
    unclipped_MT = ratio_MT * advantages_MT
    token_loss_MT = -torch.where(unclipped_MT < clipped_MT, unclipped_MT, clipped_MT)
    if method.dual_clip is not None:
        most_MT = -method.dual_clip * advantages_MT
        token_loss_MT = torch.where((advantages_MT < 0) & (token_loss_MT > most_MT), most_MT, token_loss_MT)
    return token_loss_MT


def _importance(rollouts: Rollouts, n: int, method: Method) -> tuple[Tensor, Tensor]:
    """The weights p_trainer / p_sampler of the tokens of rollout ``n``, and 1 on each that is masked. Tokens without a
    log-prob of the sampler have a ratio of 1."""
    assert rollouts.sampled_logprobs_NT is not None
    assert method.importance is not None
    mask_T, (level, rule) = rollouts.loss_mask[n], method.importance.mode.split("_")
    weights_T, masked_T = torch.ones(len(mask_T)), torch.zeros(len(mask_T))
    gap_T = (rollouts.old_logprobs_NT[n] - rollouts.sampled_logprobs_NT[n]).nan_to_num(0.0)
    gaps = {t: gap_T[t].item() for t in range(len(mask_T)) if mask_T[t]}
    low = 0.0 if method.importance.floor is None else method.importance.floor
    high = math.inf if method.importance.cap is None else method.importance.cap
    vetoed = method.importance.veto is not None and any(gap < math.log(method.importance.veto) for gap in gaps.values())
    for t, gap in gaps.items():
        if level != "token":
            gap = sum(gaps.values()) / (len(gaps) if level == "geometric" else 1)
        ratio = math.exp(max(-20.0, min(20.0, gap)))
        weights_T[t] = min(max(ratio, low), high)
        masked_T[t] = float(vetoed or (rule == "mask" and not low <= ratio <= high))
    return weights_T, masked_T


def _leave_out(rollouts: Rollouts, method: Method) -> Rollouts:
    """The rollouts without the tokens that the importance correction masks."""
    if method.importance is None or rollouts.sampled_logprobs_NT is None:
        return rollouts
    masked_NT = torch.stack([_importance(rollouts, n, method)[1] for n in range(len(rollouts.rewards_N))])
    truncated_NT = torch.zeros_like(masked_NT) if rollouts.left_out_NT is None else rollouts.left_out_NT
    return replace(rollouts, left_out_NT=torch.maximum(masked_NT, truncated_NT))


def _top_entropy(rollouts: Rollouts, method: Method) -> Tensor:
    """1 on the tokens of highest entropy, which alone have a policy gradient."""
    assert rollouts.entropies_NT is not None
    kept = rollouts.entropies_NT[rollouts.loss_mask.bool()]
    return (rollouts.entropies_NT >= torch.quantile(kept, 1 - method.top_entropy)).float()


def _covariances(rollouts: Rollouts, advantages_NT: Tensor) -> dict[tuple[int, int], float]:
    """(rollout, token) -> (A - mean A) (logp - mean logp), of the tokens that are trained on."""
    places = [(n, t) for n, t in rollouts.loss_mask.nonzero().tolist()]
    mean_a = sum(advantages_NT[place].item() for place in places) / len(places)
    mean_l = sum(rollouts.old_logprobs_NT[place].item() for place in places) / len(places)
    return {p: (advantages_NT[p].item() - mean_a) * (rollouts.old_logprobs_NT[p].item() - mean_l) for p in places}


def _clip_covariance(rollouts: Rollouts, advantages_NT: Tensor, method: Method) -> Tensor:
    """Advantages without those of a random choice of tokens of high covariance (Clip-Cov)."""
    assert method.covariance is not None
    assert rollouts.uniforms_NT is not None
    covariances, limits = _covariances(rollouts, advantages_NT), method.covariance
    within = [place for place, value in covariances.items() if limits.low < value < limits.high]
    number, clipped_NT = max(1, int(limits.fraction * len(covariances))), advantages_NT.clone()
    for place in within:
        if rollouts.uniforms_NT[place] < number / len(within):
            clipped_NT[place] = 0
    return clipped_NT


def _held(rollouts: Rollouts, advantages_NT: Tensor, fraction: float) -> Tensor:
    """1 on the ``fraction`` of tokens of highest covariance (KL-Cov)."""
    covariances, held_NT = _covariances(rollouts, advantages_NT), torch.zeros_like(advantages_NT)
    number = max(1, int(fraction * len(covariances)))
    for place in sorted(covariances, key=lambda place: -covariances[place])[:number]:
        held_NT[place] = 1
    return held_NT


def _clip_high(method: Method) -> float:
    return method.clip_low if method.clip_high is None else method.clip_high


def _average(token_loss_MT: Tensor, mask_MT: Tensor, mask_NT: Tensor, method: Method, num_minibatches: int) -> Tensor:
    """Average over the tokens of an average minibatch, so that every token of the rollout batch weighs the same; with
    "sequence" every rollout that has a token does."""
    if method.average == "token":
        return (token_loss_MT * mask_MT).sum() / (mask_NT.sum() / num_minibatches)
    if method.average == "constant":
        return (token_loss_MT * mask_MT).sum() / (len(mask_MT) * method.max_completion_length)
    rows = [row[mask.bool()].mean() for row, mask in zip(token_loss_MT, mask_MT, strict=True) if mask.any()]
    return torch.stack([*rows, token_loss_MT.sum() * 0]).sum() / (mask_NT.any(1).sum().clamp(min=1) / num_minibatches)


def agreement_with_the_other_order(pairs: Sequence[str], orders: Sequence[str], winners: Sequence[int | None], n: int) -> float:
    """The share of the rollouts that saw the pair of rollout ``n`` in the other order and name the winner it names; 0 where it
    names none, or where there are none. ``swap_weight`` times this is added to its reward."""
    others = [winners[m] for m in range(len(pairs)) if pairs[m] == pairs[n] and orders[m] != orders[n]]
    if winners[n] is None or not others:
        return 0.0
    return sum(winner == winners[n] for winner in others) / len(others)


def step(
    policy: torch.nn.Module,
    logprobs: Callable[[Tensor], Tensor],
    rollouts: Rollouts,
    optimizer: torch.optim.Optimizer,
    minibatches: Sequence[Sequence[Tensor]],
    method: Method,
    *,
    critic: torch.nn.Module | None = None,
    values: Callable[[Tensor], Tensor] | None = None,
    entropies: Callable[[Tensor], Tensor] | None = None,
    max_grad_norm: float = 1.0,
) -> list[float]:
    """All optimizer steps on one batch of rollouts; returns the loss of each.

    ``logprobs(rows)`` gives the policy's log-probs, with gradient, of the completions of the rollouts named by ``rows`` [M],
    seen with their images; ``values(rows)`` what the ``critic`` says before each of their tokens, ``entropies(rows)`` the
    policy's entropies there. ``minibatches`` are the
    epochs, each a list of such row indices. The optimizer holds the weights of both.
    """
    rollouts = _leave_out(rollouts, method)
    advantages_NT = advantages(rollouts, method)
    if method.top_entropy < 1:
        advantages_NT = advantages_NT * _top_entropy(rollouts, method)
    if method.covariance is not None and method.covariance.kind == "clip":
        advantages_NT = _clip_covariance(rollouts, advantages_NT, method)
    losses = []
    bonus, last_entropy = (method.entropy.coef if method.entropy else 0.0), math.inf
    for epoch in minibatches:
        for rows_M in epoch:
            total = loss(logprobs(rows_M), rollouts, advantages_NT, rows_M, method, len(epoch))
            if values is not None:
                total = total + value_loss(values(rows_M), rollouts, rows_M, method, len(epoch))
            if method.entropy is not None and entropies is not None:  # mean over tokens, all minibatches alike
                entropies_MT, mask_MT = entropies(rows_M), rollouts.loss_mask[rows_M]
                target = method.entropy.target
                if target is None or last_entropy <= target:
                    total = total - bonus * (entropies_MT * mask_MT).sum() / (rollouts.loss_mask.sum() / len(epoch))
                if target is not None:
                    last_entropy = entropies_MT[mask_MT.bool()].mean().item()
                    bonus += method.entropy.step if last_entropy <= target else -method.entropy.step
                    bonus = min(max(bonus, 0.0), method.entropy.max)
            optimizer.zero_grad()
            total.backward()
            for model in (policy, critic):
                if model is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
            optimizer.step()
            losses.append(total.item())
    return losses
