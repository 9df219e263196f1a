"""One trial of the policy study: a policy trained on what an arm pays; at every step, what it earned beside what was true."""

from __future__ import annotations

import copy
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, TrainerCallback

from eval.studies.plans import Trial
from eval.studies.policy import ARMS, Settings, policy_config, scalar_config, start_config
from eval.studies.trials import digest
from rewardlab.data.pairs import read_pairs
from rewardlab.demo.build import BASE, TEST, TRAIN
from rewardlab.errors import ConfigError
from rewardlab.judging.margins import ProbabilityJudge
from rewardlab.metrics.running import Metrics
from rewardlab.models.checkpoints import commit, template_for
from rewardlab.models.loading import load_model
from rewardlab.prompts import build_messages, load_template
from rewardlab.rewards.pairwise import Anchors, LeastReward, PairwiseReward, PolicyReward, ScalarReward, without_thinking
from rewardlab.rewards.policy_function import anchors_of
from rewardlab.rewards.policy_signs import TRENDS, JudgeChecks
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.policy import build_policy_trainer, policy_rows
from rewardlab.training.policy_gradient.build import pretrain_value
from rewardlab.training.reward_model import train_reward_model
from rewardlab.training.run.folder import FINAL, is_finished
from rewardlab.training.sft import train_sft
from rewardlab.types import FinishReason, Order, PreferencePair

START, SCALAR = "start", "scalar"
MANY_WORDED = "What is in the image?"  # has as many right answers as ways to say them; all other questions have one


def is_right(answer: str, pair: PreferencePair) -> bool:
    """Return whether an answer equals the preferred response, apart from a full stop."""
    return without_thinking(answer).strip().removesuffix(".") == pair.responses[pair.preferred or 0].strip().removesuffix(".")


class TruthReward:
    """1 for the right answer, 0 for any other: what no judge can be better than."""

    least: float | None = 0.0
    parity: float | None = 0.5

    def __call__(
        self, questions: Sequence[PreferencePair], responses: Sequence[str], anchors: Anchors, step: int
    ) -> tuple[list[float | None], Metrics]:
        return [float(is_right(text, pair)) for text, pair in zip(responses, questions, strict=True)], {}


class Curves:
    """Reward and truth batch by batch, over all answers; a truncated answer is not right."""

    def __init__(self) -> None:
        self.paid: list[float | None] = []
        self.true: list[float | None] = []
        self.paid_for_right: list[float | None] = []
        self.paid_for_wrong: list[float | None] = []
        self.unreadable = 0

    def __call__(
        self,
        questions: Sequence[PreferencePair],
        responses: Sequence[str],
        finished: Sequence[bool],
        rewards: Sequence[float | None],
    ) -> None:
        right = [done and is_right(text, pair) for text, done, pair in zip(responses, finished, questions, strict=True)]
        read = [(reward, ok) for reward, ok in zip(rewards, right, strict=True) if reward is not None]
        self.unreadable += len(rewards) - len(read)
        self.true.append(_mean([float(ok) for ok in right]))
        self.paid.append(_mean([reward for reward, _ in read]))
        self.paid_for_right.append(_mean([reward for reward, ok in read if ok]))
        self.paid_for_wrong.append(_mean([reward for reward, ok in read if not ok]))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


