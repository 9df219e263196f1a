"""What becomes of a policy under a judge that is hardened meanwhile? `python -m eval.hardening_loop`, by hand.

The policy study's policy, paid by judges against the right answer, without a KL term. For each seed: `rewardlab harden`, where
the first judge learns and the policy is paid by the least of it and of ``--other-judges``, which stay as they are; and beside
it `rewardlab policy` for as many steps under all these judges as they are, and under the first alone. All are asked the
demonstration's held-out questions, which neither they nor the gate of the loop have seen: its held-out questions are drawn
anew. Every stage is a command, and a finished one is not run again. Results: eval/results/hardening_loop.json, .md and .png.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from eval.hardening import cell_of
from eval.scripts import keep_settings, run_script
from eval.studies.plans import write_files
from eval.studies.policy_trials import MANY_WORDED, is_right
from eval.studies.trials import digest
from rewardlab.data.files import write_atomic
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.demo.pairs import make_pairs
from rewardlab.models.checkpoints import commit
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.run.folder import FINAL, is_finished
from rewardlab.types import FinishReason, Order, PreferencePair

NAME, DRAWS = "hardening_loop", 2
ROOT = Path(__file__).parents[1]
WAYS = {
    "loop": "one judge hardened in the loop, the others as they are",
    "several": "all judges as they are",
    "alone": "the first judge alone, as it is",
}
Record = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """``steps`` of the policy in a round; ``mix`` and ``judge_steps`` are those of the judge's training."""

    rounds: int = 4
    steps: int = 40
    checkpoints: int = 2
    mix: float = 4.0
    judge_steps: int = 24
    number: int = 800
    max_tokens: int = 24
    judge_tokens: int = 64
    num_gate: int = 1000  # pairs that are made for the gate
    seed: int = 1000  # of the pairs of the gate, and of the answers that are examined


POLICY: Record = {
    "advantage": "reinforce_pp_baseline",
    "group_size": 4,
    "outliers": "keep",
    "preclip": "null",
    "learning_rate": 3e-4,
    "warmup_steps": 3,
    "lr_scheduler": "constant_with_warmup",
    "rollout_batch_size": 128,
    "batch_size": 128,
    "micro_batch_size": 64,
    "adam_beta2": 0.98,
    "gradient_checkpointing": "false",
    "judge_batch_size": 512,
}


def write_questions(demo: Path, out: Path, settings: Settings) -> dict[str, Path]:
    """Write the questions that have one right answer: those to train on, those of the gate, those to examine."""
    paths = {name: out / f"{name}.parquet" for name in ("train", "gate", "test")}
    if not all(path.exists() for path in paths.values()):
        train, test = ([p for p in read_pairs(demo / f"{n}.parquet") if p.question != MANY_WORDED] for n in ("train", "test"))
        known = {pair.images for pair in test}
        made = make_pairs(settings.num_gate, seed=settings.seed, held_out=True)[0]
        gate = [pair for pair in made if pair.question != MANY_WORDED and pair.images not in known]
        out.mkdir(parents=True, exist_ok=True)
        for name, pairs in (("train", train), ("gate", gate), ("test", test)):
            write_parquet(pairs, paths[name])
    return paths


def run_command(*words: Any) -> None:
    """Run a command of `rewardlab`; its page and its log tell how it goes."""
    line = [str(word) for word in words]
    print("rewardlab", *line, flush=True)
    subprocess.run([sys.executable, "-m", "rewardlab.cli", *line], check=True, stdout=subprocess.DEVNULL)


class Examination:
    """Asks policies the test questions, two sampled answers each. What came of a checkpoint is kept in a file of ``folder``."""

    def __init__(self, pairs: Sequence[PreferencePair], folder: Path, settings: Settings) -> None:
        self._pairs, self._folder, self._settings = pairs, folder, settings
        facts = [[pair.pair_id for pair in pairs], settings.max_tokens, settings.seed, DRAWS]
        self._questions = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:8]

    def share_right(self, policy: Path) -> float:
        """Return the share of right answers; one that is cut off is wrong."""
        kept = self._folder / f"{digest(policy / 'model.safetensors')}-{self._questions}.json"
        if not kept.exists():
            sampler, template = HFSampler.load(policy, batch_size=512), load_template("answer")
            prompts = [build_messages(pair, order=Order.GIVEN, template=template) for pair in self._pairs]
            params = SamplingParams(DRAWS, max_tokens=self._settings.max_tokens, seed=self._settings.seed)
            right = [
                answer.finish is FinishReason.STOP and is_right(answer.text, pair)
                for row, pair in zip(sampler.sample(prompts, params), self._pairs, strict=True)
                for answer in row
            ]
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomic(kept, json.dumps(sum(right) / len(right)))
        return float(json.loads(kept.read_text(encoding="utf-8")))


