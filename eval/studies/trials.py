"""One trial: the package's trainer on a fresh copy of the starting judge, and the evaluation of the result."""

from __future__ import annotations

import copy
import hashlib
import math
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, TrainerCallback

from eval.studies.stability import ARMS, Settings, Trial, config_of
from rewardlab.data.pairs import read_pairs
from rewardlab.demo.build import TEST
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.models.checkpoints import commit, template_for
from rewardlab.models.loading import load_model
from rewardlab.reporting.progress import bar
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.rl import build_trainer, rl_rows
from rewardlab.training.run.folder import FINAL, is_finished
from rewardlab.types import BOTH_ORDERS, PreferencePair, Vote

# Kept of every logged step where it is there; None stands for a number that is none.
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
SHOWN = 3  # answers kept to read
CHUNK = 50  # pairs between two movements of the progress bar


def files_of(run: Path) -> tuple[Path, Path, Path]:
    """Return (judge, training pairs, held-out pairs) of a finished quickstart. Raise ConfigError if it is not finished."""
    judge, train, test = run / "rl" / FINAL, run / "distill" / "distilled.parquet", run / "demo" / TEST
    if not is_finished(run / "rl") or not train.exists() or not test.exists():
        raise ConfigError(f"{run}: holds no finished quickstart; make one with `rewardlab quickstart --out {run}`")
    return judge, train, test