class SignsLog(TrainerCallback):
    """What the run logged of its signs, and held-out accuracy every so many steps: (step, share of right answers)."""

    def __init__(self, every: int, examine: Callable[[Any], float]) -> None:
        self._every, self._examine = every, examine
        self.signs: dict[str, list[float | None]] = {trend.metric: [] for trend in TRENDS.values()}
        self.held_out: list[tuple[int, float]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.held_out.append((0, self._examine(model)))
        model.train()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            for name, values in self.signs.items():
                values.append(logs.get(name))

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step % self._every == 0:
            self.held_out.append((state.global_step, self._examine(model)))
            model.train()


class WatchedTruth:
    """Pays the truth, and lets the judge be asked of the same answers, for its signs."""

    least: float | None = 0.0
    parity: float | None = 0.5

    def __init__(self, judge: PairwiseReward) -> None:
        self._judge, self._truth = judge, TruthReward()

    def __call__(
        self, questions: Sequence[PreferencePair], responses: Sequence[str], anchors: Anchors, step: int
    ) -> tuple[list[float | None], Metrics]:
        _, metrics = self._judge(questions, responses, anchors, step)
        return self._truth(questions, responses, anchors, step)[0], metrics


class PolicyContext:
    """The policy that all trials start from, what pays them, the questions to train and to be examined on."""

    def __init__(self, run: Path, settings: Settings, out: Path, hardened: Sequence[Path] = ()) -> None:
        self.hardened = tuple(hardened)
        self.base, self.sft, self.judge = run / "demo" / BASE, run / "sft" / FINAL, run / "rl" / FINAL
        train, test = run / "demo" / TRAIN, run / "demo" / TEST
        if not is_finished(run / "rl") or not is_finished(run / "sft") or not train.exists() or not test.exists():
            raise ConfigError(f"{run}: holds no finished quickstart; make one with `rewardlab quickstart --out {run}`")
        self.settings, self.out, self.files = settings, out, (train, test)
        self.pairs = [pair for pair in read_pairs(train) if pair.question != MANY_WORDED]
        self.test = [pair for pair in read_pairs(test) if pair.question != MANY_WORDED][: settings.num_test]
        self.template = load_template("answer")
        self.commit = commit()  # of the code in memory, whatever is done to the files meanwhile

    def identity(self) -> dict[str, Any]:
        """Arms and seeds may be added to a study; judge, questions and settings are the same for all."""
        weights = digest(self.judge / "model.safetensors")
        digests = ",".join(digest(folder / "model.safetensors") for folder in self.hardened)
        hardened = {"hardened": digests} if digests else {}
        files = {path.name: digest(path) for path in self.files}
        return {"settings": self.settings.to_dict(), "judge": weights, **hardened, **files}

    def start(self) -> dict[str, Any]:
        """Make the first policy, taught on right and wrong answers, and the scalar head; examine the policy."""
        if not is_finished(self.out / START):
            dice = random.Random(self.settings.seed)
            right = [dice.random() < self.settings.start_right for _ in self.pairs]
            pairs = [
                replace(pair, judgment=pair.responses[pair.preferred if ok else 1 - pair.preferred], order=Order.GIVEN)
                for pair, ok in zip(self.pairs, right, strict=True)
            ]
            train_sft(pairs, start_config(self.settings, base=self.base), self.out / START)
        if not is_finished(self.out / SCALAR):
            train_reward_model(self.pairs, scalar_config(self.settings, base=self.sft), self.out / SCALAR)
        config = policy_config(Trial(0, "first_policy"), self.settings, model=self.out / START / FINAL)
        anchors_of(self.pairs, config, self.template, self.out)  # once, before any trial looks for them
        return self.examine(load_model(str(self.out / START / FINAL), device="cpu")[0])

    def prepare(self, start: dict[str, Any]) -> None:
        self.model, self.processor = load_model(str(self.out / START / FINAL), device="cpu")
        judge, second = self._weighing(self.judge), self._weighing(self.sft)
        self.rewards: dict[str, PolicyReward] = {
            "truth": WatchedTruth(self._pairwise(judge, second)),
            "pairwise": self._pairwise(judge, second),
            "scalar": ScalarReward(self.out / SCALAR / FINAL, batch_size=512),
        }
        if self.hardened:
            first, *others = map(self._weighing, self.hardened)
            self.rewards["hardened"] = self._pairwise(first, judge)
            if others:
                self.rewards["least"] = LeastReward([self._pairwise(first, judge), *map(PairwiseReward, others)])

    def _weighing(self, checkpoint: Path) -> ProbabilityJudge:
        sampler = HFSampler.load(checkpoint, batch_size=512)
        return ProbabilityJudge(sampler, template_for(checkpoint, None), max_tokens=self.settings.judge_tokens)

    def _pairwise(self, judge: ProbabilityJudge, second: ProbabilityJudge) -> PairwiseReward:
        return PairwiseReward(judge, checks=JudgeChecks(judge, second_judge=second, canaries=self.pairs))

    def right_share(self, model: Any) -> float:
        """Return the share of held-out questions that one sampled answer each is right to."""
        sampler = HFSampler(model.eval(), self.processor, batch_size=512)
        prompts = [build_messages(pair, order=Order.GIVEN, template=self.template) for pair in self.test]
        drawn = sampler.sample(prompts, SamplingParams(1, max_tokens=self.settings.max_tokens, seed=self.settings.seed))
        right = [
            answer.finish is FinishReason.STOP and is_right(answer.text, pair)
            for (answer,), pair in zip(drawn, self.test, strict=True)
        ]
        return sum(right) / len(right)

    def examine(self, model: Any) -> dict[str, Any]:
        """Share of held-out questions answered right, sampled and greedy; what was cut off is wrong."""
        processor = load_model(str(self.out / START / FINAL), device="cpu")[1]
        sampler = HFSampler(model.eval(), processor, batch_size=512)
        prompts = [build_messages(pair, order=Order.GIVEN, template=self.template) for pair in self.test]
        scores: dict[str, Any] = {"num_questions": len(self.test)}
        for name, temperature, draws in (("accuracy", 1.0, 2), ("greedy_accuracy", 0.0, 1)):
            params = SamplingParams(draws, temperature, max_tokens=self.settings.max_tokens, seed=self.settings.seed)
            drawn = sampler.sample(prompts, params)
            right = [
                answer.finish is FinishReason.STOP and is_right(answer.text, pair)
                for row, pair in zip(drawn, self.test, strict=True)
                for answer in row
            ]
            scores[name] = sum(right) / len(right)
        scores["answers"] = [f"{pair.question} {row[0].text}" for pair, row in list(zip(self.test, drawn, strict=True))[:4]]
        return scores

    def run(self, trial: Trial) -> dict[str, Any]:
        """Train and examine; the curves have a point per rollout batch."""
        clock, cpu = time.perf_counter(), time.process_time()
        if ARMS[trial.arm].judge not in self.rewards:
            number = "two judges or more" if ARMS[trial.arm].judge == "least" else "a judge"
            raise ConfigError(f"the arm {trial.arm} needs {number} of --hardened FOLDER")
        model, curves, reward = copy.deepcopy(self.model), Curves(), self.rewards[ARMS[trial.arm].judge]
        signs = SignsLog(self.settings.test_every, self.right_share)
        config = policy_config(trial, self.settings, model=self.out / START / FINAL)
        with tempfile.TemporaryDirectory() as folder:
            # The first policy's own answers are made once for all trials, beside it.
            anchors = anchors_of(self.pairs, config, self.template, self.out)
            rows = policy_rows(self.pairs, self.template)
            build = partial(build_policy_trainer, rows, self.pairs, reward, anchors)
            if config.value_pretrain_steps:
                fitted = pretrain_value(build, config, Path(folder), "")
                config = config.model_copy(update={"value_init": str(fitted)})
            trainer = build(config, model, self.processor, Path(folder), observer=curves, trl={"save_strategy": "no"})
            trainer.remove_callback(PrinterCallback)
            trainer.add_callback(signs)
            trainer.train()
        return {
            "arm": trial.arm,
            "seed": trial.seed,
            **self.examine(model),
            "unreadable": curves.unreadable,
            "curves": {name: getattr(curves, name) for name in ("paid", "true", "paid_for_right", "paid_for_wrong")},
            "signs": signs.signs,
            "held_out": signs.held_out,
            "wall_s": round(time.perf_counter() - clock, 1),
            "cpu_s": round(time.process_time() - cpu, 1),
            "commit": self.commit,
        }
