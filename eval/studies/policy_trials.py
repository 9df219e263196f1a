"""Trials of the policy study: a policy trained on an arm's reward; at every step, the reward beside the truth."""

from __future__ import annotations

import copy
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, TrainerCallback

from eval.studies.policy import ARMS, Settings, likelihood_config, policy_config, scalar_config, start_config
from eval.studies.study import Quickstart, Trial, digest, make_once
from rewardlab.config import PolicyConfig
from rewardlab.data.pairs import read_pairs
from rewardlab.errors import ConfigError
from rewardlab.judging.margins import ProbabilityJudge
from rewardlab.metrics.running import Metrics
from rewardlab.models.checkpoints import commit, template_for
from rewardlab.models.loading import load_model
from rewardlab.prompts import build_messages, load_template
from rewardlab.rewards.pairwise import Anchors, LeastReward, PairwiseReward, PolicyReward, ScalarReward, without_thinking
from rewardlab.rewards.policy_function import AnchorsById, anchors_of
from rewardlab.rewards.policy_signs import TRENDS, JudgeChecks
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.policy import build_policy_trainer, policy_rows
from rewardlab.training.policy_gradient.build import pretrain_value
from rewardlab.training.reward_model import train_reward_model
from rewardlab.training.run.folder import FINAL, is_finished
from rewardlab.training.sft import train_sft
from rewardlab.types import FinishReason, Order, PreferencePair

START, SCALAR, LIKELIHOOD, DIGITS = "start", "scalar", "likelihood", "digits"
NUM_HARD, HARD_SAMPLES = 2000, 4  # questions among which the hard ones are looked for, and answers to each
MANY_WORDED = "What is in the image?"  # has many right answers; all other questions have one


def is_right(answer: str, pair: PreferencePair) -> bool:
    """Return whether an answer equals the preferred response, apart from a full stop."""
    return without_thinking(answer).strip().removesuffix(".") == pair.responses[pair.preferred or 0].strip().removesuffix(".")


def questions(path: Path) -> list[PreferencePair]:
    """Return the pairs whose question has one right answer."""
    return [pair for pair in read_pairs(path) if pair.question != MANY_WORDED]


def right_answers(
    model: Any, processor: Any, pairs: Sequence[PreferencePair], params: SamplingParams
) -> tuple[list[list[bool]], list[list[str]]]:
    """Return, for each question, whether each sampled answer is right (a truncated one is not), and the answers."""
    prompts = [build_messages(pair, order=Order.GIVEN, template=load_template("answer")) for pair in pairs]
    sampled = HFSampler(model.eval(), processor, batch_size=512).sample(prompts, params)
    texts = [[answer.text if answer.finish is FinishReason.STOP else "" for answer in row] for row in sampled]
    return [[bool(text) and is_right(text, pair) for text in row] for row, pair in zip(texts, pairs, strict=True)], texts


class AnswerReward:
    """Rewards each answer by itself: ``score`` returns 0..1 for an answer and its pair."""

    least: float | None = 0.0
    parity: float | None = 0.5

    def __init__(self, score: Callable[[str, PreferencePair], float]) -> None:
        self._score = score

    def __call__(
        self, questions: Sequence[PreferencePair], responses: Sequence[str], anchors: Anchors, step: int
    ) -> tuple[list[float | None], Metrics]:
        return [self._score(text, pair) for text, pair in zip(responses, questions, strict=True)], {}


TRUTH = AnswerReward(lambda text, pair: float(is_right(text, pair)))  # the best that a judge can be
WORDS = AnswerReward(lambda text, pair: min(1.0, len(text.split()) / 10))  # broken


class RewardByKind:
    """``digits`` rewards answers to questions about digits, ``others`` the rest."""

    least: float | None = 0.0
    parity: float | None = 0.5

    def __init__(self, digits: PolicyReward, others: PolicyReward) -> None:
        self._digits, self._others = digits, others

    def __call__(
        self, questions: Sequence[PreferencePair], responses: Sequence[str], anchors: Anchors, step: int
    ) -> tuple[list[float | None], Metrics]:
        rewards: list[float | None] = [None] * len(questions)
        metrics: Metrics = {}
        for of_kind, reward in ((True, self._digits), (False, self._others)):
            rows = [n for n, pair in enumerate(questions) if (pair.source == DIGITS) == of_kind]
            if not rows:
                continue
            chosen = [[values[n] for n in rows] for values in (questions, responses, anchors)]
            scores, more = reward(*chosen, step)
            metrics = {**metrics, **more}
            for n, score in zip(rows, scores, strict=True):
                rewards[n] = score
        return rewards, metrics


