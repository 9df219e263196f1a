"""Does a judge that verifies itself become better by it: after its cold start, and after PAG?

`python -m eval.self_verification --run runs/quickstart --out runs/self_verification`, by hand, after a quickstart's SFT; the
plan and what it takes are printed first. A trial already in OUT is kept. Results: eval/results/self_verification.json and .md.

Three starts are compared, each the quickstart's SFT judge fine-tuned for as many steps: on verifications of its votes as the
package chooses them (``taught``), of all its votes, most of which are right (``unbalanced``), and on the teacher's reasonings
whatever they mention (``ungrounded``). ``pag`` is the recipe from the first start of seed 0, its critic fitted before, once for
all seeds. ``unverified`` is StableReinforce from the same start, on as many rollouts, without verification: what RL alone makes
of a judge that was fine-tuned for longer.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import rewardlab  # noqa: F401  (before transformers, see rewardlab/models/torchvision_cpu.py)

# isort: split
import torch

from eval.scripts import positive, run_script
from eval.studies.plans import Trial, plan
from eval.studies.runner import make_once, read_records, run_trials
from eval.studies.summary import t_interval
from eval.studies.trials import digest
from rewardlab.benchmarks.scores import revision_rows, verified_vote
from rewardlab.config import RLConfig, SFTConfig, find_config, load_yaml
from rewardlab.data.files import write_atomic
from rewardlab.data.pairs import read_pairs
from rewardlab.data.votes import vote_row
from rewardlab.demo.build import TEST
from rewardlab.errors import ConfigError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.metrics.revision import RevisionScores, VerifiedVote, revision_scores
from rewardlab.models.checkpoints import commit, template_for
from rewardlab.models.loading import load_model
from rewardlab.reporting.tables import markdown_table, percent, signed, with_interval
from rewardlab.samplers.hf import HFSampler
from rewardlab.samplers.self_verifying import SelfVerifying
from rewardlab.training.policy_gradient.build import pretrain_value
from rewardlab.training.rl import build_trainer, hard_pairs, rl_rows, train_rl
from rewardlab.training.run import verification_rows
from rewardlab.training.run.folder import FINAL, is_finished
from rewardlab.training.sft import train_sft
from rewardlab.types import BOTH_ORDERS, Judgment

ROOT = Path(__file__).parents[1]
ARMS = {
    "taught": "Start: right and wrong votes in balance, by reasonings that mention what the responses differ in",
    "pag": "PAG from that start (seed 0), its critic fitted first",
    "unverified": "StableReinforce from that start (seed 0), without verification",
    "unbalanced": "Start: all votes, most of which are right",
    "ungrounded": "Start: in balance, by any reasoning of the teacher",
}
RECIPES = {"pag": "pag", "unverified": "stable_reinforce"}  # of the arms that are trained by RL
MINUTES = {"taught": 4, "pag": 6, "unverified": 3, "unbalanced": 4, "ungrounded": 4}  # of one core, roughly


@dataclass(frozen=True)
class Settings:
    """What all trials share; the optimizers are those of the quickstart."""

    num_pairs: int = 4000  # with a judgment, that the judge votes on
    num_votes: int = 4  # on each: right and wrong votes on one pair tell more than those on easy and hard pairs
    start_steps: int = 600
    learning_rate: float = 1e-3  # of the starts: 300 steps at 3e-4 spell few of their verifications
    rl_learning_rate: float = 1e-4
    value_learning_rate: float = 1e-3
    value_pretrain_steps: int = 100
    rl_steps: int = 54
    rollout_batch_size: int = 256
    batch_size: int = 128
    max_tokens: int = 96  # of a turn
    num_test: int = 500
    seed: int = 1000  # of all evaluation


SCHEDULE = ("warmup_ratio", "min_lr_ratio")  # the recipes': the rate is that of OPTIMIZER here
OPTIMIZER: dict[str, Any] = {"lr_scheduler": "linear", "adam_beta2": 0.98, "gradient_checkpointing": False}


class Context:
    """The SFT judge, its votes on the pairs that it was trained on, and the held-out pairs."""

    def __init__(self, run: Path, settings: Settings, out: Path) -> None:
        self.judge, train, test = run / "sft" / FINAL, run / "distill" / "distilled.parquet", run / "demo" / TEST
        if not is_finished(run / "sft"):
            raise ConfigError(f"{run}: holds no finished SFT; make one with `rewardlab quickstart --out {run}`")
        torch.set_num_threads(1)
        self.settings, self.out, self.commit = settings, out, commit()
        self.files = (train, test, *(find_config(f"rl/{recipe}") for recipe in RECIPES.values()))
        self.template = template_for(self.judge, None)
        self.pairs, self.test = read_pairs(train), read_pairs(test)[: settings.num_test]
        self.votes = out / "votes.jsonl"

    def identity(self) -> dict[str, Any]:
        return {
            "settings": asdict(self.settings),
            "optimizer": OPTIMIZER,
            "judge": digest(self.judge / "model.safetensors"),
            **{path.name: digest(path) for path in self.files},
        }

    def start(self) -> dict[str, Any]:
        """Have the judge vote on the pairs it was trained on, and measure it."""
        rows = [n for n, pair in enumerate(self.pairs) if pair.judgment][: self.settings.num_pairs]
        pairs = [self.pairs[n] for n in rows]
        judge = self._judge(self.judge)
        judged = judge.compare_many(pairs, orders=[(pair.order,) for pair in pairs], num_votes=self.settings.num_votes, seed=0)
        lines: list[dict[str, Any]] = [{"identity": {}}]
        lines += [
            {"pass": "votes", "row": row, "votes": list(map(vote_row, votes.votes))}
            for row, votes in zip(rows, judged, strict=True)
        ]
        write_atomic(self.votes, "".join(f"{json.dumps(line)}\n" for line in lines))
        on_train = [vote.winner == pair.preferred for pair, votes in zip(pairs, judged, strict=True) for vote in votes.votes]
        alone = [verified_vote(vote, pair.preferred or 0, "") for pair, vote in self._votes_of(judge)]
        return {"accuracy": sum(vote.last_right for vote in alone) / len(alone), "on_train": sum(on_train) / len(on_train)}

    def prepare(self, start: dict[str, Any]) -> None:
        """Nothing is kept between trials."""

    def _judge(self, checkpoint: Path, *, verifies: bool = False) -> GenerativeJudge:
        model, processor = load_model(str(checkpoint), device="cpu")
        sampler = HFSampler(model.eval(), processor, batch_size=512)
        return GenerativeJudge(
            SelfVerifying(sampler) if verifies else sampler, self.template, max_tokens=self.settings.max_tokens
        )

    def _votes_of(self, judge: GenerativeJudge) -> Iterator[tuple[Any, Any]]:
        """Yield the held-out pairs, each with one sampled vote in each order."""
        judged: Sequence[Judgment] = judge.compare_many(
            self.test, orders=[BOTH_ORDERS] * len(self.test), num_votes=1, seed=self.settings.seed
        )
        for pair, item in zip(self.test, judged, strict=True):
            yield from ((pair, vote) for vote in item.votes)

    def run(self, trial: Trial) -> dict[str, Any]:
        """Train, and judge the held-out pairs with verification."""
        clock, cpu = time.perf_counter(), time.process_time()
        checkpoint = self._reinforce(trial) if trial.arm in RECIPES else self._teach(trial)
        judge, verdict_format = self._judge(checkpoint, verifies=trial.arm != "unverified"), self.template.verdict_format
        votes = [
            (pair.pair_id, verified_vote(vote, pair.preferred or 0, verdict_format)) for pair, vote in self._votes_of(judge)
        ]
        return {
            "arm": trial.arm,
            "seed": trial.seed,
            "votes": [[name, vote.first_right, vote.says_correct, vote.revised, vote.last_right] for name, vote in votes],
            "metrics": _metrics(checkpoint.parent) if trial.arm in RECIPES else [],
            "wall_s": round(time.perf_counter() - clock, 1),
            "cpu_s": round(time.process_time() - cpu, 1),
            "commit": self.commit,
        }

    def _teach(self, trial: Trial) -> Path:
        """Return the start, fine-tuned by the first process that needs it."""
        folder = self.out / "starts" / trial.name
        make_once(self.out / "made" / trial.name / "start.json", lambda: self._fine_tune(trial, folder))
        return folder / FINAL

    def _fine_tune(self, trial: Trial, folder: Path) -> dict[str, Any]:
        if is_finished(folder):  # and killed before that was noted
            return {}
        config = SFTConfig(
            model=str(self.judge),
            template=self.template.name,
            seed=trial.seed,
            learning_rate=self.settings.learning_rate,
            max_steps=self.settings.start_steps,
            batch_size=32,
            micro_batch_size=32,
            save_steps=10_000,
            **OPTIMIZER,
        )
        with {"unbalanced": unbalanced, "ungrounded": ungrounded}.get(trial.arm, nullcontext)():
            train_sft(self.pairs, config, folder, votes=self.votes)
        return {}

    def _reinforce(self, trial: Trial) -> Path:
        """Return what the arm's recipe makes of the start."""
        config, folder = self._rl_config(trial.arm, trial.seed), self.out / "runs" / trial.name
        if is_finished(folder):  # it may have been killed while it was judged
            return folder / FINAL
        if trial.arm == "pag":
            config = config.model_copy(update={"value_pretrain_steps": 0, "value_init": str(self._critic(config))})
        train_rl(self.pairs, config, folder)
        return folder / FINAL

    def _critic(self, config: RLConfig) -> Path:
        """Return the critic, fitted to the start by the first process that needs it."""

        def fit() -> dict[str, Any]:
            rows = rl_rows(hard_pairs(self.pairs, config), self.template, both_orders=True)
            build = partial(build_trainer, rows, template=self.template)
            return {"path": str(pretrain_value(build, config.model_copy(update={"seed": 0}), self.out / "critic", ""))}

        return Path(make_once(self.out / "critic" / "fit.json", fit)["path"])

    def _rl_config(self, arm: str, seed: int) -> RLConfig:
        """Return the arm's recipe with the quickstart's optimizer."""
        recipe = {
            name: value
            for name, value in load_yaml(find_config(f"rl/{RECIPES[arm]}")).items()
            if name not in ("model", "template", "evaluation", *SCHEDULE)
        }
        critic = {
            "value_learning_rate": self.settings.value_learning_rate,
            "value_pretrain_steps": self.settings.value_pretrain_steps,
        }
        values = {
            **recipe,
            **OPTIMIZER,
            "model": str(self._teach(Trial(0, "taught"))),
            "template": self.template.name,
            "seed": seed,
            "learning_rate": self.settings.rl_learning_rate,
            **(critic if arm == "pag" else {}),
            "warmup_steps": 5,
            "max_steps": self.settings.rl_steps,
            "rollout_batch_size": self.settings.rollout_batch_size,
            "batch_size": self.settings.batch_size,
            "micro_batch_size": min(64, self.settings.batch_size),
            "max_completion_length": self.settings.max_tokens,
            "save_steps": self.settings.rl_steps,
            "consistency": {"weight": 0.0},
            "health": {"policy": "warn"},
        }
        return RLConfig(**values)


