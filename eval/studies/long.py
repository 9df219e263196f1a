"""What do these papers' methods do to long judgments? ``python -m eval.studies long``

Arms for claims of these papers, on the long demonstration (``eval/long_demo``). Every arm trains the SFT judge of its seed, at
equal generated tokens, and is compared by seed with the arm that it differs from in one part. Judges, pairs and base models of
two seeds are different.
"""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel

from eval.long_demo.build import FOLDER
from eval.long_demo.checks import TEMPLATE, check_solutions, distil_checks, is_true, with_criteria_that_disagree
from eval.long_demo.judgments import WAIT, Teacher, check_steps, short_judgment, verdict_only
from eval.studies.method_evaluation import labeled
from eval.studies.method_trials import MethodContext
from eval.studies.methods import Arm, Settings
from eval.studies.study import NUM_THREADS, Trial, digest, make_once
from rewardlab.config import PRMConfig, RLConfig, SFTConfig, load_config
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.demo.build import BASE, TRAIN, TRUTHS
from rewardlab.demo.judgments import Truth
from rewardlab.demo.pairs import read_truths
from rewardlab.errors import ConfigError
from rewardlab.metrics.accuracy import any_correct_score, micro
from rewardlab.models.checkpoints import commit
from rewardlab.models.families import end_token_ids
from rewardlab.prompts import build_messages
from rewardlab.rewards.judgment import checks_term, terms_of
from rewardlab.rewards.scorer import JudgmentReward, JudgmentScorer
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.prm import train_prm
from rewardlab.training.run.folder import FINAL, SAMPLES
from rewardlab.training.sft import train_sft
from rewardlab.types import Choice, Judgment, Order, PreferencePair, Vote, choice_of
from rewardlab.verdicts.checklist import ClaimCheck, ClaimFinding, checks_of

RATE = 5e-5  # StableReinforce, seed 0, 300,000 tokens: sampled 75.5 % at 1e-4, 72.8 % at 3e-5 with more true lines; at 3e-4
# reading gets worse after 150,000 tokens
SETTINGS = Settings(
    budgets=(300_000,),
    most_steps=120,  # four times those of StableReinforce
    rates=(RATE,),
    rollout_batch_size=128,
    batch_size=64,
    micro_batch_tokens=8192,
    max_tokens=768,
    window=128,
    value_steps=80,
    num_validation=100,
    num_test=200,
    num_votes=5,
    num_vote_pairs=0,
    verify_pairs=1500,
    verify_max_tokens=768,
)
CHECKS = "checks"  # folder of a judge that writes checklists, and the start of its arms
FORMS = {"verdict": verdict_only, "short": short_judgment}  # of judgments: other starts than the SFT judge
SFT, TAUGHT_STEPS, CHECK_STEPS = FOLDER / "sft.yaml", 300, 500
PROCESS, PROCESS_VOTES = "process", 2  # folder of a process reward model, and votes of each pair that it learns from
_STRESS = {"iterations": 4, "learning_rate": 4 * RATE}
_TAIL = {"overlong_margin": 640}  # of 768 tokens: each beyond 128 costs a little
_PPO = {"kl_coef": 0.0}  # no KL penalty in any arm of this comparison but GRPO's