def yaml_list(judges: Sequence[Path]) -> str:
    return f"[{', '.join(f'prob:{judge}' for judge in judges)}]"


def run_loop(
    policy: Path,
    judges: Sequence[Path],
    paths: dict[str, Path],
    out: Path,
    settings: Settings,
    seed: int,
    examination: Examination,
) -> list[Record]:
    """Run the loop of a seed; return its rounds, each with the truth of its checkpoints on the test questions."""
    judge, *others = judges
    config = out / "policy.yaml"
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(config, "".join(f"{name}: {value}\n" for name, value in {**POLICY, "max_steps": settings.steps}.items()))
    words = ["harden", "--data", paths["train"], "--held-out", paths["gate"], "--policy", policy, "--judge", judge]
    words += ["--truth", "exact", "--rounds", settings.rounds, "--checkpoints", settings.checkpoints, "--mix", settings.mix]
    words += ["--policy-config", config, "--judge-config", ROOT / "configs" / "tiny" / "rl.yaml", "--number", settings.number]
    words += ["--judge-set", "consistency.weight=0", "--judge-set", f"max_steps={settings.judge_steps}"]
    words += ["--max-tokens", settings.max_tokens, "--judge-max-tokens", settings.judge_tokens, "--seed", 1000 * seed]
    if others:
        words += ["--policy-set", f"other_judges={yaml_list(others)}"]
    run_command(*words, "--out", out / "loop")
    rounds = [json.loads(line) for line in (out / "loop" / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    for row in rounds:
        folder = (out / "loop" / row["policy"]).parent  # what is in the folder of the loop starts there
        row["test"] = {name: examination.share_right(folder / name) for name in row["checkpoints"]}
        row["next_test"] = examination.share_right(out / "loop" / row["next_policy"])
    return rounds


def run_alone(
    policy: Path,
    judges: Sequence[Path],
    paths: dict[str, Path],
    trained: Path,
    settings: Settings,
    seed: int,
    examination: Examination,
) -> list[float]:
    """Train a policy of a seed under judges as they are; return its truth, at the end of what would be rounds."""
    steps, (judge, *others) = settings.rounds * settings.steps, judges
    if not is_finished(trained):
        keys = {
            **POLICY,
            "max_steps": steps,
            "save_steps": settings.steps,
            "save_total_limit": settings.rounds + 1,
            "max_completion_length": settings.max_tokens,
            "judge_max_tokens": settings.judge_tokens,
            "seed": 1000 * seed,
            "health.policy": "warn",
            "signs.truth": "exact",
            **({"other_judges": yaml_list(others)} if others else {}),
        }
        words = ["policy", "--data", paths["train"], "--model", policy, "--judge", f"prob:{judge}", "--out", trained]
        run_command(*words, *(f"{name}={value}" for name, value in keys.items()))
    places = [trained / f"checkpoint-{step}" for step in range(settings.steps, steps, settings.steps)] + [trained / FINAL]
    return [examination.share_right(place) for place in places]


def summarize(seeds: dict[str, Record], facts: Record) -> Record:
    """Return what the tables show, of each way of paying: truth by round, its least value at the end of one, and its last."""
    curves = {}
    for name in WAYS:
        if not all(name in record for record in seeds.values()):
            continue
        of_way = [[row["next_test"] for row in record[name]] if name == "loop" else record[name] for record in seeds.values()]
        with_start = [[facts["start"], *values] for values in of_way]
        means = [sum(column) / len(column) for column in zip(*with_start, strict=True)]
        curves[name] = {
            "seeds": with_start,
            "mean": means,
            "last": [values[-1] for values in with_start],
            "least": [min(values) for values in with_start],
        }
    any_checkpoint = [min(value for row in record["loop"] for value in row["test"].values()) for record in seeds.values()]
    return {**facts, "curves": curves, "least_of_any_checkpoint": any_checkpoint, "seeds": seeds}


def markdown(summary: Record) -> str:
    """Return the tables of a summary."""
    seeds, settings, curves = summary["seeds"], summary["settings"], summary["curves"]
    rows = [
        "# What becomes of a policy under a judge that is hardened meanwhile?",
        "",
        f"- `python -m eval.hardening_loop`, commit {summary['commit']}; seeds {', '.join(seeds)}.",
        f"- {settings['rounds']} rounds of {settings['steps']} policy steps, no KL term.",
        f"- Judges that pay: {summary['num_judges']}; the reward is the least of what they pay.",
        f"- Right answers to {summary['num_test']} questions that neither training nor the gate has seen, two sampled answers",
        f"  each; the policy at the start: {100 * summary['start']:.1f} %. Means with Student's 95 % intervals over seeds.",
        "",
        f"| right answers, % | {' | '.join(WAYS[name] for name in curves)} |",
        "|---|" + "---|" * len(curves),
    ]
    for words, key in (("at the end", "last"), ("least at the end of a round", "least")):
        rows.append(f"| {words} | {' | '.join(cell_of(curve[key]) for curve in curves.values())} |")
    means = (f"{100 * min(curve['mean']):.1f}" for curve in curves.values())
    rows.append(f"| least of the mean curve | {' | '.join(means)} |")
    gains = (
        cell_of([ours - theirs for ours, theirs in zip(curves["loop"]["last"], curve["last"], strict=True)])
        for name, curve in curves.items()
        if name != "loop"
    )
    rows.append(f"| the loop's less this one's at the end, seed by seed, points | | {' | '.join(gains)} |")
    least = cell_of(summary["least_of_any_checkpoint"])
    rows.append(f"| least of any checkpoint, those that are not gone on with too | {least} |{' |' * (len(curves) - 1)}")
    rows += [
        "",
        "| seed | round | policy handed on, % | checkpoints, % | wrong and paid | judge before, % | after, % | accepted |",
    ]
    rows.append("|" + "---|" * 8)
    for seed, record in seeds.items():
        for row in record["loop"]:
            tested = ", ".join(f"{100 * value:.1f}" for value in row["test"].values())
            judges = [
                f"{100 * value:.1f}" if value is not None else "–" for value in (row["accuracy_before"], row["accuracy_after"])
            ]
            cells = [seed, row["number"], f"{100 * row['next_test']:.1f}", tested, row["negatives"], *judges, row["accepted"]]
            rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*rows, "", f"![Right answers by round]({NAME}.png)"]) + "\n"


