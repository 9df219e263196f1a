"""One trial of the method study: a recipe trained on a copy of the SFT judge, which is evaluated at every budget of tokens."""

from __future__ import annotations

import copy
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PrinterCallback, TrainerCallback
from trl import DPOConfig as TRLDPOConfig
from trl import SFTConfig as TRLSFTConfig

from eval.studies.method_evaluation import Evaluator, LocalChecker
from eval.studies.method_report import summarize, write_tables
from eval.studies.methods import (
    ARMS,
    BASE,
    VALIDATION_SEED,
    Arm,
    Settings,
    choose_rates,
    config_of,
    critic_config,
    preference_config,
    study_plan,
    validation_plan,
)
from eval.studies.study import (
    FiniteWeights,
    Quickstart,
    Trial,
    check_arms,
    config_digest,
    digest,
    is_numeric_failure,
    make_once,
    open_study,
    read_records,
    rounded,
    run_trials,
)
from rewardlab.config import RLConfig, SFTConfig, TrainConfig
from rewardlab.data.files import read_complete_lines, write_atomic
from rewardlab.data.pairs import read_pairs
from rewardlab.errors import ConfigError, RewardlabError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.models.checkpoints import commit, template_for, write_card
from rewardlab.models.families import end_token_ids
from rewardlab.models.loading import load_model
from rewardlab.rewards.judgment import terms_of
from rewardlab.rewards.scorer import JudgmentReward, JudgmentScorer
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.dpo import PreferenceTrainer, comparison_dataset, judgment_pairs_of_votes
from rewardlab.training.policy_gradient.build import pretrain_value
from rewardlab.training.rl import build_trainer, hard_pairs, rl_rows
from rewardlab.training.run.folder import FINAL, HEALTH, METRICS, SAMPLES, VALUE, common_arguments
from rewardlab.training.run.rows import PromptReader, SFTDialogue, dialogue_dataset
from rewardlab.training.run.watchdog import Watchdog
from rewardlab.training.sft import ResumableSFTTrainer, train_sft
from rewardlab.types import BOTH_ORDERS, Judgment, PreferencePair

VERIFYING, CRITICS, KEPT = "verifying", "critics", "kept"  # folders of PAG's start, fitted critics, and judges that stay
VALIDATION, UNLIKE = "validation.parquet", "unlike.parquet"  # beside the test pairs

# The metrics of every rollout batch that a record keeps, if the method has them.
SERIES = {
    "right": "reward/accuracy",
    "last_right": "verify/final_accuracy",
    "explained": "value/explained_variance",
    "position_bias": "advantage/position_bias",
    "first_tenth": "advantage/first_tenth",
    "last_tenth": "advantage/last_tenth",
    "entropy": "entropy",
    "length": "completions/mean_length",
    "invalid": "reward/invalid_frac",
    "first_frac": "verdict/first_frac",
    "grad_norm": "grad_norm",
    "clip_frac": "loss/clip_frac",
    "preclip_frac": "loss/preclip_frac",
    "deleted_frac": "advantage/outlier_frac_negative",
}
OF_LATER_STEPS = ("clip_frac", "preclip_frac")  # 0 at the first step on rollouts: a record has the largest of their steps
NOTHING: dict[str, Any] = {  # of a judge whose weights are not finite: right on nothing and invalid on all
    **dict.fromkeys(("accuracy", "greedy_accuracy", "swap_consistency", "flipped", "consistent", "length", "vote_15"), 0.0),
    **{"num_votes": 0, "invalid": 1.0, "position_bias": None, "answers": [], "unlike": 0.0},
}
NO_REVISION = dict.fromkeys(("first", "last", "lost", "mended", "revised"), 0.0)  # of a judge that should have verified