ARMS: dict[str, Arm] = {
    "stable_reinforce": Arm("StableReinforce", "stable_reinforce", keep=True),
    # A cold start is needed; hard pairs are better.
    "from_base": Arm("RL from the base model", "stable_reinforce", start="base"),
    "easy": Arm("on pairs solved at once", "stable_reinforce", {"attempts": ["1"]}),
    "all": Arm("on all pairs", "stable_reinforce", {"attempts": ["1", "2", "3", "unsolved"]}),
    "hard_votes": Arm("on pairs that its own votes find hard", "stable_reinforce", on_votes=True),
    # Long chains: PPO, and what cures it.
    "ppo": Arm("PPO, lambda 0.95", "ppo", _PPO, fit_steps=0),
    "ppo_lambda_1": Arm(
        "PPO, lambda 1", "ppo", {**_PPO, "gae_lambda": 1.0, "gae_lambda_critic": 1.0}, fit_steps=0, against="ppo"
    ),
    "ppo_fitted": Arm("PPO with a fitted critic", "ppo", _PPO, against="ppo"),
    "ppo_decoupled": Arm("PPO with a decoupled lambda", "vc_ppo", fit_steps=0, against="ppo"),
    "vc_ppo": Arm("VC-PPO: both", "vc_ppo", against="ppo"),
    "vapo": Arm("VAPO", "vapo", against="vc_ppo"),
    "grpo": Arm("GRPO", "grpo", against="vapo"),
    "dapo": Arm("DAPO", "dapo", against="grpo"),
    "t_ppo_128": Arm("T-PPO, windows of 128", "t_ppo", {"window": 128, "window_tail": 4}, against="vapo"),
    # Pre-clip and filter, which rarely act here: `stability` has rates and rewards with which they do.
    "stress": Arm("StableReinforce, 4 epochs a batch, rate x 4", "stable_reinforce", _STRESS),
    "stress_neither": Arm(
        "the same without both parts", "stable_reinforce", {**_STRESS, "outliers": "keep", "preclip": None}, against="stress"
    ),
    # Reward terms.
    "consistency": Arm("with the consistency reward", "stable_reinforce", consistency=True),
    "overlong": Arm("with a cost of length", "stable_reinforce", _TAIL),
    # The parts of VAPO and DAPO, one by one.
    "vapo_no_length": Arm("VAPO, lambda 0.95", "vapo", {"length_alpha": None}, against="vapo"),
    "vapo_no_clip_higher": Arm("VAPO, clip 0.2 on both sides", "vapo", {"clip_high": 0.2}, against="vapo"),
    "vapo_no_nll": Arm("VAPO without the likelihood of right rollouts", "vapo", {"positive_nll": 0.0}, against="vapo"),
    "vapo_no_groups": Arm("VAPO without groups", "vapo", {"group_size": 1}, against="vapo"),
    "dapo_no_clip_higher": Arm("DAPO, clip 0.2 on both sides", "dapo", {"clip_high": 0.2}, against="dapo"),
    "dapo_no_token_mean": Arm("DAPO, means by rollout", "dapo", {"average": "sequence"}, against="dapo"),
    "dapo_no_dynamic": Arm("DAPO without dynamic sampling", "dapo", {"dynamic_sampling": "off"}, against="dapo"),
    "dapo_no_overlong": Arm("DAPO without the cost of length", "dapo", {"overlong_margin": None}, against="dapo"),
    "rlcs": Arm("RLCS", "rlcs", against="grpo"),
    # Think, or answer at once.
    "answers": Arm("from a judge that answers at once", "stable_reinforce", start="verdict"),
    "short": Arm("from a judge that checks one line", "stable_reinforce", start="short"),
    # Check before you choose: a judge that writes checklists, and what its checks are rewarded.
    "checks": Arm("from a judge that checks", "stable_reinforce", start=CHECKS),
    "checks_follow": Arm(
        "and a reward for verdicts that follow", "stable_reinforce", {"follows_weight": 0.25}, start=CHECKS, against="checks"
    ),
    "checks_true": Arm("and a reward for right findings", "stable_reinforce", start=CHECKS, checks=0.5, against="checks"),
    "checks_swap": Arm(
        "and a reward for agreement of both orders", "stable_reinforce", {"swap_weight": 0.5}, start=CHECKS, against="checks"
    ),
    # Process rewards, with true labels of steps.
    "reinforce": Arm("REINFORCE++-baseline", "reinforce_pp_baseline"),
    "process_dense": Arm(
        "REINFORCE++-baseline with rewards of steps", "reinforce_pp_baseline", process="process_reward", against="reinforce"
    ),
    "process_value": Arm("PPO, critic from labels of steps", "ppo", _PPO, fit_steps=0, process="value_init", against="ppo"),
    # Exploration.
    "fire": Arm("FIRE, the first token of the reasoning", "stable_reinforce", {"hot_token": {"position": None}}),
    "fire_later": Arm("FIRE, a token of the first line", "stable_reinforce", {"hot_token": {"position": 20}}),
    # Truncated rollouts and self-correction.
    "t_ppo_64": Arm("T-PPO, windows of 64", "t_ppo", {"window": 64, "window_tail": 2}, against="vapo"),
    "t_ppo_256": Arm("T-PPO, windows of 256", "t_ppo", {"window": 256, "window_tail": 8}, against="vapo"),
    "pag": Arm("PAG, last judgment", "pag"),
    "pag_of_its_authors": Arm(
        "PAG as its authors ran it",
        "pag",
        {"gae_lambda": 1.0, "gae_lambda_critic": 1.0, "batch_size": SETTINGS.rollout_batch_size},
        fit_steps=0,
        against="pag",
    ),
}


