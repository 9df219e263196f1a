"""Does StableReinforce still matter when the actor sees? ``python -m eval.studies stability``

R1-Reward (arXiv 2505.02835) reports that REINFORCE++ collapses when judges are trained, and that the log-ratio pre-clip and
the 3-sigma filter of advantages prevent it; in its released code (``yfzhang114/r1_reward`` at 3693413) the actor is blind and
the filter has wrong bounds. Here all methods start from one judge after RL, on pairs that it mostly gets right (failures are
rare and their whitened advantages large), with several updates per rollout batch (off-policy: ratios leave 1).
"""

from __future__ import annotations

import copy
import math
import random
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PrinterCallback

from eval.studies.study import FiniteWeights, Quickstart, Record, Trial, digest, is_numeric_failure
from rewardlab.config import Method, RLConfig
from rewardlab.data.pairs import read_pairs
from rewardlab.errors import DataError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.models.checkpoints import commit, template_for
from rewardlab.models.families import FORWARD_KEYS
from rewardlab.models.loading import load_model
from rewardlab.reporting.progress import bar
from rewardlab.rl.advantages import Moments
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.policy_gradient.algorithm import apply_outlier_rule
from rewardlab.training.rl import build_trainer, rl_rows
from rewardlab.types import BOTH_ORDERS, PreferencePair, Vote

COLLAPSE = 0.10  # a trial has collapsed if its accuracy ends more than this below the start
CHUNK = 50  # pairs between two updates of the progress bar


def delete_around_raw_mean(
    whitened_NT: Tensor, mask_NT: Tensor, moments: Moments, method: Method
) -> tuple[Tensor, dict[str, float]]:
    """Set whitened advantages outside raw mean +- sigma to 0; return them, and the fraction of tokens deleted, by side.

    A fault of the released code: its bounds are around the mean from before whitening (``replay_buffer.py:265-271``), while the
    mean of what it compares is 0. With rewards of 0.5 and 1.5 it deletes every failure from an accuracy of about 75 % on; the
    right filter does so from 90 %. The method must have ``outliers: keep`` and no KL term.
    """
    assert method.outliers == "keep", "the right filter must not come first"
    assert not method.kl_coef, "the raw return of a token is the reward of its rollout only without KL"
    raw_mean, sigma = moments.mean.item(), method.outlier_sigma
    _, metrics = apply_outlier_rule(whitened_NT, mask_NT, moments, method)
    tokens = mask_NT.sum().clamp(min=1)
    low_NT = (whitened_NT < raw_mean - sigma) & (mask_NT > 0)
    high_NT = (whitened_NT > raw_mean + sigma) & (mask_NT > 0)
    return whitened_NT.masked_fill(low_NT | high_NT, 0.0), metrics | {
        "advantage/outlier_frac": ((low_NT | high_NT).sum() / tokens).item(),
        "advantage/outlier_frac_negative": (low_NT.sum() / tokens).item(),
        "advantage/outlier_frac_positive": (high_NT.sum() / tokens).item(),
    }