def _metrics(run: Path) -> list[dict[str, float]]:
    """Return what is logged of verification and critic, step by step."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = ("verify/", "value/explained_variance", "reward/accuracy", "step")
    return [{name: value for name, value in line.items() if name.startswith(kept)} for line in lines]


@contextmanager
def unbalanced() -> Iterator[None]:
    """Teach from all votes."""

    def all_votes(*kinds: Sequence[verification_rows.JudgedVote]) -> list[verification_rows.JudgedVote]:
        return sorted((vote for kind in kinds for vote in kind), key=lambda item: item[0].row)

    with mock.patch.object(verification_rows, "choose_evenly", all_votes):
        yield


@contextmanager
def ungrounded() -> Iterator[None]:
    """Teach by all reasonings."""
    with mock.patch.object(verification_rows, "mentions_difference", return_value=True):
        yield


def scores_of(records: Sequence[dict[str, Any]]) -> RevisionScores:
    """Return the scores of the votes of several seeds; a pair is a cluster over all of them."""
    votes = [
        (name, VerifiedVote(first, says, revised, last)) for r in records for name, first, says, revised, last in r["votes"]
    ]
    return revision_scores([vote for _, vote in votes], [name for name, _ in votes])


def summarize(start: dict[str, Any], records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the table by arm: all seeds together, and each."""
    arms: dict[str, Any] = {}
    for arm in ARMS:
        if not (of_arm := [record for record in records if record["arm"] == arm]):
            continue
        gains = {record["seed"]: scores_of([record]).net_gain for record in of_arm}
        arms[arm] = {
            "title": ARMS[arm],
            "scores": asdict(scores_of(of_arm)),
            "net_gain_by_seed": {seed: asdict(gain) for seed, gain in gains.items()},
            "net_gain_over_seeds": t_interval([gain.difference for gain in gains.values()]),
            "metrics": [record["metrics"] for record in of_arm],
            "cpu_s": sum(record["cpu_s"] for record in of_arm),
        }
    return {"start": start, "arms": arms, "commits": sorted({record["commit"] for record in records})}


