"""Rollouts of several steps or turns: truncated and continued in later steps, or verified and revised in a dialogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from rewardlab.data.images import part_of_pixels
from rewardlab.metrics.running import Metric
from rewardlab.models.families import Fields, add_images, join_images, patch_token_id, select_fields
from rewardlab.prompts.verification import REVISE, VERIFY, VerifyTurns, read_verification
from rewardlab.rewards.rollout import Rollout, Row, Trajectory
from rewardlab.rl.self_verification import VERIFICATION, turn_rewards
from rewardlab.samplers.hf import thinking_opening, user_turn
from rewardlab.training.policy_gradient.rollouts.prompts import PromptSource
from rewardlab.training.policy_gradient.rollouts.sampling import (
    Collected,
    Sampling,
    Score,
    State,
    WholeRollouts,
    as_metrics,
)
from rewardlab.verdicts.turns import JudgmentTurns


class TruncatedRollouts:
    """Truncated rollouts (T-PPO, arXiv 2506.15050): a rollout grows by ``window`` tokens a step; unfinished ones precede new
    prompts of ``source``, so no step waits for the longest rollout.

    The policy is trained on each window at once, with EGAE's advantages if the rollout is unfinished; the critic on whole
    rollouts once their reward is known. The last ``tail`` tokens of an unfinished window are not trained on: their advantages
    would consist of little but the critic's value at the cut.
    """

    continues_rollouts = True

    def __init__(self, source: PromptSource, window: int, tail: int = 0) -> None:
        self._source, self._tail = source, tail
        self.max_new_tokens: int | None = window
        self._unfinished: list[tuple[int, list[int]]] = []  # (place of the prompt, tokens so far), oldest first
        self._places: list[int] = []
        self._prefixes: list[list[int]] = []

    def choose_rows(self, rows: list[Row]) -> list[Row]:
        size = len(rows)
        continued, self._unfinished = self._unfinished[:size], self._unfinished[size:]
        fresh = self._source.take(size - len(continued))
        self._places = [place for place, _ in continued] + [place for place, _ in fresh]
        self._prefixes = [tokens for _, tokens in continued] + [[] for _ in fresh]
        return [self._source.row(place) for place, _ in continued] + [row for _, row in fresh]

    def complete(self, prompt_ids: list[list[int]], images: Any, fields: Fields, sampling: Sampling) -> list[Trajectory]:
        so_far = [prompt + prefix for prompt, prefix in zip(prompt_ids, self._prefixes, strict=True)]
        grown = select_fields(fields, list(range(len(so_far))), [len(ids) for ids in so_far])
        windows, logprobs = sampling.sample(so_far, images, grown, range(len(so_far)))
        completions = []
        for n, (prefix, window) in enumerate(zip(self._prefixes, windows, strict=True)):
            tokens = prefix + window
            finished = tokens[-1] in sampling.ends or len(tokens) >= sampling.max_completion_length
            drawn = None if logprobs is None else [0.0] * len(prefix) + logprobs[n]
            until = None if finished else len(tokens) - self._tail
            completions.append(Trajectory(tokens, drawn, trained_from=len(prefix), trained_until=until, finished=finished))
        return completions

    def collect(self, rollouts: list[Rollout], score: Score) -> Collected:
        finished = [rollout for rollout in rollouts if rollout.trajectory.finished]
        scored = score(finished)
        attached = iter(scored.attach(finished))
        out = [next(attached) if rollout.trajectory.finished else rollout for rollout in rollouts]
        self._unfinished += [
            (place, rollout.token_ids)
            for place, rollout in zip(self._places, rollouts, strict=True)
            if not rollout.trajectory.finished
        ]
        size = len(rollouts)
        shares = {
            "truncated/unfinished_frac": 1 - len(finished) / size,
            "truncated/continued_frac": sum(rollout.trajectory.trained_from > 0 for rollout in rollouts) / size,
            "truncated/passes": self._source.passes,
        }
        return Collected(out, as_metrics(scored.metrics) | {name: Metric(value) for name, value in shares.items()})

    def state_dict(self) -> State:
        unfinished = [(self._source.number(place), tokens) for place, tokens in self._unfinished]
        return {"unfinished": unfinished, "source": self._source.state_dict()}

    def load_state_dicts(self, states: Sequence[State]) -> None:
        rollouts = [(self._source.place(number), tokens) for state in states for number, tokens in state["unfinished"]]
        self._unfinished = [(place, tokens) for place, tokens in rollouts if place is not None]
        self._source.load_state_dicts([state["source"] for state in states])


@dataclass(frozen=True)
class Insertion:
    """What is between two parts of a rollout: tokens that the policy did not choose, and the fields of the ``images`` that
    they show."""

    tokens: list[int]
    images: tuple[Any, ...] = ()
    fields: Fields = field(default_factory=dict)


class ContinuedRollouts(WholeRollouts):
    """Whole rollouts that are continued after each :meth:`insertion`, by up to ``length`` tokens (None: as many as a rollout
    may have). The inserted tokens are context and not trained on; those before and after them are."""

    def __init__(self, processor: Any, length: int | None = None) -> None:
        self._processor, self._length = processor, length
        self._image_token = patch_token_id(processor)

    def insertion(self, made: Trajectory, images: Sequence[Any], sampling: Sampling) -> Insertion | None:
        """Return what follows a rollout so far about some images; None where it is not continued."""
        raise NotImplementedError

    def decoded(self, tokens: Sequence[int]) -> str:
        return str(self._processor.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def turns_of(self, made: Trajectory) -> list[str]:
        """Return the texts of a rollout between what was inserted."""
        return list(map(self.decoded, made.parts))

    def complete(self, prompt_ids: list[list[int]], images: Any, fields: Fields, sampling: Sampling) -> list[Trajectory]:
        made = super().complete(prompt_ids, images, fields, sampling)
        pictures = [list(of_prompt or ()) for of_prompt in images] if images else [[] for _ in prompt_ids]
        of_prompts = list(map(len, pictures))
        while True:
            all_inserted = [
                self.insertion(part, of_row[:number], sampling)
                for part, of_row, number in zip(made, pictures, of_prompts, strict=True)
            ]
            inserted = {row: each for row, each in enumerate(all_inserted) if each is not None}
            if sampling.all_processes(not inserted):
                return made
            for row, each in inserted.items():
                pictures[row] += each.images
                made[row] = _with_insertion(made[row], each)
            rows = list(inserted) or [0]  # another process has some: this one takes part and drops its own
            so_far = [prompt_ids[row] + made[row].tokens for row in rows]
            grown = select_fields(fields, rows, [len(ids) for ids in so_far])
            grown = add_images(grown, [made[row].image_fields for row in rows], so_far, self._image_token)
            self.max_new_tokens = self._length  # of the next call of the sampler
            try:
                answers, drawn = sampling.sample(so_far, [pictures[row] for row in rows] if images else None, grown, rows)
            finally:
                self.max_new_tokens = None
            for n, row in enumerate(inserted):
                part, logprobs = made[row], None if drawn is None else drawn[n]
                both = None if part.logprobs is None or logprobs is None else part.logprobs + logprobs
                made[row] = replace(part, tokens=part.tokens + answers[n], logprobs=both)


def _with_insertion(made: Trajectory, inserted: Insertion) -> Trajectory:
    begin, end = len(made.tokens), len(made.tokens) + len(inserted.tokens)
    return replace(
        made,
        tokens=made.tokens + inserted.tokens,
        logprobs=None if made.logprobs is None else made.logprobs + [0.0] * len(inserted.tokens),
        forced=(*made.forced, (begin, end)),
        image_fields=join_images([made.image_fields, inserted.fields]),
    )


class TurnRollouts(ContinuedRollouts):
    """Judgments of several turns (:mod:`rewardlab.verdicts.turns`), each as one rollout. The reward reads the judgment of all
    turns."""

    def __init__(self, processor: Any, turns: JudgmentTurns) -> None:
        super().__init__(processor)
        self._turns = turns

    def insertion(self, made: Trajectory, images: Sequence[Any], sampling: Sampling) -> Insertion | None:
        is_whole = made.tokens[-1] in sampling.ends
        reply = self._turns.reply(self.turns_of(made), len(images)) if is_whole else None
        if reply is None:
            return None
        whole = None if reply.look is None else images[reply.look.image]
        looked = [] if whole is None or reply.look is None else [part_of_pixels(whole, reply.look.pixels)]
        tokens, fields = user_turn(self._processor, reply.text, looked)
        return Insertion(tokens[1:] if tokens[0] in sampling.ends else tokens, tuple(looked), fields)  # the turn has its end

    def collect(self, rollouts: list[Rollout], score: Score) -> Collected:
        turns = [self.turns_of(rollout.trajectory) for rollout in rollouts]
        joined = [replace(rollout, text=self._turns.join(of)) for rollout, of in zip(rollouts, turns, strict=True)]
        collected = super().collect(joined, score)
        mean = Metric(sum(map(len, turns)) / max(1, len(turns)), len(turns))
        return Collected(collected.rollouts, collected.metrics | {"turns/mean": mean})


class ForcedAnswerRollouts(ContinuedRollouts):
    """Rollouts that are cut while they think must answer (GLM-4.1V-Thinking, arXiv 2507.01006). ``closing`` ends the thinking
    and opens the answer, of which up to ``length`` tokens are sampled."""

    def __init__(self, processor: Any, closing: str, length: int) -> None:
        super().__init__(processor, length)
        self._opening, self._closing = thinking_opening(processor), closing_tokens(processor, closing)

    def insertion(self, made: Trajectory, images: Sequence[Any], sampling: Sampling) -> Insertion | None:
        """Return the closing of a rollout that is cut within its thinking."""
        text = self._opening + self.decoded(made.tokens)
        is_cut = made.tokens[-1] not in sampling.ends and text.rfind("<think>") > text.rfind("</think>")
        return Insertion(self._closing) if is_cut and not made.forced else None

    def collect(self, rollouts: list[Rollout], score: Score) -> Collected:
        collected = super().collect(rollouts, score)
        forced = [rollout for rollout in collected.rollouts if rollout.trajectory.forced]
        metrics = {"forced/frac": Metric(len(forced) / max(1, len(rollouts)), len(rollouts))}
        if forced:
            metrics["forced/verdict_frac"] = Metric(sum(rollout.parsed for rollout in forced) / len(forced), len(forced))
            metrics["forced/accuracy"] = Metric(sum(rollout.correct for rollout in forced) / len(forced), len(forced))
        return Collected(collected.rollouts, collected.metrics | metrics)


def closing_tokens(processor: Any, closing: str) -> list[int]:
    """Return the tokens that end a thinking and open its answer."""
    return list(processor.tokenizer(closing, add_special_tokens=False)["input_ids"])


def longest_dialogue(processor: Any, max_completion_length: int) -> int:
    """Return the most tokens after the prompt: a judgment, its verification, a revision, and what the user says between."""
    return 3 * max_completion_length + sum(len(user_turn(processor, content)[0]) for content in (VERIFY, REVISE))


class DialogueRollouts(TurnRollouts):
    """PAG on judges (arXiv 2506.10406): judge, verify the judgment, revise it only if the verification calls it wrong.

    Each turn has a reward of its own. Advantages restart at every turn and are whitened separately for judging and verifying.
    ``max_completion_length`` bounds each turn; ``bonus`` weighs what a revision gains.
    """

    def __init__(self, processor: Any, *, bonus: float = 1.0) -> None:
        super().__init__(processor, VerifyTurns())
        self._bonus, self._opening = bonus, thinking_opening(processor)
        self._ends: frozenset[int] = frozenset()

    def complete(self, prompt_ids: list[list[int]], images: Any, fields: Fields, sampling: Sampling) -> list[Trajectory]:
        self._ends = sampling.ends
        return super().complete(prompt_ids, images, fields, sampling)

    def _text(self, tokens: Sequence[int]) -> str:
        return self._opening + self.decoded(tokens)

    def _verification(self, turns: Sequence[list[int]]) -> bool | None:
        """Return what a dialogue says of its judgment; None where its verification is missing, cut off or unclear."""
        if len(turns) < VERIFICATION or turns[1][-1] not in self._ends:
            return None
        return read_verification(self._text(turns[1]))

    def _score_turn(self, rollouts: list[Rollout], turns: list[list[int]], score: Score) -> Any:
        """Score one turn of each rollout as if it were the whole completion."""
        return score(
            [
                replace(rollout, text=self._text(tokens), trajectory=Trajectory(tokens))
                for rollout, tokens in zip(rollouts, turns, strict=True)
            ]
        )

    def collect(self, rollouts: list[Rollout], score: Score) -> Collected:
        turns = [rollout.trajectory.parts for rollout in rollouts]
        rollouts = [
            replace(rollout, turns=tuple(map(self._text, parts))) for rollout, parts in zip(rollouts, turns, strict=True)
        ]
        first = self._score_turn(rollouts, [parts[0] for parts in turns], score)
        revised_rows = [n for n, parts in enumerate(turns) if len(parts) > VERIFICATION]
        again = self._score_turn([rollouts[n] for n in revised_rows], [turns[n][-1] for n in revised_rows], score)
        scored = zip(revised_rows, again.rewards, _rewards(again.rewards), strict=True)
        revised = {n: value for n, reward, value in scored if reward is not None}  # the others earn nothing
        verifications = [self._verification(parts) for parts in turns]
        first_correct = [correct > 0 for correct in first.correct]
        rewards_NK = turn_rewards(
            _rewards(first.rewards),
            first_correct,
            verifications,
            [revised.get(n) for n in range(len(rollouts))],
            bonus=self._bonus,
        )
        last_correct = {n: correct > 0 for n, correct in zip(revised_rows, again.correct, strict=True)}
        final = [last_correct.get(n, correct) for n, correct in enumerate(first_correct)]
        attached = [
            replace(rollout, text=self._text(parts[0]), turn_rewards=tuple(row))
            for rollout, parts, row in zip(first.attach(rollouts), turns, rewards_NK.tolist(), strict=True)
        ]
        metrics = as_metrics(first.metrics)
        metrics |= {f"revised/{name}": metric for name, metric in as_metrics(again.metrics).items()}
        return Collected(
            attached,
            metrics | verification_metrics(first_correct, verifications, final, [len(parts) > VERIFICATION for parts in turns]),
        )


def _rewards(rewards: Sequence[float | None]) -> list[float]:
    """Return rewards in single precision, as a batch holds them; 0 for one that nothing scored."""
    tensor = torch.tensor([float("nan") if reward is None else reward for reward in rewards], dtype=torch.float32)
    return [float(reward) for reward in tensor.nan_to_num().tolist()]


def verification_metrics(
    correct: list[bool], verifications: list[bool | None], final: list[bool], revised: list[bool]
) -> dict[str, Metric]:
    """Return metrics that show PAG's collapses: a constant verifier, a worse first judgment, free flips; and the gain of
    revising. Right and wrong refer to the first judgment unless said otherwise."""
    total = max(1, len(correct))
    gained = sum(b and not a for a, b in zip(correct, final, strict=True))
    lost = sum(a and not b for a, b in zip(correct, final, strict=True))
    of_correct = [verification for verification, ok in zip(verifications, correct, strict=True) if ok]
    of_wrong = [verification for verification, ok in zip(verifications, correct, strict=True) if not ok]
    shares = {
        "verify/unclear_frac": sum(verification is None for verification in verifications) / total,
        "verify/accuracy": (sum(v is True for v in of_correct) + sum(v is False for v in of_wrong)) / total,
        "verify/revised_frac": sum(revised) / total,
        "verify/final_accuracy": sum(final) / total,
        "verify/gained_frac": gained / total,
        "verify/lost_frac": lost / total,
        "verify/net_gain": (gained - lost) / total,
    }
    metrics = {name: Metric(value) for name, value in shares.items()}
    if of_correct:
        recognised = sum(verification is True for verification in of_correct) / len(of_correct)
        metrics["verify/correct_recognised"] = Metric(recognised, len(of_correct))
        metrics["verify/lost_of_correct"] = Metric(lost / len(of_correct), len(of_correct))
    if of_wrong:
        recognised = sum(verification is False for verification in of_wrong) / len(of_wrong)
        metrics["verify/wrong_recognised"] = Metric(recognised, len(of_wrong))
        metrics["verify/mended_of_wrong"] = Metric(gained / len(of_wrong), len(of_wrong))
    return metrics
