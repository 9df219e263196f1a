"""One trial of the method table: a recipe trained on a copy of the SFT judge until it has generated its budget of tokens."""

from __future__ import annotations

import copy
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PrinterCallback, TrainerCallback

from eval.studies.methods import ARMS, Settings, config_of
from eval.studies.plans import Trial
from eval.studies.trials import digest
from rewardlab.config import RLConfig, SFTConfig
from rewardlab.data.files import write_atomic
from rewardlab.data.pairs import read_pairs
from rewardlab.demo.build import TEST
from rewardlab.demo.server import favored_response
from rewardlab.errors import ConfigError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.metrics.accuracy import Labeled, invalid_rate, position_bias, swap_consistency
from rewardlab.models.checkpoints import commit, template_for
from rewardlab.models.loading import load_model
from rewardlab.samplers.base import Sampler
from rewardlab.samplers.hf import HFSampler
from rewardlab.samplers.self_verifying import SelfVerifying
from rewardlab.training.policy_gradient.critic import StopAtPlateau
from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.rl import build_trainer, hard_pairs, rl_rows
from rewardlab.training.run.folder import FINAL, is_finished
from rewardlab.training.sft import train_sft
from rewardlab.types import BOTH_ORDERS, Choice, Judgment, PreferencePair
from rewardlab.verdicts.parse import reasoning_of

VERIFYING = "verifying"  # folder of PAG's start