class SeriesLog(FiniteWeights):
    """Keeps :data:`SERIES` beside the tokens generated so far, and stops a training whose weights are no longer numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float | None]] = []
        self.num_tokens: Callable[[], int] = lambda: 0
        self.cpu_seconds: Callable[[], float] = lambda: 0.0

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        logs = logs or {}
        row = {key: rounded(logs.get(name)) for key, name in SERIES.items()}
        if {"reward/accuracy", "value/explained_variance"} & logs.keys():
            self.rows.append({"tokens": self.num_tokens(), "cpu_s": round(self.cpu_seconds(), 1), **row})
        elif self.rows:  # a later step on the same rollouts
            self.rows[-1] |= {key: max(self.rows[-1][key] or 0.0, row[key]) for key in OF_LATER_STEPS if row[key] is not None}

    def columns(self) -> dict[str, list[float | None]]:
        """Return the rows by name, without what no row has."""
        names = [name for name in ("tokens", "cpu_s", *SERIES) if any(row[name] is not None for row in self.rows)]
        return {name: [row[name] for row in self.rows] for name in names}


class AtBudgets(TrainerCallback):
    """Calls ``evaluate(budget)`` when a budget of generated tokens is reached and the rollout batch is trained on, after
    ``steps_per_batch`` optimizer steps; stops after the largest budget, or after ``most_steps``."""

    def __init__(
        self,
        trainer: Any,
        budgets: Sequence[int],
        evaluate: Callable[[int], dict[str, Any]],
        steps_per_batch: int,
        most_steps: int | None = None,
    ) -> None:
        self._trainer, self._left, self._evaluate = trainer, sorted(budgets), evaluate
        self._steps_per_batch, self._most_steps = steps_per_batch, most_steps
        self._began, self._cpu_elsewhere = time.process_time(), 0.0
        self.results: list[dict[str, Any]] = []

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the training so far, without its evaluations."""
        return time.process_time() - self._began - self._cpu_elsewhere

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step % self._steps_per_batch:
            return
        ends = self._most_steps is not None and state.global_step >= self._most_steps
        while self._left and (ends or self._trainer.num_generated_tokens >= self._left[0]):
            began = time.process_time()
            facts = {
                "budget": self._left[0],
                "num_tokens": self._trainer.num_generated_tokens,
                "steps": state.global_step,
                "train_cpu_s": round(self.cpu_seconds(), 1),
            }
            self.results.append(facts | self._evaluate(facts["budget"]))
            self._left.pop(0)  # only now: a budget whose evaluation fails counts as not reached
            model.train()
            self._cpu_elsewhere += time.process_time() - began
        control.should_training_stop |= not self._left

    def fail_rest(self, *, verifies: bool) -> None:
        """Record the budgets that a training did not reach because its weights were not finite."""
        steps, cpu = self._trainer.state.global_step, round(self.cpu_seconds(), 1)
        for budget in self._left:
            num_tokens = self._trainer.num_generated_tokens
            row = {"budget": budget, "num_tokens": num_tokens, "steps": steps, "train_cpu_s": cpu, **NOTHING}
            self.results.append(row | ({"revision": NO_REVISION} if verifies else {}))