def digest(path: Path) -> str:
    """Return a hash of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


class Watch(TrainerCallback):
    """Keeps what is logged, and stops a training whose weights are no longer numbers."""

    def __init__(self) -> None:
        self.logged: list[dict[str, float]] = []
        self.finite = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        self.logged.append(dict(logs or {}))

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.finite = all(bool(weight.isfinite().all()) for weight in model.parameters())
        control.should_training_stop |= not self.finite


def _series(logged: Sequence[dict[str, float]]) -> dict[str, list[float | None]]:
    series = {key: [step[name] for step in logged if name in step] for key, name in SERIES.items()}
    return {key: [v if v is not None and math.isfinite(v) else None for v in values] for key, values in series.items()}


def is_numeric_failure(error: RuntimeError) -> bool:
    """Return whether torch refused to sample from non-finite probabilities."""
    return "probability tensor contains" in str(error)


class StabilityContext:
    """Judge, processor and pairs, read once; every trial gets its own copy of the judge's weights."""

    def __init__(self, run: Path, settings: Settings) -> None:
        judge, train, test = files_of(run)
        self.settings, self.files = settings, (judge, train, test)
        self.template = template_for(judge, None)
        self.model, self.processor = load_model(str(judge), device="cpu")
        candidates = [pair for pair in read_pairs(train) if pair.preferred is not None]
        random.Random(settings.seed).shuffle(candidates)
        self.candidates = candidates[: settings.num_candidates]
        self.test = read_pairs(test)[: settings.num_test]
        self.rows: Any = None
        self.commit = commit()  # of the code in memory, whatever is done to the files meanwhile

    def identity(self) -> dict[str, Any]:
        """Arms, rates and seeds may be added to a study; the judge, the pairs and the settings are the same for all."""
        weights = self.files[0] / "model.safetensors"
        return {"settings": self.settings.to_dict(), "judge": digest(weights), **{p.name: digest(p) for p in self.files[1:]}}

    def _votes(self, model: Any, pairs: Sequence[PreferencePair], num_votes: int, seed: int) -> list[list[Vote]]:
        sampler = HFSampler(model, self.processor, batch_size=512)
        judge = GenerativeJudge(sampler, self.template, max_tokens=self.settings.max_tokens)
        judgments = judge.compare_many(pairs, orders=[BOTH_ORDERS] * len(pairs), num_votes=num_votes, seed=seed)
        return [list(judgment.votes) for judgment in judgments]

    def start(self) -> dict[str, Any]:
        """The judge that all trials start from: its accuracy on the held-out pairs, and its own draws on the candidates."""
        s, right = self.settings, {}
        with bar("draws of the start", len(self.candidates)) as advance:
            for n in range(0, len(self.candidates), CHUNK):
                pairs = self.candidates[n : n + CHUNK]
                for pair, votes in zip(pairs, self._votes(self.model, pairs, s.num_draws, s.seed + n), strict=True):
                    right[pair.pair_id] = sum(vote.winner == pair.preferred for vote in votes)
                advance(len(pairs))
        return {**self.evaluate(self.model, s.num_start_votes), "right": right}

    def prepare(self, start: dict[str, Any]) -> None:
        self.keep_late(start["right"])

    def keep_late(self, right: dict[str, int]) -> float:
        """Train on the candidates that the start's own draws mostly get right, in both orders; return their share of right.

        That share is of the draws that chose them, and so a little high. Raise DataError if they fill no batch.
        """
        draws = 2 * self.settings.num_draws
        kept = [pair for pair in self.candidates if right[pair.pair_id] >= self.settings.keep_from * draws]
        if 2 * len(kept) < self.settings.rollout_batch_size:
            raise DataError(
                f"{len(kept)} of {len(self.candidates)} pairs are judged right often enough, in two orders too few for a batch "
                f"of {self.settings.rollout_batch_size}; train the judge for longer, or draw more candidates"
            )
        self.rows = rl_rows(kept, self.template, both_orders=True)
        return sum(right[pair.pair_id] for pair in kept) / (draws * len(kept))

    def evaluate(self, model: Any, num_votes: int) -> dict[str, Any]:
        """Sampled accuracy on the held-out pairs, both orders, invalid answers wrong; the same draws' seed for all."""
        votes_of_pair = self._votes(model.eval(), self.test, num_votes, self.settings.seed)
        votes = [(vote, pair.preferred) for pair, row in zip(self.test, votes_of_pair, strict=True) for vote in row]
        return {
            "num_votes": len(votes),
            "accuracy": sum(vote.winner == preferred for vote, preferred in votes) / len(votes),
            "invalid": sum(vote.winner is None for vote, _ in votes) / len(votes),
            "answers": [vote.completion.text for vote, _ in votes[:SHOWN]],
        }

    def run(self, trial: Trial) -> dict[str, Any]:
        """Train and evaluate. Weights or probabilities that are no numbers end a trial as ``non_finite``: nothing it answers
        could be read, so that it is right on nothing and invalid on all."""
        wall, cpu = time.perf_counter(), time.process_time()
        model, watch = copy.deepcopy(self.model), Watch()
        finite = self._train(trial, model, watch)
        scores = self._evaluate_if(finite, model)
        return {
            "arm": trial.arm,
            "learning_rate": trial.learning_rate,
            "seed": trial.seed,
            **scores,
            "steps": len([step for step in watch.logged if "grad_norm" in step]),
            "series": _series(watch.logged),
            "wall_s": round(time.perf_counter() - wall, 2),
            "cpu_s": round(time.process_time() - cpu, 2),
            "commit": self.commit,
        }

    def _train(self, trial: Trial, model: Any, watch: Watch) -> bool:
        """Return whether the weights stayed finite."""
        config = config_of(trial, self.settings, model="start", template=self.template.name)
        with tempfile.TemporaryDirectory() as folder:
            trainer = build_trainer(
                self.rows,
                config,
                model,
                self.processor,
                self.template,
                Path(folder),
                callbacks=[watch],
                trl={"save_strategy": "no", "logging_nan_inf_filter": False},
                **ARMS[trial.arm].parts,
            )
            trainer.remove_callback(PrinterCallback)
            try:
                trainer.train()
            except RuntimeError as error:
                if not is_numeric_failure(error):
                    raise
                return False
        return watch.finite

    def _evaluate_if(self, finite: bool, model: Any) -> dict[str, Any]:
        try:
            if finite:
                return {"status": "finished", **self.evaluate(model, self.settings.num_votes)}
        except RuntimeError as error:
            if not is_numeric_failure(error):
                raise
        num_votes = 2 * len(self.test) * self.settings.num_votes
        return {"status": "non_finite", "num_votes": num_votes, "accuracy": 0.0, "invalid": 1.0, "answers": []}