@cache
def truths_of(demo: Path) -> dict[str, Truth]:
    """Return the truths of a demonstration by the hashes of their pictures."""
    return {truth.image_sha256: truth for truth in read_truths(demo / TRUTHS)}


def image_of(pair: PreferencePair) -> str:
    """Return the hash of a pair's picture, by which its truth is found."""
    return hashlib.sha256(pair.images[0]).hexdigest()


def by_votes(judgments: Sequence[Judgment], pairs: Sequence[PreferencePair]) -> dict[str, dict[str, float]]:
    """Return the accuracies of majorities, and how often any of K votes is right."""
    items = labeled(judgments, pairs)
    num = min(len(of) for item in items for order in Order if (of := [v for v in item.judgment.votes if v.order is order]))
    return {
        "votes": {str(k): micro(items, k) for k in (1, 3, 5, 15, 64) if k <= num},
        "any": {
            str(k): float(np.mean([any_correct_score(item.tallies, k) for item in items])) for k in (5, 15, 64) if k <= num
        },
    }


def step_metrics(demo: Path, judgments: Sequence[Judgment], pairs: Sequence[PreferencePair]) -> dict[str, Any]:
    """Return what the votes and their steps say of a judge, by the truths of its pairs."""
    votes, steps, waits = [], [], []
    for judgment, pair in zip(judgments, pairs, strict=True):
        truth = truths_of(demo)[image_of(pair)]
        for vote in judgment.votes:
            votes.append(vote)
            checked = check_steps(truth, pair.shown(vote.order), vote.completion.text)
            waits.append(any(step.kind == WAIT for step in checked))
            steps.append([step for step in checked if step.kind == "line"])
    lines, lengths = [line for of in steps for line in of], [vote.completion.num_tokens for vote in votes]
    return by_votes(judgments, pairs) | {
        "waits": float(np.mean(waits)),
        "no_lines": float(np.mean([not of for of in steps])),
        "lines": float(np.mean([len(of) for of in steps])),
        "lines_true": float(np.mean([line.true for line in lines])) if lines else None,
        "lines_follow": float(np.mean([line.follows for line in lines])) if lines else None,
        "all_true": float(np.mean([bool(of) and all(line.true for line in of) for of in steps])),
        "length_95": float(np.quantile(lengths, 0.95)),
        "length_reasoned": float(np.mean([n for n, of in zip(lengths, steps, strict=True) if of] or [0.0])),
    }


def with_truths(truth: Truth, checks: Sequence[ClaimCheck]) -> list[tuple[ClaimCheck, bool]]:
    """Return the checks whose truth is known, with it."""
    known = [(check, is_true(truth, check)) for check in checks]
    return [(check, truth_of) for check, truth_of in known if truth_of is not None]