class EndsAfter(TrainerCallback):
    """Ends a training once this process has used ``seconds`` of CPU."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop |= time.process_time() >= self._seconds


class MethodContext:
    """The SFT judge, its hard pairs and the held-out ones; every trial gets its own copy of the weights."""

    def __init__(self, run: Path, settings: Settings, out: Path, arms: Mapping[str, Arm] = ARMS) -> None:
        self.quickstart, self.settings, self.out, self.arms = Quickstart(run), settings, out, arms
        test_path, train_path = self.quickstart.test, self.quickstart.distilled
        self.quickstart.require("sft", files=(train_path, test_path))
        self.judge = self.quickstart.judge("sft")
        own, unlike = test_path.with_name(VALIDATION), test_path.with_name(UNLIKE)
        validation_path = own if own.exists() else test_path  # the last test pairs, unless there are others
        self.files = {"train": train_path, "validation": validation_path, "test": test_path}
        self.files |= {"unlike": unlike} if unlike.exists() else {}
        self.template = template_for(self.judge, None)
        self.model, self.processor = load_model(str(self.judge), device="cpu")
        self.pairs, test, validation = read_pairs(train_path), read_pairs(test_path), read_pairs(validation_path)
        for path, pairs, num in ((test_path, test, settings.num_test), (validation_path, validation, settings.num_validation)):
            if len(pairs) < num:
                raise ConfigError(f"{path}: {len(pairs):,} pairs, fewer than the {num:,} that the study judges")
        self.test, self.validation = test[: settings.num_test], validation[-settings.num_validation :]
        if {pair.pair_id for pair in self.test} & {pair.pair_id for pair in self.validation}:
            raise ConfigError(
                f"{test_path}: {len(test):,} pairs are fewer than {settings.num_test} to test and "
                f"{settings.num_validation} to choose a rate by; write others to {VALIDATION} beside it"
            )
        self.unlike = read_pairs(unlike)[: settings.num_unlike] if unlike.exists() else []
        self.evaluator = Evaluator(self.processor, self.template, settings.max_tokens, settings.num_votes, settings.seed)
        self.commit = commit()  # of the code in memory, whatever happens to the files meanwhile

    def identity(self) -> dict[str, Any]:
        files = {name: digest(path) for name, path in self.files.items()}
        return {"settings": asdict(self.settings), "judge": digest(self.judge), **files}

    def config_of(self, trial: Trial) -> TrainConfig:
        arm = self.arms[trial.arm]
        make = preference_config if arm.is_preference else config_of
        return make(arm, trial, self.settings, model=str(self.start_of(trial.arm)), template=self.template.name)

    def start_of(self, arm: str) -> Path:
        """Return the checkpoint that an arm starts from; :meth:`verifying` makes PAG's."""
        is_pag = self.arms[arm].recipe == "pag"
        return self.out / VERIFYING / "sft" / FINAL if is_pag else self.start_named(self.arms[arm].start)

    def start(self) -> dict[str, Any]:
        return {"plain": self.measure(self.model, last=True)}

    def prepare(self, start: dict[str, Any]) -> None:
        """Nothing: the first trial that needs a critic or PAG's start makes it."""

    def measure(self, model: Any, *, last: bool, verify: bool = False) -> dict[str, Any]:
        """Return a row of the table; ``last``: with the majority of 15, and the unlike pairs if there are any."""
        num_vote_pairs, evaluator = self.settings.num_vote_pairs if last else 0, self.evaluator_of(verify=verify)
        row = evaluator.scores(model, self.test, verify=verify, num_vote_pairs=num_vote_pairs)
        if last and self.unlike:
            row["unlike"] = evaluator.greedy_accuracy(model, self.unlike, verify=verify)
        return row

    def evaluator_of(self, *, verify: bool) -> Evaluator:
        """Return the evaluator; turns of a judge that verifies have a length of their own."""
        return replace(self.evaluator, max_tokens=self.settings.verify_max_tokens) if verify else self.evaluator

    def scores_of_start(self, arm: Arm) -> dict[str, Any] | None:
        """Return the scores of an arm's own start, measured once; None for the SFT judge's, and for a base model's, which
        gives no verdict."""
        if arm.start in ("sft", "base"):
            return None
        path = self.start_named(arm.start)
        return make_once(
            self.out / VERIFYING / f"{arm.start}.json", lambda: self.measure(load_model(str(path), device="cpu")[0], last=True)
        )

    def start_named(self, name: str) -> Path:
        """Return a checkpoint of the quickstart, ``sft`` or ``base``."""
        return {"sft": self.judge, "base": self.quickstart.base}[name]

    def verifying(self) -> dict[str, Any]:
        """Return the scores of PAG's start, made once: taught to verify its judgments from its own votes, right and wrong."""
        folder = self.out / VERIFYING

        def make() -> dict[str, Any]:
            began = time.process_time()
            self._teach_to_verify(folder)
            cpu_s = round(time.process_time() - began, 1)
            model, _ = load_model(str(folder / "sft" / FINAL), device="cpu")
            return {"cpu_s": cpu_s, **self.measure(model, last=True, verify=True)}

        return make_once(folder / "scores.json", make)

    def _teach_to_verify(self, folder: Path) -> None:
        votes, pairs = folder / "votes.jsonl", [pair for pair in self.pairs if pair.judgment]
        voted = pairs[: self.settings.verify_pairs]
        write_votes(votes, self.votes_of_start(voted, self.settings.verify_votes))
        config = SFTConfig(
            model=str(self.judge),
            template=self.template.name,
            learning_rate=self.settings.verify_learning_rate,
            lr_scheduler="linear",
            max_steps=self.settings.verify_steps,
            batch_size=32,
            micro_batch_size=32,
            micro_batch_tokens=self.settings.micro_batch_tokens,
            adam_beta2=0.98,
            save_steps=10_000,
            gradient_checkpointing=False,
        )
        shutil.rmtree(folder / "sft", ignore_errors=True)  # of a start that was interrupted
        train_sft(pairs, config, folder / "sft", votes=votes)

    def critic(self, arm: str, seed: int) -> dict[str, Any]:
        """Return a fitted critic's folder and the facts of its fit, made once per seed and number of steps. All seeds share
        PAG's: three turns make it expensive."""
        recipe, num_steps = (
            "pag" if self.arms[arm].recipe == "pag" else "vc_ppo",
            self.arms[arm].fit_steps or self.settings.value_steps,
        )
        seed = VALIDATION_SEED if recipe == "pag" else seed
        start = {"model": str(self.start_of(arm)), "template": self.template.name}
        config = critic_config(recipe, seed, self.settings, num_steps=num_steps, **start)
        folder = self.out / CRITICS / f"{recipe}-{config_digest(config)[:8]}-{seed}"  # another recipe is another critic

        def make() -> dict[str, Any]:
            shutil.rmtree(folder / VALUE, ignore_errors=True)  # of a fit that was interrupted
            folder.mkdir(parents=True, exist_ok=True)
            began = time.process_time()
            path = pretrain_value(
                partial(build_trainer, self.rows(config), template=self.template), config, folder, data="study"
            )
            rows = read_complete_lines(folder / VALUE / METRICS)
            return {"path": str(path), "cpu_s": round(time.process_time() - began, 1), **fit_facts(rows)}

        return make_once(folder / "fit.json", make)

    def process_model(self) -> Path:
        """Return a model of step labels. Raise ConfigError for a demonstration whose steps have no truth."""
        raise ConfigError("an arm needs labels of steps, which this demonstration does not have; leave it out")

    def rows(self, config: RLConfig, pairs: Sequence[PreferencePair] | None = None) -> Any:
        return rl_rows(hard_pairs(self.pairs, config) if pairs is None else pairs, self.template, both_orders=True)

    def build(self, config: RLConfig, arm: Arm) -> Callable[..., Any]:
        """Return what makes a trainer of a model, given its folder and its callbacks."""
        rows = self.rows(config, self.undecided() if arm.on_votes else None)
        return partial(build_trainer, rows, config, processor=self.processor, template=self.template)

    def votes_of_start(self, pairs: Sequence[PreferencePair], num_votes: int) -> list[Judgment]:
        """Return ``num_votes`` judgments of the SFT judge on each pair, in the order of its own judgment."""
        sampler = HFSampler(self.model.eval(), self.processor, batch_size=512)
        judge = GenerativeJudge(sampler, self.template, max_tokens=self.settings.max_tokens)
        orders = [(pair.order,) for pair in pairs]
        return judge.compare_many(pairs, orders=orders, num_votes=num_votes, seed=self.settings.seed)

    def undecided(self) -> list[PreferencePair]:
        """Return the pairs of which the start judges some votes right and some wrong, found once."""
        pairs = [pair for pair in self.pairs if pair.preferred is not None][: self.settings.verify_pairs]

        def make() -> dict[str, Any]:
            num_votes = self.settings.verify_votes
            judged = self.votes_of_start(pairs, num_votes)
            right = [sum(v.winner == p.preferred for v in j.votes) for j, p in zip(judged, pairs, strict=True)]
            return {"pair_ids": [p.pair_id for p, number in zip(pairs, right, strict=True) if 0 < number < num_votes]}

        found = set(make_once(self.out / VERIFYING / "undecided.json", make)["pair_ids"])
        return [pair for pair in pairs if pair.pair_id in found]

    def run(self, trial: Trial) -> dict[str, Any]:
        """Train up to the largest budget and evaluate at every one; a validation trial ends at the smallest."""
        arm, is_validation = self.arms[trial.arm], trial.seed >= VALIDATION_SEED
        if arm.is_preference:
            return self._prefer(trial)
        verifies = arm.recipe == "pag"
        config = config_of(arm, trial, self.settings, model=str(self.start_of(trial.arm)), template=self.template.name)
        own_start = self.verifying() if verifies else self.scores_of_start(arm)
        fit = self.critic(trial.arm, trial.seed) if arm.is_fitted else None
        if fit is not None:
            config = config.model_copy(update={"value_init": fit["path"]})
        if arm.process:
            config = config.model_copy(update={arm.process: str(self.process_model())})
        path = self.start_of(trial.arm)
        model = copy.deepcopy(self.model) if path == self.judge else load_model(str(path), device="cpu")[0]
        budgets = self.settings.budgets[:1] if is_validation else self.settings.budgets

        def evaluate(budget: int) -> dict[str, Any]:
            if is_validation:
                return self.evaluator_of(verify=verifies).scores(model, self.validation, verify=verifies)
            return self.measure(model, last=budget == budgets[-1], verify=verifies)

        reward = partial(self._reward, trial, config, model)
        build, most_steps = self.build(config, arm), self.settings.most_steps
        trained = train_to_budgets(build, config, model, budgets, evaluate, reward, most_steps)
        if arm.keep and trained["status"] == "finished" and not is_validation:
            folder = self.out / KEPT / trial.name
            model.save_pretrained(folder)
            self.processor.save_pretrained(folder)
            write_card(folder, template=self.template, stage="rl")
        return {
            **trained,
            "fit": None if fit is None else {name: value for name, value in fit.items() if name != "path"},
            "start": own_start,
            "commit": self.commit,
        }

    def _prefer(self, trial: Trial) -> dict[str, Any]:
        """Train the judge on its own votes, for every budget anew: as many tokens of votes, and as many CPU seconds with
        sampling as StableReinforce took for the smallest budget, in proportion."""
        is_validation = trial.seed >= VALIDATION_SEED
        budgets = self.settings.budgets[:1] if is_validation else self.settings.budgets
        base = [record for record in read_records(self.out) if record["arm"] == BASE and record["seed"] >= VALIDATION_SEED]
        if not base:
            raise ConfigError(f"arm {trial.arm}: takes the time of {BASE}, which has not run; add that arm")
        seconds = float(np.mean([record["budgets"][0]["train_cpu_s"] for record in base]))
        results, finite = [], True
        for budget in budgets:
            facts, model = self._learn_from_votes(trial, budget, seconds * budget / self.settings.budgets[0])
            ended = all(bool(torch.isfinite(weight).all()) for weight in model.parameters())
            finite &= ended
            scores: Callable[[], dict[str, Any]] = (
                partial(self.evaluator.scores, model, self.validation)
                if is_validation
                else partial(self.measure, model, last=budget == budgets[-1])
            )
            results.append(facts | (scores() if ended else NOTHING))
        nothing = {"explained": None, "events": [], "series": {"tokens": []}, "fit": None, "start": None}
        status = "finished" if finite else "non_finite"
        return {"status": status, "budgets": results, **nothing, "commit": self.commit}

    def _learn_from_votes(self, trial: Trial, budget: int, seconds: float) -> tuple[dict[str, Any], Any]:
        """Return the facts of a training on votes with ``budget`` tokens, which ends after CPU ``seconds``, and its model."""
        settings, began = self.settings, time.process_time()
        config = preference_config(self.arms[trial.arm], trial, settings, model=str(self.judge), template=self.template.name)
        start = config_of(self.arms[BASE], trial, settings, model=str(self.judge), template=self.template.name)
        pairs = list(hard_pairs(self.pairs, start))
        random.Random(trial.seed).shuffle(pairs)
        judge = GenerativeJudge(
            HFSampler(self.model, self.processor, batch_size=512), self.template, max_tokens=settings.max_tokens
        )
        judgments, num_tokens, at_once = list[Judgment](), 0, settings.rollout_batch_size // (2 * settings.group)
        while num_tokens < budget and (shown := pairs[len(judgments) : len(judgments) + at_once]):
            seed = 1000 * trial.seed + len(judgments)
            made = judge.compare_many(shown, orders=[BOTH_ORDERS] * len(shown), num_votes=settings.group, seed=seed)
            num_tokens += sum(vote.completion.num_tokens for judgment in made for vote in judgment.votes)
            judgments += made
        model, ends = copy.deepcopy(self.model), EndsAfter(began + seconds)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder)
            reader, shared = PromptReader(pairs, self.template), common_arguments(config, out) | {"save_strategy": "no"}
            more = {"model": model.train(), "processing_class": self.processor, "callbacks": [ends]}
            if {*config.losses} == {"sft"}:  # all right votes, those on pairs without a wrong one too
                learnt = [
                    SFTDialogue(number, vote.order, vote.completion.text)
                    for number, (pair, judgment) in enumerate(zip(pairs, judgments, strict=False))
                    for vote in judgment.votes
                    if vote.winner == pair.preferred
                ]
                trainer: Any = ResumableSFTTrainer(
                    args=TRLSFTConfig(max_length=None, **shared), train_dataset=dialogue_dataset(reader, learnt), **more
                )
            else:
                write_votes(out / "votes.jsonl", judgments)
                voted = pairs[: len(judgments)]
                learnt = judgment_pairs_of_votes(voted, out / "votes.jsonl", config.comparisons_per_order)
                trainer = PreferenceTrainer(
                    ref_model=copy.deepcopy(self.model) if config.has_reference else None,
                    args=TRLDPOConfig(
                        max_length=None, **shared | {"per_device_train_batch_size": config.micro_batch_size // 2}
                    ),
                    train_dataset=comparison_dataset(reader, learnt),
                    config=config,
                    **more,
                )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        facts = {"budget": budget, "num_tokens": num_tokens, "steps": trainer.state.global_step}
        facts |= {"comparisons": len(learnt), "epochs": rounded(trainer.state.epoch)}
        return facts | {"train_cpu_s": round(time.process_time() - began, 1)}, model

    def _reward(self, trial: Trial, config: RLConfig, model: Any, out: Path) -> JudgmentReward | None:
        """Return the reward of an arm with the consistency reward; None for the config's own."""
        if not self.arms[trial.arm].consistency:
            return None
        consistency = {"weight": self.settings.consistency_weight}
        terms = terms_of(RLConfig.model_validate({"format_weight": config.format_weight, "consistency": consistency}))
        scorer = JudgmentScorer(self.template.verdict_format, LocalChecker())
        return JudgmentReward(scorer, None, terms, ends=end_token_ids(model), samples=out / SAMPLES)


def train_to_budgets(
    build: Callable[..., Any],
    config: RLConfig,
    model: Any,
    budgets: Sequence[int],
    evaluate: Callable[[int], dict[str, Any]],
    make_reward: Callable[[Path], JudgmentReward | None] = lambda out: None,
    most_steps: int | None = None,
) -> dict[str, Any]:
    """Train ``model`` in place and return the scores at every budget, the series of the training, and the watchdog's events.

    ``build`` makes the trainer; ``make_reward`` a reward that is not the config's own, given a folder for its samples.
    """
    series = SeriesLog()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        reward = make_reward(out)
        trainer = build(
            model=model,
            out=out,
            reward=reward,
            callbacks=[series, Watchdog(config.health, out, bootstraps=config.bootstraps)],
            trl={"save_strategy": "no", "logging_nan_inf_filter": False},
        )
        trainer.remove_callback(PrinterCallback)
        series.num_tokens = lambda: trainer.num_generated_tokens
        at_budgets = AtBudgets(trainer, budgets, evaluate, config.steps_of_rollouts, most_steps)
        series.cpu_seconds = at_budgets.cpu_seconds
        trainer.add_callback(at_budgets)
        try:
            trainer.train()
        except RuntimeError as error:
            if not is_numeric_failure(error):
                raise
            series.finite = False
        finally:
            if reward is not None:
                reward.close()
        if series.finite and len(at_budgets.results) < len(budgets):
            raise ConfigError(
                f"the training ended after {trainer.num_generated_tokens:,} tokens, before its budget of {max(budgets):,}: "
                f"{len(trainer.train_dataset):,} prompts do not fill a batch of {config.rollout_batch_size} rollouts"
            )
        at_budgets.fail_rest(verifies=config.self_verify)
        events = read_complete_lines(out / HEALTH)
    explained = [row["explained"] for row in series.rows if row["explained"] is not None]
    return {
        "status": "finished" if series.finite else "non_finite",
        "budgets": at_budgets.results,
        "explained": {"first": explained[0], "last": float(np.mean(explained[-3:]))} if explained else None,
        "events": [{name: event[name] for name in ("step", "signs", "message")} for event in events],
        "series": series.columns(),
    }


def fit_facts(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the steps and tokens of a critic's fit and how well it explains fresh rollouts, from the run's metrics."""
    fresh = [row for row in rows if row.get("value/explained_variance") is not None]
    return {
        "steps": max((row["step"] for row in rows), default=0),
        "num_tokens": round(sum(row.get("tokens/generated") or 0 for row in rows)),
        "explained": [rounded(row["value/explained_variance"]) for row in fresh],
    }


def write_votes(path: Path, judgments: Sequence[Judgment]) -> None:
    """Write votes in the format of `rewardlab bench run`."""
    lines: list[dict[str, Any]] = [{"identity": {}}]
    for row, judgment in enumerate(judgments):
        votes = [{"order": v.order, "choice": v.verdict.choice, "text": v.completion.text} for v in judgment.votes]
        lines.append({"pass": "votes", "row": row, "votes": votes})
    write_atomic(path, "".join(f"{json.dumps(line)}\n" for line in lines))


def run_methods(opener: Callable[[], MethodContext], out: Path, arms: Sequence[str], *, num_seeds: int, workers: int) -> Path:
    """Run the trials that choose the rates, then those of the table; write the report and return its path.

    Raise ConfigError for an unknown arm; RewardlabError if trials failed, after all others.
    """
    check_arms(ARMS, arms)
    context, failures = opener(), list[str]()
    settings, start = context.settings, open_study(context, out)

    def attempt(trials: Sequence[Trial]) -> None:
        try:
            run_trials(opener, trials, out, workers=workers)
        except ConfigError:
            raise
        except RewardlabError as error:  # a failed trial does not stop the other arms
            failures.append(str(error))

    attempt(validation_plan(arms, settings))
    attempt(study_plan(choose_rates(read_records(out), arms, settings.rates), num_seeds))
    records = read_records(out)
    report = write_tables(summarize(records, start, workers), out) if records else out
    if failures:
        raise RewardlabError("; ".join(failures))
    return report
