"""One trial of the study of self-improvement: its stages in turn, each kept in a folder and evaluated."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from transformers import PrinterCallback

from eval.studies.method_evaluation import VOTES, Evaluator
from eval.studies.method_trials import AtBudgets, SeriesLog
from eval.studies.plans import Trial, changes_of
from eval.studies.runner import make_once
from eval.studies.self_improvement import ARMS, Settings, rl_config, sft_config, stages_of
from eval.studies.trials import digest
from eval.studies.vote_reward import VoteReward
from eval.studies.worlds import World, require_recipes
from rewardlab.data.pairs import read_pairs
from rewardlab.demo.base_model import save_model
from rewardlab.distill.self_distill import DISTILLED, RejectionRules, self_distill, set_hot_token
from rewardlab.errors import RewardlabError
from rewardlab.models.checkpoints import commit, template_for
from rewardlab.models.loading import load_model
from rewardlab.training.rl import build_trainer, hard_pairs, judgment_reward_of, rl_rows
from rewardlab.training.run.folder import FINAL
from rewardlab.training.sft import train_sft

CHAINS = "chains"  # folder of the trials' stages
RECIPE = "stable_reinforce.yaml"


class SelfImprovementContext:
    """The SFT judge and its pairs. A stage that is done is read from its folder, so that a killed trial goes on after it."""

    def __init__(self, run: Path, settings: Settings, out: Path, configs: Path) -> None:
        self.world = World.of(run)
        self.settings, self.out, self.configs = settings, out, configs
        require_recipes(configs, {Path(RECIPE).stem})
        self.template = template_for(self.world.judge, None)
        _, self.processor = load_model(str(self.world.judge), device="cpu")
        self.pairs = read_pairs(self.world.train)
        self.test = read_pairs(self.world.test)[: settings.num_test]
        training = settings.training
        self.evaluator = Evaluator(self.processor, self.template, training.max_tokens, VOTES, training.seed)
        self.commit = commit()

    def identity(self) -> dict[str, Any]:
        """The judge, the pairs, the recipe and the settings are the same for all trials; arms and seeds may be added."""
        return {"settings": self.settings.to_dict(), "recipe": digest(self.configs / RECIPE), **self.world.digests()}

    def start(self) -> dict[str, Any]:
        """The judge that all trials start from."""
        return {"scores": self.measure(self.world.judge)}

    def prepare(self, start: dict[str, Any]) -> None:
        """Nothing is shared between trials but what is read already."""

    def measure(self, checkpoint: Path) -> dict[str, Any]:
        model, _ = load_model(str(checkpoint), device="cpu")
        return self.scores(model)

    def scores(self, model: Any) -> dict[str, Any]:
        """Return a row of the table; one vote and the majority of 15 are of the same judgments."""
        return self.evaluator.scores(model, self.test, num_vote_pairs=len(self.test))

    def run(self, trial: Trial) -> dict[str, Any]:
        """Return the record of a trial, its stages made where they are not there yet."""
        checkpoint, rows = self.world.judge, list[dict[str, Any]]()
        for stage in stages_of(trial.arm):
            folder = self.out / CHAINS / trial.name / stage
            made = make_once(folder / "stage.json", lambda c=checkpoint, s=stage, f=folder: self._make(trial, s, c, f))
            rows += made["rows"]
            checkpoint = Path(made["checkpoint"])
        return {
            "arm": trial.arm,
            "seed": trial.seed,
            "changes": changes_of(ARMS[trial.arm]),
            "rows": rows,
            "cpu_s": round(sum(row["cpu_s"] for row in rows), 1),
            "wall_s": round(sum(row["wall_s"] for row in rows), 1),
            "commit": self.commit,
        }

    def _make(self, trial: Trial, stage: str, checkpoint: Path, folder: Path) -> dict[str, Any]:
        """Make one stage from ``checkpoint``; what a killed process left of it is removed."""
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
        clock, cpu = time.perf_counter(), time.process_time()
        maker = {"distil": self._distil, "sft": self._sft}.get(stage, self._rl)
        made = maker(trial, checkpoint, folder)
        spent = {"wall_s": round(time.perf_counter() - clock, 1), "cpu_s": round(time.process_time() - cpu, 1)}
        shares = {name: round(value / len(made["rows"]), 2) for name, value in spent.items()}
        return {**made, "rows": [{"stage": stage, **row, **shares} for row in made["rows"]]}

    def _rl(self, trial: Trial, checkpoint: Path, folder: Path) -> dict[str, Any]:
        """Return a row for each budget of a round of RL, and the checkpoint at its end."""
        arm, s = ARMS[trial.arm], self.settings
        config = rl_config(trial.arm, trial.seed, s, model=str(checkpoint), template=self.template.name, configs=self.configs)
        model, _ = load_model(str(checkpoint), device="cpu")
        work = folder / "work"
        work.mkdir(parents=True)
        reward = judgment_reward_of(config, self.template, model, work)
        series = SeriesLog()
        trainer = build_trainer(
            rl_rows(hard_pairs(self.pairs, config), self.template, both_orders=True),
            config,
            model,
            self.processor,
            self.template,
            work,
            reward=VoteReward(reward, arm.vote_weight) if arm.vote_weight else reward,
            callbacks=[series],
            trl={"save_strategy": "no"},
        )
        trainer.remove_callback(PrinterCallback)
        series.num_tokens = lambda: trainer.num_generated_tokens
        budgets = [s.num_tokens * multiple for multiple in arm.budgets]
        at_budgets = AtBudgets(trainer, budgets, lambda budget: self.scores(model), config.steps_of_rollouts)
        trainer.add_callback(at_budgets)
        trainer.train()
        reward.close()
        if not series.finite:
            raise RewardlabError(f"{trial.name}: the weights are no numbers after {trainer.num_generated_tokens:,} tokens")
        save_model(folder / FINAL, model, self.processor)
        return {"checkpoint": str(folder / FINAL), "rows": at_budgets.results, "series": series.columns()}

    def _distil(self, trial: Trial, checkpoint: Path, folder: Path) -> dict[str, Any]:
        """Return what was kept of the judge's own judgments; the next stage is SFT of the judge that all trials start from."""
        s = self.settings
        model, _ = load_model(str(checkpoint), device="cpu")
        judge = self.evaluator.judge(model, verify=False)
        if (hot := ARMS[trial.arm].hot_token) is not None:
            set_hot_token(judge, hot)
        rules = RejectionRules(s.samples, s.keep, s.alpha, hot_token=hot, max_tokens=s.training.max_tokens, seed=trial.seed)
        statistics = self_distill(self.pairs[: s.num_pairs], judge, rules, folder / "kept")
        names = ("num_pairs", "num_votes", "right", "num_pairs_kept", "num_kept", "distinct_openings")
        return {"checkpoint": str(folder / "kept" / DISTILLED), "rows": [{name: statistics[name] for name in names}]}

    def _sft(self, trial: Trial, data: Path, folder: Path) -> dict[str, Any]:
        """Return the start's judge after SFT on the judgments in ``data``."""
        judged = read_pairs(data)
        config = sft_config(trial.seed, self.settings, len(judged), model=str(self.world.judge), template=self.template.name)
        final = train_sft(judged, config, folder / "run")
        return {"checkpoint": str(final), "rows": [{"steps": config.max_steps, **self.measure(final)}]}