def check_metrics(demo: Path, judgments: Sequence[Judgment], pairs: Sequence[PreferencePair]) -> dict[str, Any]:
    """Return what the votes and their checks say of a judge that writes checklists."""
    rows = []
    for judgment, pair in zip(judgments, pairs, strict=True):
        truth = truths_of(demo)[image_of(pair)]
        for vote in judgment.votes:
            checks = checks_of(vote.completion.text) or ()
            known = [(check.finding is ClaimFinding.TRUE) is truth_of for check, truth_of in with_truths(truth, checks)]
            rows.append((bool(checks), vote.verdict.choice is not None, known))
    known = [right for *_, of in rows for right in of]
    return by_votes(judgments, pairs) | {
        "readable": float(np.mean([readable for readable, *_ in rows])),
        "follows": float(np.mean([follows for readable, follows, _ in rows if readable] or [0.0])),
        "findings_true": float(np.mean(known)) if known else None,
        "looks": float(np.mean([bool(of) for *_, of in rows])),
    }


class LongWorld(MethodContext):
    """The study of one seed's judge; its steps have labels."""

    def _reward(self, trial: Trial, config: RLConfig, model: Any, out: Path) -> JudgmentReward | None:
        """Return the reward of an arm whose checks are rewarded, by their truths."""
        if not (weight := self.arms[trial.arm].checks):
            return super()._reward(trial, config, model, out)
        truths, by_image = {pair.pair_id: pair for pair in self.pairs}, truths_of(self.quickstart.run / "demo")
        term = checks_term(lambda judged, check: is_true(by_image[image_of(truths[judged.pair_id])], check), weight)
        scorer = JudgmentScorer(self.template.verdict_format, None)
        return JudgmentReward(scorer, None, (*terms_of(config), term), ends=end_token_ids(model), samples=out / SAMPLES)

    def start_named(self, name: str) -> Path:
        """Return a checkpoint of the quickstart, or a judge of another form of judgments, taught once: by the SFT judge's
        recipe from the same base model, on the same pairs, for :data:`TAUGHT_STEPS`."""
        if name not in FORMS:
            return self.judge if name == CHECKS else super().start_named(name)
        folder = self.out / name

        def make() -> dict[str, Any]:
            began, truths = time.process_time(), truths_of(self.quickstart.run / "demo")
            pairs = [
                replace(pair, judgment=FORMS[name](truths[image_of(pair)], pair.shown(pair.order)))
                for pair in self.pairs
                if pair.judgment
            ]
            config = load_config(SFTConfig, SFT, model=str(self.quickstart.base), max_steps=TAUGHT_STEPS, save_steps=10_000)
            shutil.rmtree(folder / "sft", ignore_errors=True)  # of a training that was interrupted
            train_sft(pairs, config, folder / "sft")
            return {"cpu_s": round(time.process_time() - began, 1)}

        make_once(folder / "made.json", make)
        return folder / "sft" / FINAL

    def process_model(self) -> Path:
        """Return a process reward model of the judge's own judgments, made once: +1 at the end of each step up to the first
        untrue one, -1 from there."""
        folder = self.out / PROCESS

        def make() -> dict[str, Any]:
            began, truths = time.process_time(), truths_of(self.quickstart.run / "demo")
            pairs = [pair for pair in self.pairs if pair.preferred is not None][: self.settings.verify_pairs]
            judged = self.votes_of_start(pairs, PROCESS_VOTES)
            rows = [step_labels(truths, pair, vote) for pair, of in zip(pairs, judged, strict=True) for vote in of.votes]
            config = PRMConfig(
                model=str(self.judge), template=self.template.name, learning_rate=1e-3, lr_scheduler="linear", warmup_steps=10,
                max_steps=self.settings.value_steps, batch_size=32, micro_batch_size=32, adam_beta2=0.98, save_steps=10_000,
                micro_batch_tokens=self.settings.micro_batch_tokens, gradient_checkpointing=False,
            )  # fmt: skip
            shutil.rmtree(folder / "model", ignore_errors=True)  # of a fit that was interrupted
            path = train_prm(pairs, [row for row in rows if row["ends"]], config, folder / "model")
            return {"path": str(path), "cpu_s": round(time.process_time() - began, 1)}

        return Path(make_once(folder / "fit.json", make)["path"])