def markdown(summary: dict[str, Any], records: Sequence[dict[str, Any]], command: str) -> str:
    """Return the results as a page."""
    start = summary["start"]
    lines = ["# A judge that verifies itself", "", f"`{command}`, commit {', '.join(summary['commits'])}.", ""]
    lines += [
        f"The quickstart's SFT judge is right in {percent(start['accuracy'])} % of sampled judgments of held-out pairs, and in "
        f"{percent(start['on_train'])} % of those it was trained on. Below: one sampled judgment in each order, verified, "
        "revised where it was found wrong; all seeds together; 95 % intervals by jackknife over pairs.",
    ]
    of = {arm: scores_of([record for record in records if record["arm"] == arm]) for arm in summary["arms"]}
    rows = [
        (
            summary["arms"][arm]["title"],
            with_interval(scores.first.accuracy, scores.first.interval),
            with_interval(scores.last.accuracy, scores.last.interval),
            *(("–", "–") if arm == "unverified" else (percent(scores.revised), percent(scores.unclear))),
        )
        for arm, scores in of.items()
    ]
    titles = ("", "first judgment right, %", "last judgment right, %", "revised, %", "not called correct or wrong, %")
    lines += ["", *markdown_table(titles, rows)]
    for arm, cell in summary["arms"].items():
        if arm == "unverified":
            continue
        low, high = of[arm].net_gain.interval
        by_seed = ", ".join(
            f"{signed(gain['difference'])} [{signed(gain['interval'][0])}, {signed(gain['interval'][1])}]"
            for gain in cell["net_gain_by_seed"].values()
        )
        gain = f"**{signed(of[arm].net_gain.difference)} points [{signed(low)}, {signed(high)}]**"
        lines += ["", f"## {cell['title']}", "", f"Revising gains {gain}; by seed: {by_seed}.", ""]
        lines += markdown_table(("", "share %, 95 % interval", "judgments"), revision_rows(of[arm]))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"), help="a quickstart, finished up to its SFT")
    parser.add_argument("--out", type=Path, default=Path("runs/self_verification"))
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument(
        "--value-steps", type=positive, default=Settings.value_pretrain_steps, help="of the critic alone, at most"
    )
    parser.add_argument("--rl-steps", type=positive, default=Settings.rl_steps, help="of PAG")
    parser.add_argument("--workers", type=positive, default=1)
    parser.add_argument("--results", type=Path, default=ROOT / "eval" / "results")
    options = parser.parse_args()
    try:
        seeds = [int(seed) for seed in options.seeds.split(",")]
    except ValueError as error:
        raise ConfigError(f"--seeds {options.seeds!r}: expected numbers with commas between them, for example 0,1,2") from error
    trials = plan(ARMS, options.arms.split(","), seeds)
    minutes = sum(MINUTES[trial.arm] for trial in trials) / options.workers
    print(f"{len(trials)} trials: {', '.join(trial.name for trial in trials)}; about {minutes:.0f} min", flush=True)
    settings = Settings(value_pretrain_steps=options.value_steps, rl_steps=options.rl_steps)
    start = run_trials(partial(Context, options.run, settings, options.out), trials, options.out, workers=options.workers)
    records = read_records(options.out)
    summary = summarize(start, records)
    command = f"python -m eval.self_verification --value-steps {options.value_steps} --rl-steps {options.rl_steps}"
    write_atomic(options.results / "self_verification.json", json.dumps(summary, indent=1) + "\n")
    write_atomic(options.results / "self_verification.md", markdown(summary, records, command))
    print(options.results / "self_verification.md")


if __name__ == "__main__":
    run_script(main)
