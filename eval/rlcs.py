"""Does RLCS save tokens? `python -m eval.rlcs --run runs/quickstart --out runs/rlcs`, by hand. Results: eval/results/.

One SFT judge, one small set of pairs that is gone through several times, and the recipe `rl/rlcs` with and without its parts:
uniform sampling of every prompt, DAPO's refill, oversampling alone, and all of RLCS, with and without the distillation tags.
How many generated tokens, thrown away or not, does each take until the judge is right in a stated share of held-out judgments?
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import rewardlab  # noqa: F401  (before transformers, see rewardlab/models/torchvision_cpu.py)

# isort: split
import numpy as np
from transformers import PrinterCallback, TrainerCallback

from eval.rlcs_report import summarize, write_report
from eval.scripts import positive, run_script
from eval.studies.plans import Trial, changes_of, plan, refuse_other_arms
from eval.studies.runner import path_of, read_records, run_trials
from eval.studies.trials import digest
from rewardlab.config import RLConfig, load_yaml
from rewardlab.data.pairs import read_pairs
from rewardlab.demo.build import TEST
from rewardlab.errors import ConfigError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.models.checkpoints import commit, template_for
from rewardlab.models.loading import load_model
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.rl import build_trainer, hard_pairs, rl_rows
from rewardlab.training.run.folder import FINAL, is_finished
from rewardlab.types import BOTH_ORDERS

CONFIG = Path(__file__).parents[1] / "configs" / "rl" / "rlcs.yaml"
SECONDS_PER_1000_TOKENS = 1.0  # of one core, evaluations included: for the estimate that is printed first
LOGGED = ("sampling/mixed_frac", "sampling/oversampling", "sampling/discarded_groups", "sampling/short_frac", "reward/accuracy")
TIERS = ("very_hard", "hard", "medium", "easy")


@dataclass(frozen=True)
class Arm:
    """What an arm changes of the recipe; ``has_tags``: the sampler is told how hard the teacher found the pairs."""

    title: str
    changes: dict[str, Any] = field(default_factory=dict)
    has_tags: bool = True


ARMS = {
    "uniform": Arm("uniform sampling", {"dynamic_sampling": "off", "difficulty_weighted": False}),
    "refill": Arm("DAPO's refill", {"dynamic_sampling": "refill", "difficulty_weighted": False}),
    "oversample": Arm("oversampling alone", {"difficulty_weighted": False}),
    "rlcs": Arm("RLCS"),
    "without_tags": Arm("RLCS without the tags", has_tags=False),
}


@dataclass(frozen=True)
class Settings:
    """What all trials share. ``level`` was chosen before the first trial: see :mod:`eval.rlcs_report`."""

    num_tokens: int = 150_000  # generated in training by one trial
    num_pairs: int = 100  # that are trained on, in both orders: what is drawn is several passes over them
    rollout_batch_size: int = 256
    batch_size: int = 128
    learning_rate: float = 1e-4
    max_tokens: int = 64
    eval_tokens: int = 7_500  # generated between two evaluations
    num_test: int = 300  # held-out pairs, each in both orders, one sampled vote in each
    level: float = 0.85
    margin: float = 0.02  # below uniform sampling's last accuracy, where that does not reach the level
    seed: int = 1000  # of the pairs that are drawn, and of all evaluation


def config_of(trial: Trial, settings: Settings, *, model: str, template: str) -> RLConfig:
    """Return the config of a trial: the recipe, at a constant rate, until the tokens are spent."""
    recipe = {name: value for name, value in load_yaml(CONFIG).items() if name not in ("model", "template", "consistency")}
    values = {
        **recipe,
        "both_orders": True,
        "model": model,
        "template": template,
        "seed": trial.seed,
        "learning_rate": settings.learning_rate,
        **{"lr_scheduler": "constant", "warmup_ratio": 0.0, "min_lr_ratio": 0.0},
        "adam_beta2": 0.98,
        "rollout_batch_size": settings.rollout_batch_size,
        "batch_size": settings.batch_size,
        "micro_batch_size": min(64, settings.batch_size),
        "max_completion_length": settings.max_tokens,
        "max_steps": 10_000,
        "save_steps": 10_000,
        "gradient_checkpointing": False,
        "consistency": {"weight": 0.0},
        **ARMS[trial.arm].changes,
    }
    return RLConfig(**values)


class Curve(TrainerCallback):
    """Evaluates each time so many tokens were generated, at the end of a rollout batch, and ends when all are spent."""

    def __init__(self, trainer: Any, settings: Settings, evaluate: Any) -> None:
        self._trainer, self._settings, self._evaluate = trainer, settings, evaluate
        self.points: list[tuple[int, float]] = []
        trainer.add_callback(self)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        settings, spent = self._settings, self._trainer.num_generated_tokens
        if state.global_step % (settings.rollout_batch_size // settings.batch_size):
            return  # the second half of what was sampled is still to be trained on
        is_last = spent >= settings.num_tokens
        if is_last or spent - (self.points[-1][0] if self.points else 0) >= settings.eval_tokens:
            self.points.append((spent, self._evaluate(model)))
            model.train()
        control.should_training_stop |= is_last


class RLCSContext:
    """The SFT judge, the pairs of the study and the held-out ones; every trial gets its own copy of the weights."""

    def __init__(self, run: Path, settings: Settings) -> None:
        self.judge, train, test = run / "sft" / FINAL, run / "distill" / "distilled.parquet", run / "demo" / TEST
        if not is_finished(run / "sft") or not train.exists() or not test.exists():
            raise ConfigError(f"{run}: holds no quickstart up to SFT; make one with `rewardlab quickstart --out {run}`")
        self.settings, self.files = settings, (train, test, CONFIG)
        self.template = template_for(self.judge, None)
        self.model, self.processor = load_model(str(self.judge), device="cpu")
        labelled = [pair for pair in read_pairs(train) if pair.preferred is not None]
        self.pairs = random.Random(settings.seed).sample(labelled, settings.num_pairs)
        self.test = read_pairs(test)[: settings.num_test]
        self.commit = commit()  # of the code in memory, whatever is done to the files meanwhile

    def identity(self) -> dict[str, Any]:
        """Arms and seeds may be added to a study; the judge, the pairs, the recipe and the settings are the same for all."""
        weights = digest(self.judge / "model.safetensors")
        return {"settings": asdict(self.settings), "judge": weights, **{path.name: digest(path) for path in self.files}}

    def start(self) -> dict[str, Any]:
        """The judge that all trials start from: held out, and on the pairs of the study, eight votes in each order."""
        judged = self._votes(self.model, self.pairs, 8)
        rates = [
            sum(vote.winner == pair.preferred for vote in votes if vote.order is order) / 8
            for pair, votes in zip(self.pairs, judged, strict=True)
            for order in BOTH_ORDERS
        ]
        tags = [pair.attempts for pair in self.pairs]
        shares = {tag: tags.count(tag) / len(tags) for tag in sorted(set(tags))}
        return {"accuracy": self.evaluate(self.model), "pass_rates": rates, "tags": shares}

    def prepare(self, start: dict[str, Any]) -> None:
        """Nothing is made of the start."""

    def _votes(self, model: Any, pairs: Any, num_votes: int) -> list[Any]:
        judge = GenerativeJudge(
            HFSampler(model.eval(), self.processor, batch_size=512), self.template, max_tokens=self.settings.max_tokens
        )
        orders = [BOTH_ORDERS] * len(pairs)
        return [j.votes for j in judge.compare_many(pairs, orders=orders, num_votes=num_votes, seed=self.settings.seed)]

    def evaluate(self, model: Any) -> float:
        """Return the share of right votes on the held-out pairs, one in each order; one without a verdict is wrong."""
        judged = zip(self._votes(model, self.test, 1), self.test, strict=True)
        return float(np.mean([vote.winner == pair.preferred for votes, pair in judged for vote in votes]))

    def run(self, trial: Trial) -> dict[str, Any]:
        """Train until the tokens are spent, evaluating meanwhile."""
        clock, cpu = time.perf_counter(), time.process_time()
        arm, model = ARMS[trial.arm], copy.deepcopy(self.model)
        config = config_of(trial, self.settings, model=str(self.judge), template=self.template.name)
        pairs = hard_pairs(self.pairs, config)
        if not arm.has_tags:
            pairs = [replace(pair, attempts="") for pair in pairs]
        with tempfile.TemporaryDirectory() as folder:
            rows = rl_rows(pairs, self.template, both_orders=True)
            trl = {"save_strategy": "no"}
            trainer = build_trainer(rows, config, model, self.processor, self.template, Path(folder), trl=trl)
            trainer.remove_callback(PrinterCallback)
            curve = Curve(trainer, self.settings, self.evaluate)
            trainer.train()
        names = [*LOGGED, *(f"tier/{tier}{drawn}" for tier in TIERS for drawn in ("", "_drawn"))]
        return {
            "arm": trial.arm,
            "seed": trial.seed,
            "tokens": [tokens for tokens, _ in curve.points],
            "accuracy": [accuracy for _, accuracy in curve.points],
            "series": {name: [step[name] for step in trainer.state.log_history if name in step] for name in names},
            "num_tokens": trainer.num_generated_tokens,
            "steps": trainer.state.global_step,
            "wall_s": round(time.perf_counter() - clock, 1),
            "cpu_s": round(time.process_time() - cpu, 1),
            "changes": changes_of(ARMS[trial.arm]),
            "commit": self.commit,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"), help="a quickstart, finished up to SFT")
    parser.add_argument("--out", type=Path, default=Path("runs/rlcs"))
    parser.add_argument("--arms", default=",".join(ARMS), help="some of the arms, comma-separated")
    parser.add_argument("--seeds", type=positive, default=5)
    parser.add_argument("--workers", type=positive, default=2, help="processes of one thread each")
    parser.add_argument("--set", default="{}", help="other settings, JSON")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--name", default="rlcs", help="of the files in --results")
    options = parser.parse_args()
    try:
        settings = Settings(**json.loads(options.set))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"--set {options.set}: {error}; expected JSON with settings of {Settings.__name__}") from error
    trials = plan(ARMS, options.arms.split(","), range(options.seeds))
    refuse_other_arms(read_records(options.out), ARMS)
    todo = [trial for trial in trials if not path_of(trial, options.out).exists()]
    minutes = len(todo) * settings.num_tokens / 1000 * SECONDS_PER_1000_TOKENS / 60 / options.workers
    print(
        f"{len(trials)} trials of {settings.num_tokens:,} tokens, {len(todo)} to do: about {minutes:.0f} minutes on "
        f"{options.workers} processes of one thread; a finished trial is a file in {options.out}/trials",
        flush=True,
    )
    start = run_trials(partial(RLCSContext, options.run, settings), trials, options.out, workers=options.workers)
    summary = summarize(read_records(options.out), start, {name: arm.title for name, arm in ARMS.items()})
    print(write_report(summary, options.results, options.name))


if __name__ == "__main__":
    run_script(main)