def step_labels(truths: Mapping[str, Truth], pair: PreferencePair, vote: Vote) -> dict[str, Any]:
    """Return a judgment with the ends of its steps and their labels, as `rewardlab prm` reads it."""
    text = vote.completion.text
    steps = check_steps(truths[image_of(pair)], pair.shown(vote.order), text)
    good = list(accumulate((step.true for step in steps), lambda before, true: before and true))
    labels = [1 if each else -1 for each in good]
    ends = [step.end for step in steps]
    return {"pair_id": pair.pair_id, "order": vote.order.value, "text": text, "ends": ends, "labels": labels}


class CheckWorld(LongWorld):
    """The study of a seed's judge that writes checklists."""

    def measure(self, model: Any, *, last: bool, verify: bool = False) -> dict[str, Any]:
        """Return a row of the table; ``last``: with what criteria that disagree and planted findings do to verdicts."""
        row = super().measure(model, last=last, verify=verify)
        return row | ({"reversed": self._reversed(model)} | self._planted(model) if last else {})

    def _reversed(self, model: Any) -> float:
        """Return the fraction of test pairs and orders whose greedy verdicts follow the heavier of two criteria that disagree,
        whichever it is."""
        followed = []
        for weights in ((2, 1), (1, 2)):
            pairs = [with_criteria_that_disagree(pair, weights) for pair in self.test]
            judged = self.evaluator.judgments(model, pairs, 1, temperature=0.0)
            followed.append(
                [vote.winner == pair.preferred for pair, of in zip(pairs, judged, strict=True) for vote in of.votes]
            )
        return float(np.mean([all(both) for both in zip(*followed, strict=True)]))

    def _planted(self, model: Any) -> dict[str, float]:
        """Return the accuracy of the likelier verdict after a true checklist, and after one with every finding reversed."""
        sampler, truths = HFSampler(model.eval(), self.processor, batch_size=256), truths_of(self.quickstart.run / "demo")
        exact, scores = Teacher(shallow=(0.0,) * 3, misled=(0.0,) * 3, slip=0.0), {}
        for name, planted in (("after_true_checks", False), ("after_false_checks", True)):
            prompts, beginnings, firsts = [], [], []
            for pair in self.test:
                for order in Order:
                    text = check_solutions(exact, truths[image_of(pair)], pair.shown(order), random.Random(0))
                    begin = text[: text.rindex("<answer>") + len("<answer>")]
                    prompts.append(build_messages(pair, order=order, template=self.template))
                    beginnings.append(reversed_findings(begin) if planted else begin)
                    firsts.append(choice_of(int(pair.preferred or 0), order) is Choice.FIRST)
            margins, _ = sampler.verdict_margins(prompts, beginnings)
            scores[name] = float(
                np.mean([(margin > 0) == first for margin, first in zip(margins.tolist(), firsts, strict=True)])
            )
        return scores


def reversed_findings(text: str) -> str:
    """Return a checklist with true for false and false for true."""
    return re.sub(r": (true|false)$", lambda match: f": {'false' if match[1] == 'true' else 'true'}", text, flags=re.MULTILINE)