def hide_images(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out the image: log-probs of training, old and new, are computed without it, for rollouts sampled with it.

    A fault of the released code (``experience_maker.py:649``, ``ppo_trainer.py:371-377``): bare placeholder tokens replace the
    image, and positions are those of plain text. Ratios start at 1, for a policy that did not sample the rollouts.
    """
    return {name: value for name, value in fields.items() if name not in FORWARD_KEYS}


@dataclass(frozen=True)
class Arm:
    """A method: its changes to RLConfig's defaults, which are StableReinforce, and to the trainer's parts."""

    title: str
    method: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)


PLAIN: dict[str, Any] = {"outliers": "keep", "preclip": None}
BLIND: dict[str, Any] = {"image_fields": hide_images}

ARMS: dict[str, Arm] = {
    "reinforce_pp": Arm("REINFORCE++", PLAIN),
    "preclip": Arm("+ pre-clip", {"outliers": "keep"}),
    "filter": Arm("+ filter", {"preclip": None}),
    "stable_reinforce": Arm("StableReinforce: + both"),
    "raw_mean_filter": Arm("pre-clip + filter around the raw mean", {"outliers": "keep"}, {"outliers": delete_around_raw_mean}),
    "preclip_clip": Arm("pre-clip + outliers clipped", {"outliers": "clip"}),
    "dual_clip": Arm("REINFORCE++ with dual-clip 3", {**PLAIN, "dual_clip": 3.0}),
    "grpo": Arm("GRPO, groups of 8", {"advantage": "grpo", "group_size": 8, "preclip": None}),
    "blind_stable_reinforce": Arm("StableReinforce, blind actor", {}, BLIND),
    "blind_reinforce_pp": Arm("REINFORCE++, blind actor", PLAIN, BLIND),
}

# The optimizer as in the quickstart's RL. Consistency is not rewarded: that needs an endpoint.
TRAINING: dict[str, Any] = {
    "lr_scheduler": "linear",
    "warmup_steps": 5,
    "adam_beta2": 0.98,
    "gradient_checkpointing": False,
    "consistency": {"weight": 0.0},
}


@dataclass(frozen=True)
class Settings:
    """Settings that all trials share. Eight optimizer steps per rollout batch: four minibatches, twice."""

    rollout_batches: int = 5
    rollout_batch_size: int = 128
    batch_size: int = 32
    iterations: int = 2
    max_tokens: int = 64
    num_candidates: int = 700  # training pairs; the judge's own samples choose among them
    num_draws: int = 4  # samples of each candidate in each order
    keep_from: float = 0.75  # a pair is kept if this fraction of its samples is right
    num_test: int = 200  # held-out pairs
    num_votes: int = 2  # of a trained judge on each of them in each order
    num_start_votes: int = 10  # the same of the judge that all trials start from
    seed: int = 1000  # of the choice of pairs and of all evaluation

    @property
    def period(self) -> int:
        """Optimizer steps per rollout batch."""
        return self.rollout_batch_size // self.batch_size * self.iterations

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def config_of(trial: Trial, settings: Settings, *, model: str, template: str) -> RLConfig:
    """Return the config of a trial: two trials differ only in the arm's method, the rate and the seed."""
    return RLConfig(
        model=model,
        template=template,
        learning_rate=trial.learning_rate or 0.0,
        seed=trial.seed,
        max_steps=settings.rollout_batches * settings.period,
        rollout_batch_size=settings.rollout_batch_size,
        batch_size=settings.batch_size,
        micro_batch_size=settings.batch_size,
        iterations=settings.iterations,
        max_completion_length=settings.max_tokens,
        save_steps=settings.period,
        **TRAINING,
        **ARMS[trial.arm].method,
    )


def has_collapsed(record: Record, start: float) -> bool:
    """Return whether a trial ended with non-finite numbers, or with an accuracy more than ``COLLAPSE`` below ``start``."""
    return bool(record["status"] != "finished" or record["accuracy"] < start - COLLAPSE)


# The logged metrics that a record keeps, step by step; None stands for a number that is not finite.
SERIES = {
    "grad_norm": "grad_norm",
    "loss": "loss",
    "right": "reward/accuracy",
    "invalid": "reward/invalid_frac",
    "entropy": "entropy",
    "preclip_frac": "loss/preclip_frac",
    "clip_frac": "loss/clip_frac",
    "outlier_frac_negative": "advantage/outlier_frac_negative",
    "outlier_frac_positive": "advantage/outlier_frac_positive",
}


class StepLog(FiniteWeights):
    """Keeps the logged metrics, and stops a training whose weights are no longer numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        self.logged.append(dict(logs or {}))

    def series(self) -> dict[str, list[float | None]]:
        """Return the steps' values by name, without steps that have none."""
        series = {key: [step[name] for step in self.logged if name in step] for key, name in SERIES.items()}
        return {key: [value if math.isfinite(value) else None for value in values] for key, values in series.items()}


class StabilityContext:
    """Judge, processor and pairs, read once; every trial gets its own copy of the judge's weights."""

    def __init__(self, run: Path, settings: Settings) -> None:
        self.settings, self.quickstart = settings, Quickstart(run)
        self.quickstart.require("rl", files=(self.quickstart.distilled, self.quickstart.test))
        self.judge = self.quickstart.judge("rl")
        self.template = template_for(self.judge, None)
        self.model, self.processor = load_model(str(self.judge), device="cpu")
        candidates = [pair for pair in read_pairs(self.quickstart.distilled) if pair.preferred is not None]
        random.Random(settings.seed).shuffle(candidates)
        self.candidates = candidates[: settings.num_candidates]
        self.test = read_pairs(self.quickstart.test)[: settings.num_test]
        self.rows: Any = None
        self.commit = commit()  # of the code in memory, whatever happens to the files meanwhile

    def identity(self) -> dict[str, Any]:
        files = {path.name: digest(path) for path in (self.quickstart.distilled, self.quickstart.test)}
        return {"settings": asdict(self.settings), "judge": digest(self.judge), **files}

    def config_of(self, trial: Trial) -> RLConfig:
        return config_of(trial, self.settings, model="start", template=self.template.name)

    def _votes(self, model: Any, pairs: Sequence[PreferencePair], num_votes: int, seed: int) -> list[list[Vote]]:
        sampler = HFSampler(model, self.processor, batch_size=512)
        judge = GenerativeJudge(sampler, self.template, max_tokens=self.settings.max_tokens)
        judgments = judge.compare_many(pairs, orders=[BOTH_ORDERS] * len(pairs), num_votes=num_votes, seed=seed)
        return [list(judgment.votes) for judgment in judgments]

    def start(self) -> dict[str, Any]:
        """Return the accuracy of the judge that all trials start from, and its right samples of each candidate."""
        s, right = self.settings, {}
        with bar("samples of the start", len(self.candidates)) as advance:
            for n in range(0, len(self.candidates), CHUNK):
                pairs = self.candidates[n : n + CHUNK]
                for pair, votes in zip(pairs, self._votes(self.model, pairs, s.num_draws, s.seed + n), strict=True):
                    right[pair.pair_id] = sum(vote.winner == pair.preferred for vote in votes)
                advance(len(pairs))
        return {**self.evaluate(self.model, s.num_start_votes), "right": right}

    def prepare(self, start: dict[str, Any]) -> None:
        self.keep_late(start["right"])

    def keep_late(self, right: dict[str, int]) -> float:
        """Train on the candidates that the start mostly gets right, in both orders; return its accuracy on them.

        That accuracy is of the samples that chose them, and so a little high. Raise DataError if they fill no batch.
        """
        draws = 2 * self.settings.num_draws
        kept = [pair for pair in self.candidates if right[pair.pair_id] >= self.settings.keep_from * draws]
        if 2 * len(kept) < self.settings.rollout_batch_size:
            raise DataError(
                f"{len(kept)} of {len(self.candidates)} pairs are judged right often enough, in two orders too few for a batch "
                f"of {self.settings.rollout_batch_size}; train the judge for longer, or take more candidates"
            )
        self.rows = rl_rows(kept, self.template, both_orders=True)
        return sum(right[pair.pair_id] for pair in kept) / (draws * len(kept))

    def evaluate(self, model: Any, num_votes: int) -> dict[str, Any]:
        """Return the sampled accuracy on the held-out pairs in both orders; an invalid answer is wrong. All share a seed."""
        votes_of_pair = self._votes(model.eval(), self.test, num_votes, self.settings.seed)
        votes = [(vote, pair.preferred) for pair, row in zip(self.test, votes_of_pair, strict=True) for vote in row]
        return {
            "num_votes": len(votes),
            "accuracy": sum(vote.winner == preferred for vote, preferred in votes) / len(votes),
            "invalid": sum(vote.winner is None for vote, _ in votes) / len(votes),
            "answers": [vote.completion.text for vote, _ in votes[:3]],
        }

    def run(self, trial: Trial) -> dict[str, Any]:
        """Train and evaluate. A trial with weights or probabilities that are not finite is right on nothing."""
        model, log = copy.deepcopy(self.model), StepLog()
        scores: dict[str, Any] = {"status": "non_finite", "accuracy": 0.0, "invalid": 1.0, "answers": []}
        scores["num_votes"] = 2 * len(self.test) * self.settings.num_votes
        try:
            self._train(trial, model, log)
            if log.finite:
                scores = {"status": "finished", **self.evaluate(model, self.settings.num_votes)}
        except RuntimeError as error:
            if not is_numeric_failure(error):
                raise
        steps = sum("grad_norm" in step for step in log.logged)
        return {**scores, "steps": steps, "series": log.series(), "commit": self.commit}

    def _train(self, trial: Trial, model: Any, log: StepLog) -> None:
        with tempfile.TemporaryDirectory() as folder:
            trainer = build_trainer(
                self.rows,
                self.config_of(trial),
                model,
                self.processor,
                self.template,
                Path(folder),
                callbacks=[log],
                trl={"save_strategy": "no", "logging_nan_inf_filter": False},
                **ARMS[trial.arm].parts,
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