class Curves:
    """The mean reward and the truth of every batch; a truncated answer is not right."""

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
    """Keeps the logged signs, and the held-out accuracy every so many steps: (step, accuracy)."""

    def __init__(self, every: int, examine: Callable[[Any], float]) -> None:
        self._every, self._examine = every, examine
        self.signs: dict[str, list[float | None]] = {trend.metric: [] for trend in TRENDS.values()}
        self.held_out: list[tuple[int, float]] = []
        self.steps_before = 0  # of the stages that have ended

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if not self.held_out:
            self.held_out.append((0, self._examine(model)))
        model.train()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            for name, values in self.signs.items():
                values.append(logs.get(name))

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step % self._every == 0:
            self.held_out.append((self.steps_before + state.global_step, self._examine(model)))
            model.train()


class WatchedTruth:
    """Rewards the truth, and has the judge compare the same answers for its signs."""

    least: float | None = 0.0
    parity: float | None = 0.5

    def __init__(self, judge: PairwiseReward) -> None:
        self._judge = judge

    def __call__(
        self, questions: Sequence[PreferencePair], responses: Sequence[str], anchors: Anchors, step: int
    ) -> tuple[list[float | None], Metrics]:
        _, metrics = self._judge(questions, responses, anchors, step)
        return TRUTH(questions, responses, anchors, step)[0], metrics