def draw(summary: Record, path: Path) -> None:
    """Draw the truth of the policies round by round: of the loop the one that is handed on."""
    figure, axes = plt.subplots(figsize=(5.6, 3.6))
    for (name, curve), color in zip(summary["curves"].items(), ("C0", "C2", "C3"), strict=False):
        for values in curve["seeds"]:
            axes.plot([100 * value for value in values], color=color, lw=0.7, alpha=0.5)
        axes.plot([100 * value for value in curve["mean"]], color=color, lw=2, label=WAYS[name])
    axes.axhline(100 * summary["start"], color="grey", lw=0.8, ls=":")
    axes.set(xlabel="rounds done", ylabel="right answers, %", xticks=range(summary["settings"]["rounds"] + 1))
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"), help="a quickstart: its demo pairs")
    parser.add_argument("--policy", type=Path, required=True, help="the policy to begin with: START/final of the policy study")
    parser.add_argument("--judge", type=Path, required=True, help="checkpoint folder of the judge that learns, hardened or not")
    parser.add_argument("--other-judges", type=Path, nargs="*", default=[], help="checkpoint folders of judges that pay, too")
    parser.add_argument("--out", type=Path, default=Path("runs/hardening_loop"))
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--set", default="{}", help="other settings, JSON")
    parser.add_argument("--results", type=Path, default=ROOT / "eval" / "results")
    options = parser.parse_args()
    settings, judges = Settings(**json.loads(options.set)), [options.judge, *options.other_judges]
    weights = {
        "policy": digest(options.policy / "model.safetensors"),
        "judges": [digest(judge / "model.safetensors") for judge in judges],
    }
    demo = {name: digest(options.run / "demo" / f"{name}.parquet") for name in ("train", "test")}
    keep_settings(options.out, {**asdict(settings), **weights, **demo})
    paths = write_questions(options.run / "demo", options.out / "pairs", settings)
    print(f"{len(options.seeds.split(','))} seeds of {settings.rounds} rounds, some half an hour each on one core", flush=True)
    test = read_pairs(paths["test"])
    examination = Examination(test, options.out / "truth", settings)
    start, seeds = examination.share_right(options.policy), dict[str, Record]()
    for seed in options.seeds.split(","):
        folder, parts = options.out / f"seed_{seed}", (settings, int(seed), examination)
        seeds[seed] = {"loop": run_loop(options.policy, judges, paths, folder, *parts)}
        if len(judges) > 1:
            seeds[seed]["several"] = run_alone(options.policy, judges, paths, folder / "several", *parts)
        seeds[seed]["alone"] = run_alone(options.policy, judges[:1], paths, folder / "alone", *parts)
    facts = {
        "commit": commit(),
        "settings": asdict(settings),
        "num_judges": len(judges),
        "num_test": len(test),
        "start": start,
    }
    write_files(NAME, summarize(seeds, facts), options.results, markdown=markdown, draw=draw)


if __name__ == "__main__":
    run_script(main)