class LongContext:
    """The judges of all seeds: trial ``seed`` trains the one of ``run/seed``."""

    def __init__(self, run: Path, settings: Settings, out: Path) -> None:
        self._run, self._settings, self._out = run, settings, out
        self._worlds: dict[int, LongWorld] = {}
        self._checking: dict[int, CheckWorld] = {}
        self._commit = commit()

    def world(self, seed: int) -> LongWorld:
        """Return the study of a seed's own judge."""
        if seed not in self._worlds:
            world = LongWorld(self._run / str(seed), self._settings, self._out / "starts" / str(seed), ARMS)
            kept = make_once(world.out / "judge.json", lambda: {"judge": digest(world.judge)})["judge"]
            if kept != digest(world.judge):
                raise ConfigError(f"{world.out}: holds results of another judge than {world.judge} ({kept}); use another --out")
            world.evaluator = replace(world.evaluator, more=partial(step_metrics, world.quickstart.run / "demo"))
            self._worlds[seed] = world
        return self._worlds[seed]

    def checking(self, seed: int) -> CheckWorld:
        """Return the study of a seed's judge that writes checklists. It is taught once, as the SFT judge was, from the same
        base model on checklists of the same pairs."""
        if seed not in self._checking:
            run, out = self._run / str(seed), self._out / "starts" / str(seed) / CHECKS
            make_once(out / "made.json", lambda: teach_checks(run, out / "run", seed))
            world = CheckWorld(out / "run", self._settings, out, ARMS)
            world.evaluator = replace(world.evaluator, more=partial(check_metrics, run / "demo"))
            self._checking[seed] = world
        return self._checking[seed]

    def world_of(self, trial: Trial) -> LongWorld:
        return self.checking(trial.seed) if ARMS[trial.arm].start == CHECKS else self.world(trial.seed)

    def identity(self) -> dict[str, Any]:
        """Return the settings; :meth:`world` checks that each seed's judge stays the same."""
        return {"settings": asdict(self._settings)}

    def start(self) -> dict[str, Any]:
        """Nothing is shared by all seeds; see :meth:`start_of`."""
        return {}

    def prepare(self, start: dict[str, Any]) -> None:
        """Nothing: the first trial of a seed opens its judge."""

    def config_of(self, trial: Trial) -> BaseModel:
        return self.world_of(trial).config_of(trial)

    def run(self, trial: Trial) -> dict[str, Any]:
        """Train one arm from the judge of the trial's seed."""
        world = self.world_of(trial)
        record = world.run(trial)
        return {**record, "plain": self.start_of(trial.seed), "judge": digest(world.judge)}

    def start_of(self, seed: int) -> dict[str, Any]:
        """Return the scores of a seed's judge before RL, measured once."""
        world = self.world(seed)
        return make_once(self._out / "starts" / str(seed) / "scores.json", lambda: world.measure(world.model, last=True))


def teach_checks(source: Path, run: Path, seed: int) -> dict[str, Any]:
    """Make the folder of a quickstart whose SFT judge writes checklists, of the pairs and the base model of ``source``."""
    began = time.process_time()
    shutil.rmtree(run, ignore_errors=True)  # of a training that was interrupted
    (run / "distill").mkdir(parents=True)
    (run / "demo").symlink_to((source / "demo").resolve(), target_is_directory=True)
    pairs, by_image = read_pairs(source / "demo" / TRAIN), truths_of(source / "demo")
    truths, path = {pair.pair_id: by_image[image_of(pair)] for pair in pairs}, run / "distill" / "distilled.parquet"
    write_parquet(distil_checks(pairs, truths, seed), path)
    keys = {"model": str(source / "demo" / BASE), "template": TEMPLATE, "seed": seed, "max_steps": CHECK_STEPS}
    config = load_config(SFTConfig, SFT, **keys)
    train_sft(read_pairs(path), config, run / "sft")
    return {"cpu_s": round(time.process_time() - began, 1)}


def check_runs(run: Path, seeds: int) -> None:
    """Raise ConfigError for a seed without its demonstration."""
    for seed in range(seeds):
        if not (run / str(seed) / "sft").exists():
            raise ConfigError(
                f"{run / str(seed)}: no long demonstration; make it with `python -m eval.long_demo.quickstart --out "
                f"{run / str(seed)} --seed {seed}`"
            )
    torch.set_num_threads(NUM_THREADS)