class PolicyContext:
    """The policy that all trials start from, the rewards, and the questions of training and evaluation."""

    def __init__(self, run: Path, settings: Settings, out: Path, hardened: Sequence[Path] = (), watched: bool = True) -> None:
        self.watched = watched  # whether judges are asked again for their signs, which changes no reward
        self.hardened, self.quickstart = tuple(hardened), Quickstart(run)
        self.files = (self.quickstart.train, self.quickstart.test)
        self.quickstart.require("sft", "rl", files=self.files)
        self.judge, self.sft = self.quickstart.judge("rl"), self.quickstart.judge("sft")
        self.settings, self.out = settings, out
        self.pairs, test = map(questions, self.files)
        self.test = test[: settings.num_test]
        self.template = load_template("answer")
        self.commit = commit()  # of the code in memory, whatever happens to the files meanwhile

    @property
    def first(self) -> Path:
        """The checkpoint of the policy that all trials start from."""
        return self.out / START / FINAL

    def identity(self) -> dict[str, Any]:
        digests = ",".join(map(digest, self.hardened))
        hardened = {"hardened": digests} if digests else {}
        files = {path.name: digest(path) for path in self.files}
        return {"settings": asdict(self.settings), "judge": digest(self.judge), **hardened, **files}

    def config_of(self, trial: Trial) -> PolicyConfig:
        return policy_config(trial, self.settings, model=self.first)

    def start(self) -> dict[str, Any]:
        """Train the first policy on right and wrong answers, and the scalar head; evaluate the policy."""
        if not is_finished(self.out / START):
            dice = random.Random(self.settings.seed)
            right = [dice.random() < self.settings.start_right for _ in self.pairs]
            pairs = [
                replace(pair, judgment=pair.responses[pair.preferred if ok else 1 - pair.preferred], order=Order.GIVEN)
                for pair, ok in zip(self.pairs, right, strict=True)
            ]
            train_sft(pairs, start_config(self.settings, base=self.quickstart.base), self.out / START)
        if not is_finished(self.out / SCALAR):
            train_reward_model(self.pairs, scalar_config(self.settings, sft=self.sft), self.out / SCALAR)
        if not is_finished(self.out / LIKELIHOOD):
            config = likelihood_config(self.settings, base=self.quickstart.base)
            train_reward_model(self.pairs, config, self.out / LIKELIHOOD)
        return self.evaluate(*load_model(str(self.first), device="cpu"))

    def prepare(self, start: dict[str, Any]) -> None:
        self.model, self.processor = load_model(str(self.first), device="cpu")
        judge, second = self._weighing(self.judge), self._weighing(self.sft)
        self.rewards: dict[str, PolicyReward] = {
            "truth": WatchedTruth(self._pairwise(judge, second)) if self.watched else TRUTH,
            "pairwise": self._pairwise(judge, second),
            "scalar": ScalarReward(self.out / SCALAR / FINAL, batch_size=512),
            "likelihood": ScalarReward(self.out / LIKELIHOOD / FINAL, batch_size=512),
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
        checks = JudgeChecks(judge, second_judge=second, canaries=self.pairs) if self.watched else None
        return PairwiseReward(judge, checks=checks)

    def sampled_accuracy(self, model: Any) -> float:
        """Return the fraction of held-out questions to which one sampled answer is right."""
        params = SamplingParams(1, max_tokens=self.settings.max_tokens, seed=self.settings.seed)
        right, _ = right_answers(model, self.processor, self.test, params)
        return sum(map(sum, right)) / len(right)

    def evaluate(self, model: Any, processor: Any) -> dict[str, Any]:
        """Return the accuracy on held-out questions, sampled (of both kinds too) and greedy, and some answers."""
        scores: dict[str, Any] = {"num_questions": len(self.test)}
        for name, temperature, num in (("accuracy", 1.0, 2), ("greedy_accuracy", 0.0, 1)):
            params = SamplingParams(num, temperature, max_tokens=self.settings.max_tokens, seed=self.settings.seed)
            right, texts = right_answers(model, processor, self.test, params)
            scores[name] = sum(map(sum, right)) / (num * len(right))
            if temperature:
                for kind in ("digits", "scenes"):
                    of = [row for row, pair in zip(right, self.test, strict=True) if pair.source == kind]
                    scores[f"{name}_{kind}"] = sum(map(sum, of)) / (num * len(of)) if of else None
        scores["answers"] = [f"{pair.question} {row[0]}" for pair, row in list(zip(self.test, texts, strict=True))[:4]]
        return scores

    def anchors(self, config: PolicyConfig, reward: PolicyReward) -> AnchorsById | None:
        """Return each question's anchor; the first policy's own answers are made once for all trials."""
        if config.anchor not in ("start", "best"):
            return anchors_of(self.pairs, config, self.template, self.out)
        folder = self.out / "anchors" / config.anchor
        config = config.model_copy(update={"seed": self.settings.seed})

        def anchors() -> AnchorsById | None:
            return anchors_of(self.pairs, config, self.template, folder, reward)

        make_once(folder / "made.json", lambda: {"number": len(anchors() or ())})  # other processes wait
        return anchors()

    def pairs_of(self, kind: str) -> list[PreferencePair]:
        """Return the questions of an :class:`Arm`'s ``pairs``."""
        if kind != "hard":
            return [pair for pair in self.pairs if kind in ("all", pair.source)]
        asked = self.pairs[:NUM_HARD]

        def make() -> dict[str, Any]:
            params = SamplingParams(HARD_SAMPLES, max_tokens=self.settings.max_tokens, seed=self.settings.seed)
            right, _ = right_answers(self.model, self.processor, asked, params)
            return {"pair_ids": [pair.pair_id for pair, row in zip(asked, right, strict=True) if not all(row)]}

        hard = set(make_once(self.out / "hard.json", make)["pair_ids"])
        return [pair for pair in asked if pair.pair_id in hard]

    def run(self, trial: Trial) -> dict[str, Any]:
        """Train and evaluate; the curves have a point for each rollout batch."""
        if ARMS[trial.arm].judge not in self.rewards:
            number = "two judges or more" if ARMS[trial.arm].judge == "least" else "a judge"
            raise ConfigError(f"the arm {trial.arm} needs {number} of --hardened FOLDER")
        arm, model, curves, config = ARMS[trial.arm], copy.deepcopy(self.model), Curves(), self.config_of(trial)
        reward = self.rewards[arm.judge]
        if arm.digits:
            reward = RewardByKind(TRUTH if arm.digits == "truth" else WORDS, reward)
        anchors, signs = self.anchors(config, reward), SignsLog(self.settings.test_every, self.sampled_accuracy)
        for kind in filter(None, (arm.first, arm.pairs)):
            pairs, steps = self.pairs_of(kind), config.max_steps // (2 if arm.first else 1)
            about = {pair.pair_id: pair.source for pair in pairs}
            more = {"kl_coef_of": lambda row, about=about: arm.kl_coef if about[row["pair_id"]] != DIGITS else arm.digits_kl}
            build = partial(build_policy_trainer, policy_rows(pairs, self.template), pairs, reward, anchors)
            with tempfile.TemporaryDirectory() as folder:
                out, stage = Path(folder), config.model_copy(update={"max_steps": steps})
                if config.value_pretrain_steps:
                    stage = stage.model_copy(update={"value_init": str(pretrain_value(build, config, out, ""))})
                trl = {"save_strategy": "no"}
                trainer = build(
                    stage, model, self.processor, out, observer=curves, trl=trl, **(more if arm.digits_kl is not None else {})
                )
                trainer.remove_callback(PrinterCallback)
                trainer.add_callback(signs)
                trainer.train()
            if trainer.state.global_step < steps:
                raise ConfigError(f"{trial.arm}: {len(pairs)} questions ({kind}) are too few for a batch; make more pairs")
            signs.steps_before += steps
        return {
            **self.evaluate(model, self.processor),
            "unreadable": curves.unreadable,
            "curves": {name: getattr(curves, name) for name in ("paid", "true", "paid_for_right", "paid_for_wrong")},
            "signs": signs.signs,
            "held_out": signs.held_out,
            "commit": self.commit,
        }