class Budget(TrainerCallback):
    """Stops once ``num_tokens`` are generated, and lowers the rate linearly to 0 until then, whatever a step costs a method."""

    def __init__(self, trainer: Any, num_tokens: float, *, decay: bool, spent: int = 0) -> None:
        """``spent`` tokens of the budget were generated before this trainer: by the critic's pre-training."""
        self._trainer, self._num_tokens, self._decay = trainer, num_tokens - spent, decay
        self._rates: list[float] = []
        trainer.add_callback(self)

    @property
    def left(self) -> float:
        """Share (1..0) of the budget that is left to this trainer."""
        return max(0.0, 1 - self._trainer.num_generated_tokens / max(1, self._num_tokens))

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        groups = self._trainer.optimizer.param_groups
        self._rates = self._rates or [group["lr"] for group in groups]
        for group, rate in zip(groups, self._rates, strict=True):
            group["lr"] = rate * (self.left if self._decay else 1.0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop |= self.left == 0


class MethodContext:
    """The SFT judge, its hard pairs, the held-out ones; every trial gets its own copy of the weights."""

    def __init__(self, run: Path, settings: Settings, out: Path, configs: Path) -> None:
        self.judge, train, test = run / "sft" / FINAL, run / "distill" / "distilled.parquet", run / "demo" / TEST
        if not is_finished(run / "sft") or not train.exists() or not test.exists():
            raise ConfigError(f"{run}: holds no finished quickstart; make one with `rewardlab quickstart --out {run}`")
        self.settings, self.out, self.configs = settings, out, configs
        self.files = (train, test, *sorted(configs.glob("*.yaml")))
        self.template = template_for(self.judge, None)
        self.model, self.processor = load_model(str(self.judge), device="cpu")
        self.pairs = read_pairs(train)
        self.test = read_pairs(test)[: settings.num_test]
        self.commit = commit()  # of the code in memory, whatever is done to the files meanwhile

    def identity(self) -> dict[str, Any]:
        """Arms and seeds may be added to a study; the judge, the pairs, the recipes and the settings are the same for all."""
        weights = digest(self.judge / "model.safetensors")
        return {"settings": self.settings.to_dict(), "judge": weights, **{path.name: digest(path) for path in self.files}}

    def start(self) -> dict[str, Any]:
        """The judge that the trials start from, measured; and PAG's, taught to verify its judgments from its own votes."""
        verifying = self.out / VERIFYING
        if not is_finished(verifying):
            self._teach_to_verify(verifying)
        verifier, _ = load_model(str(verifying / FINAL), device="cpu")
        num_votes = self.settings.num_start_votes
        return {
            "plain": self.evaluate(self.model, num_votes),
            "verifying": self.evaluate(verifier, num_votes),
            "verified": self.evaluate(verifier, num_votes, verify=True),
        }

    def _teach_to_verify(self, folder: Path) -> None:
        votes, pairs = folder / "votes.jsonl", [pair for pair in self.pairs if pair.judgment]
        sampler = HFSampler(self.model, self.processor, batch_size=512)
        judge = GenerativeJudge(sampler, self.template, max_tokens=self.settings.max_tokens)
        judgments = judge.compare_many(pairs, orders=[(pair.order,) for pair in pairs], num_votes=1, seed=self.settings.seed)
        write_votes(votes, judgments)
        config = SFTConfig(
            model=str(self.judge),
            template=self.template.name,
            learning_rate=self.settings.learning_rate,
            lr_scheduler="linear",
            max_steps=self.settings.verify_steps,
            batch_size=32,
            micro_batch_size=32,
            adam_beta2=0.98,
            save_steps=10_000,
            gradient_checkpointing=False,
        )
        train_sft(pairs, config, folder, votes=votes)

    def prepare(self, start: dict[str, Any]) -> None:
        self._verifying, _ = load_model(str(self.out / VERIFYING / FINAL), device="cpu")

    def evaluate(self, model: Any, num_votes: int, *, verify: bool = False) -> dict[str, Any]:
        """Sampled votes on the held-out pairs in both orders; an answer without a verdict is wrong. The same draws' seed for
        all."""
        sampler: Sampler = HFSampler(model.eval(), self.processor, batch_size=512)
        sampler = SelfVerifying(sampler) if verify else sampler
        judge = GenerativeJudge(sampler, self.template, max_tokens=self.settings.max_tokens)
        orders, seed = [BOTH_ORDERS] * len(self.test), self.settings.seed
        sampled = judge.compare_many(self.test, orders=orders, num_votes=num_votes, seed=seed)
        judge.temperature = 0.0
        greedy = judge.compare_many(self.test, orders=orders, num_votes=1, seed=seed)
        return scores_of(sampled, greedy, self.test)

    def run(self, trial: Trial) -> dict[str, Any]:
        """Train within the budget, and evaluate."""
        clock, cpu = time.perf_counter(), time.process_time()
        verifies = ARMS[trial.arm].recipe == "pag"
        model = copy.deepcopy(self._verifying if verifies else self.model)
        start = self.out / VERIFYING / FINAL if verifies else self.judge
        config = config_of(trial, self.settings, model=str(start), template=self.template.name, configs=self.configs)
        with tempfile.TemporaryDirectory() as folder:
            trained = self._train(config, model, Path(folder))
        trained |= {"train_s": round(time.perf_counter() - clock, 1), "train_cpu_s": round(time.process_time() - cpu, 1)}
        final = {"verified": self.evaluate(model, self.settings.num_votes, verify=True)} if verifies else {}
        return {
            "arm": trial.arm,
            "seed": trial.seed,
            **self.evaluate(model, self.settings.num_votes),
            **final,
            **trained,
            "wall_s": round(time.perf_counter() - clock, 1),
            "cpu_s": round(time.process_time() - cpu, 1),
            "commit": self.commit,
        }

    def _train(self, config: RLConfig, model: Any, folder: Path) -> dict[str, Any]:
        """Train, and return what it took. The critic's pre-training steps are part of the budget."""
        rows = rl_rows(hard_pairs(self.pairs, config), self.template, both_orders=True)
        spent, value_steps = 0, 0
        if config.value_pretrain_steps:
            trainer = self._trainer(
                rows,
                config,
                copy.deepcopy(model),
                folder / "value",
                callbacks=[StopAtPlateau(config.value_patience)],
                trl={"max_steps": config.value_pretrain_steps},
                value_only=True,
            )
            trainer.train()
            spent, value_steps = trainer.num_generated_tokens, trainer.state.global_step
            trainer.critic.save(folder / "critic")
            config = config.model_copy(update={"value_init": str(folder / "critic")})
        trainer = self._trainer(rows, config, model, folder / "rl")
        Budget(trainer, self.settings.num_tokens, decay=True, spent=spent)
        trainer.train()
        logged = [step["reward/accuracy"] for step in trainer.state.log_history if "reward/accuracy" in step]
        return {
            "num_tokens": spent + trainer.num_generated_tokens,
            "steps": trainer.state.global_step,
            "value_steps": value_steps,
            "right": logged,
        }

    def _trainer(
        self, rows: Any, config: RLConfig, model: Any, folder: Path, *, trl: dict[str, Any] | None = None, **more: Any
    ) -> PolicyTrainer:
        folder.mkdir(parents=True)
        arguments = {"save_strategy": "no", **(trl or {})}
        trainer = build_trainer(rows, config, model, self.processor, self.template, folder, trl=arguments, **more)
        trainer.remove_callback(PrinterCallback)
        return trainer


def write_votes(path: Path, judgments: Sequence[Judgment]) -> None:
    """Votes in the form `rewardlab bench run` leaves them."""
    lines: list[dict[str, Any]] = [{"identity": {}}]
    for row, judgment in enumerate(judgments):
        votes = [{"order": v.order, "choice": v.verdict.choice, "text": v.completion.text} for v in judgment.votes]
        lines.append({"pass": "votes", "row": row, "votes": votes})
    write_atomic(path, "".join(f"{json.dumps(line)}\n" for line in lines))


def scores_of(sampled: Sequence[Judgment], greedy: Sequence[Judgment], pairs: Sequence[PreferencePair]) -> dict[str, Any]:
    """Return a table's row from a judge's votes. Whether an order flips the winner is read from the greedy votes, of which
    there is one in each order: sampled ones also flip by chance."""

    def labeled(judgments: Sequence[Judgment]) -> list[Labeled]:
        return [Labeled(judgment, int(pair.preferred or 0), "") for judgment, pair in zip(judgments, pairs, strict=True)]

    items, firm = labeled(sampled), labeled(greedy)
    votes = [(vote, item.preferred) for item in items for vote in item.judgment.votes]
    right = [vote for vote, preferred in votes if vote.winner == preferred]
    sides = [favored_response(reasoning_of(vote.completion.text)) for vote in right]
    choices = [1 if vote.verdict.choice is Choice.FIRST else 2 for vote in right]
    winners_of = [[vote.winner for vote in item.judgment.votes] for item in firm]
    flipped = [len(set(winners)) == 2 for winners in winners_of if None not in winners]
    return {
        "num_votes": len(votes),
        "accuracy": len(right) / len(votes),
        "greedy_accuracy": float(np.mean([w == item.preferred for item, ws in zip(firm, winners_of, strict=True) for w in ws])),
        "swap_consistency": swap_consistency(firm),
        "flipped": sum(flipped) / max(1, len(flipped)),
        "position_bias": position_bias(items),
        "consistent": sum(a == b for a, b in zip(sides, choices, strict=True)) / max(1, len(right)),
        "invalid": invalid_rate(items),
        "length": float(np.mean([vote.completion.num_tokens for vote, _ in votes])),
        "answers": [vote.completion.text for vote, _ in votes[:3]],
    }
