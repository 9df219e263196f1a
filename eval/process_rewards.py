"""Step labels against the demo's own truth, a process reward model on held-out pairs, and a critic that starts from it.

`python eval/process_rewards.py --run runs/quickstart --out runs/process`, by hand, after a quickstart; about ten minutes
on one core. A part already in OUT is kept. Results go to eval/results/process_rewards.json and .md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import rewardlab  # noqa: F401  (before transformers, see rewardlab/models/torchvision_cpu.py)

# isort: split
import numpy as np
from scipy.stats import rankdata
from scipy.stats import t as student
from transformers import PrinterCallback, TrainerCallback

from rewardlab.config import PRMConfig, RLConfig, StepsConfig, load_config
from rewardlab.data.files import write_atomic
from rewardlab.data.pairs import read_pairs
from rewardlab.data.rows import with_blank_images
from rewardlab.demo.judgments import Truth
from rewardlab.demo.pairs import read_truths
from rewardlab.demo.step_truths import first_wrong, spoil_judgment, steps_of, truth_of_steps
from rewardlab.distill.step_labels import label_steps, read_steps
from rewardlab.judging.engines import open_generative_judge
from rewardlab.metrics.intervals import mean_interval
from rewardlab.models.checkpoints import commit
from rewardlab.models.loading import load_model, load_processor
from rewardlab.models.value_model import ValueModel
from rewardlab.prompts import load_template
from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.prm import StepCollator, prm_rows, step_scores, train_prm
from rewardlab.training.rl import build_trainer, hard_pairs, rl_rows
from rewardlab.types import Order, PreferencePair

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs" / "tiny"


def with_truth(
    rows: Sequence[dict[str, Any]], pairs: dict[str, PreferencePair], truths: dict[str, Truth]
) -> list[dict[str, Any]]:
    """Labelled judgments with what the demonstration knows of their steps."""
    out = []
    for row in rows:
        pair = pairs[row["pair_id"]]
        truth = truths[hashlib.sha256(pair.images[0]).hexdigest()]
        kinds = truth_of_steps(steps_of(row["text"], row["ends"]), truth, pair.shown(Order(row["order"])))
        out.append({**row, "kinds": kinds, "wrong": first_wrong(kinds)})
    return out


def share(values: Sequence[float], clusters: Sequence[str]) -> dict[str, Any]:
    return (
        {"share": float(np.mean(values)), "interval": list(mean_interval(values, clusters)), "n": len(values)}
        if values
        else {"n": 0}
    )


def agreement(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Monte Carlo's first bad step against the first that is wrong by the truth; baselines name a step without looking."""
    known = [row for row in rows if "unknown" not in row["kinds"]]
    wrong = [row for row in known if row["wrong"] is not None and not row["right"]]
    harmless = [row for row in known if row["wrong"] is not None and row["right"]]
    careful = [row for row in known if row["wrong"] is None and "praise_right" not in row["kinds"]]
    lucky = [row for row in known if row["wrong"] is None and "praise_right" in row["kinds"]]

    def share_of(kept: Sequence[dict[str, Any]], score: Callable[[dict[str, Any]], float]) -> dict[str, Any]:
        return share([float(score(row)) for row in kept], [row["pair_id"] for row in kept])

    return {
        "num_judgments": len(rows),
        "with_unknown_steps": len(rows) - len(known),
        "wrong step, wrong verdict: same step": share_of(wrong, lambda row: row["first_bad"] == row["wrong"]),
        "some step found": share_of(wrong, lambda row: row["first_bad"] is not None),
        "right by the first step": share_of(wrong, lambda row: row["wrong"] == 1),
        "right by the last step": share_of(wrong, lambda row: row["wrong"] == len(row["ends"])),
        "right by a random step": share_of(wrong, lambda row: 1 / len(row["ends"])),
        "wrong step, but not the last: same step": share_of(
            [row for row in wrong if row["wrong"] < len(row["ends"])], lambda row: row["first_bad"] == row["wrong"]
        ),
        "false step, right verdict: none found": share_of(harmless, lambda row: row["first_bad"] is None),
        "all true: none found": share_of(careful, lambda row: row["first_bad"] is None),
        "praise of the right response: found bad": share_of(lucky, lambda row: row["first_bad"] is not None),
        "steps_per_judgment": float(np.mean([len(row["ends"]) for row in rows])) if rows else None,
    }


def auc(scores: np.ndarray, good: np.ndarray) -> float:
    """Chance that a good step scores above a bad one, ties half."""
    ranks, num = rankdata(scores), good.sum()
    return float((ranks[good].sum() - num * (num + 1) / 2) / (num * (len(good) - num)))


def auc_with_interval(scores: Sequence[float], good: Sequence[bool], clusters: Sequence[str]) -> dict[str, Any]:
    """95 % over pairs."""
    s, g, names = np.asarray(scores), np.asarray(good), np.asarray(clusters)
    if g.all() or not g.any():
        return {"n": len(g)}
    members = [np.flatnonzero(names == name) for name in np.unique(names)]
    rng, draws = np.random.default_rng(0), []
    for _ in range(1000):
        chosen = np.concatenate([members[n] for n in rng.integers(0, len(members), len(members))])
        if 0 < g[chosen].sum() < len(chosen):
            draws.append(auc(s[chosen], g[chosen]))
    low, high = np.quantile(draws, (0.025, 0.975))
    return {"auc": auc(s, g), "interval": [float(low), float(high)], "n": len(g), "num_bad": int((~g).sum())}


def prm_accuracy(rows: Sequence[dict[str, Any]], pairs: Sequence[PreferencePair], folder: Path) -> dict[str, Any]:
    """AUC of the model's scores for Monte Carlo's labels and for the demonstration's truth; blind, and by the step's number."""
    model, collator = ValueModel.from_pretrained(str(folder)), StepCollator(load_processor(str(folder)), load_template("plain"))
    seen = step_scores(model, collator, prm_rows(pairs, rows))
    blind = step_scores(model, collator, prm_rows(with_blank_images(pairs), rows))
    place = [[-float(k) for k in range(len(row["ends"]))] for row in rows]
    result: dict[str, Any] = {}
    subsets: dict[str, Callable[[dict[str, Any]], bool]] = {
        "all": lambda row: True,
        "careful": lambda row: not any(kind.startswith("praise") for kind in row["kinds"]),
    }
    for subset, keep in subsets.items():
        for name, scores in (("model", seen), ("blank image", blind), ("earlier is better", place)):
            for target in ("label", "truth"):
                points = [
                    (score, label > 0 if target == "label" else kind in ("true", "praise_right"), row["pair_id"])
                    for row, row_scores in zip(rows, scores, strict=True)
                    if keep(row)
                    for score, label, kind in zip(row_scores, row["labels"], row["kinds"], strict=True)
                    if target == "label" or kind != "unknown"
                ]
                result[f"{subset}: {name}, by {target}"] = auc_with_interval(*zip(*points, strict=True))
    return result


class ExplainedReturns(TrainerCallback):
    """How well the critic of ``trainer`` knows the returns of each rollout batch, before it is fitted to that batch.

    (explained variance, squared correlation): the second does not mind a wrong scale, such as that of labels of +-1.
    """

    def __init__(self, trainer: PolicyTrainer) -> None:
        self._trainer = trainer
        self.batches: list[tuple[float, float]] = []
        trainer.add_callback(self)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        parts = self._trainer._buffered_inputs
        if state.global_step % (len(parts) // args.gradient_accumulation_steps * args.num_iterations):
            return  # of a rollout batch that is counted already
        trained = [part["value_mask"] > 0 for part in parts]
        values, targets = (
            np.concatenate([part[key][mask].double().numpy() for part, mask in zip(parts, trained, strict=True)])
            for key in ("old_values", "value_targets")
        )
        correlation = np.corrcoef(values, targets)[0, 1] if values.std() > 0 else 0.0
        self.batches.append((float(1 - (targets - values).var() / targets.var()), float(correlation**2)))


def explained(
    run: Path, out: Path, init: str | None, seed: int, batches: int, pairs: Sequence[PreferencePair]
) -> list[tuple[float, float]]:
    """Fit a critic to the first rollout batches; return how well it knew the returns of each (see ExplainedReturns)."""
    config = RLConfig(
        model=str(run / "sft" / "final"), template="plain", advantage="gae", outliers="keep", preclip=None,
        learning_rate=6e-4, value_learning_rate=6e-4, lr_scheduler="constant", rollout_batch_size=128, batch_size=64,
        micro_batch_size=64, max_steps=2 * batches, save_steps=1000, max_completion_length=64, adam_beta2=0.98,
        gradient_checkpointing=False, consistency={"weight": 0.0}, value_init=init, seed=seed,
    )  # fmt: skip
    template = load_template("plain")
    rows = rl_rows(hard_pairs(random.Random(seed).sample(list(pairs), len(pairs)), config), template, both_orders=True)
    model, processor = load_model(config.model, device="cpu")
    folder = out / f"value-{seed}"
    trainer = build_trainer(rows, config, model, processor, template, folder, trl={"save_strategy": "no"}, value_only=True)
    trainer.remove_callback(PrinterCallback)
    returns = ExplainedReturns(trainer)
    trainer.train()
    shutil.rmtree(folder, ignore_errors=True)
    return returns.batches


def value_init(run: Path, out: Path, prm: Path, batches: int, pairs: Sequence[PreferencePair]) -> dict[str, Any]:
    """Both beginnings over three seeds: by batch, and the paired difference of the means with a t interval over seeds."""
    curves: dict[str, list[list[tuple[float, float]]]] = {"policy": [], "prm": []}
    for seed in range(3):
        for name, init in (("policy", None), ("prm", str(prm))):
            curves[name].append(explained(run, out, init, seed, batches, pairs))
            print(f"seed {seed}, critic from {name}: " + " ".join(f"{a:.2f}/{b:.2f}" for a, b in curves[name][-1]), flush=True)
    result: dict[str, Any] = {"curves": curves}
    half = batches // 2
    for place, measure in enumerate(("explained variance", "squared correlation")):
        for label, (start, stop) in {
            "batch 1": (0, 1),
            f"2-{half}": (1, half),
            f"{half + 1}-{batches}": (half, batches),
        }.items():
            means = {
                name: [float(np.mean([b[place] for b in c[start:stop]])) for c in seed_curves]
                for name, seed_curves in curves.items()
            }
            gain = np.subtract(means["prm"], means["policy"])
            slack = float(student.ppf(0.975, len(gain) - 1) * gain.std(ddof=1) / len(gain) ** 0.5)
            mean = float(gain.mean())
            result[f"{measure}, {label}"] = {**means, "gain": mean, "interval": [mean - slack, mean + slack]}
    return result


def cell(figures: dict[str, Any]) -> str:
    value = figures.get("share", figures.get("auc"))
    if value is None:
        return f"– ({figures['n']})"
    low, high = figures["interval"]
    return f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}] ({figures['n']})"


def markdown(result: dict[str, Any]) -> str:
    """The tables."""
    lines = [
        "# Process rewards", "",
        f"`{result['command']}`, commit {result['commit'][:7]} ("
        + ", ".join(f"{name}: {made[:7]}" for name, made in result["commits_of_parts"].items())
        + "). Percent, 95 % intervals over pairs, (number).", "",
        "## Step labels against the demonstration's truth", "",
        "| | judgments of the SFT judge | of two steps or more | spoiled at a random step |", "|---|---|---|---|",
    ]  # fmt: skip
    columns = [result["agreement"][name] for name in ("natural", "natural, longer", "spoiled")]
    for name in columns[0]:
        if isinstance(columns[0][name], dict):
            lines.append(f"| {name} | " + " | ".join(cell(column[name]) for column in columns) + " |")
    lines += [
        "",
        "## Labelling",
        "",
        "| | " + " | ".join(result["labelling"]) + " |",
        "|---" * (1 + len(result["labelling"])) + "|",
    ]
    for name in ("num_pairs", "num_judgments", "statuses", "share_with_bad_step", "first_bad", "bad_step_but_right_verdict",
                 "no_bad_step_but_wrong_verdict", "steps_per_judgment", "queries_per_judgment", "most_queries",
                 "num_completions", "invalid_completions"):  # fmt: skip
        values = [share_of[name] for share_of in result["labelling"].values()]
        lines.append(f"| {name} | " + " | ".join(f"{v:.3f}" if isinstance(v, float) else str(v) for v in values) + " |")
    lines += ["", "## Process reward model, AUC over steps of held-out pairs", ""]
    lines += ["| | " + " | ".join(result["auc"]) + " |", "|---" * (1 + len(result["auc"])) + "|"]
    for name in next(iter(result["auc"].values())):
        lines.append(f"| {name} | " + " | ".join(cell(figures[name]) for figures in result["auc"].values()) + " |")
    lines += ["", "## What a critic knows of returns: started from the policy, and from the process reward model", ""]
    lines += ["| rollout batches | policy, by seed | process reward model, by seed | difference, t interval over seeds |"]
    lines += ["|---|---|---|---|"]
    for name, figures in result["value_init"].items():
        if name != "curves":
            curves = [" ".join(f"{v:.2f}" for v in figures[key]) for key in ("policy", "prm")]
            low, high = figures["interval"]
            lines.append(f"| {name} | {curves[0]} | {curves[1]} | {figures['gain']:+.2f} [{low:+.2f}, {high:+.2f}] |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"), help="a finished quickstart")
    parser.add_argument("--out", type=Path, default=Path("runs/process"))
    parser.add_argument("--train", type=int, default=400, help="training pairs to label")
    parser.add_argument("--test", type=int, default=200, help="held-out pairs to label")
    parser.add_argument("--batches", type=int, default=10, help="rollout batches of the value comparison")
    options = parser.parse_args()
    run, out, judge = options.run, options.out, open_generative_judge(f"hf:{options.run / 'sft' / 'final'}", batch_size=640)
    truths = {truth.image_sha256: truth for truth in read_truths(run / "demo" / "truths.jsonl")}
    distilled = read_pairs(run / "distill" / "distilled.parquet")
    train, test = distilled[: options.train], read_pairs(run / "demo" / "test.parquet")
    rng = random.Random(0)

    def broken(pairs: Sequence[PreferencePair]) -> list[PreferencePair]:
        made = (spoil_judgment(p, truths[hashlib.sha256(p.images[0]).hexdigest()], rng.choice(list(Order)), rng) for p in pairs)
        return [pair for pair in made if pair is not None]

    sets = {
        "train": train,
        "natural": test[: options.test],
        "spoiled": broken(test[options.test :])[: options.test],
        "train spoiled": broken(distilled[options.train :])[: options.train],
    }
    labelling, rows = {}, {}
    for name, pairs in sets.items():
        source, per_order = ("pairs" if "spoiled" in name else "judge"), (2 if name == "train" else 1)
        config = load_config(StepsConfig, CONFIGS / "steps.yaml", source=source, judgments_per_order=per_order)
        folder = out / f"steps-{name.replace(' ', '-')}"
        labelling[name] = label_steps(pairs, config, judge, folder)
        rows[name] = with_truth(read_steps(folder / "steps.jsonl"), {p.pair_id: p for p in pairs}, truths)
    models = {"prm": ("train",), "prm-both": ("train", "train spoiled")}
    for name, taught in models.items():
        if not (out / name / "final").exists():
            config = load_config(PRMConfig, CONFIGS / "prm.yaml", model=str(run / "sft" / "final"))
            known = [{k: v for k, v in row.items() if k not in ("kinds", "wrong")} for part in taught for row in rows[part]]
            train_prm([pair for part in taught for pair in sets[part]], known, config, out / name)
    if not (out / "value.json").exists():
        rest = distilled[options.train : options.train + 4000]
        gains = value_init(run, out, out / "prm" / "final", options.batches, rest)
        write_atomic(out / "value.json", json.dumps({**gains, "commit": commit()}))
    value = json.loads((out / "value.json").read_text())
    longer = [row for row in rows["natural"] if len(row["ends"]) > 1]
    result = {
        "command": f"python eval/process_rewards.py --train {options.train} --test {options.test} --batches {options.batches}",
        "commit": commit(),
        "commits_of_parts": {
            "critics": value.pop("commit"),
            **{name: json.loads((out / name / "run.json").read_text())["commit"] for name in models},
        },
        "labelling": labelling,
        "agreement": {
            "natural": agreement(rows["natural"]),
            "natural, longer": agreement(longer),
            "spoiled": agreement(rows["spoiled"]),
        },
        "auc": {
            f"{name}, {model}": prm_accuracy(rows[name], sets[name], out / model / "final")
            for model in models
            for name in ("natural", "spoiled")
        },
        "value_init": value,
    }
    write_atomic(ROOT / "eval" / "results" / "process_rewards.json", json.dumps(result, indent=1) + "\n")
    write_atomic(ROOT / "eval" / "results" / "process_rewards.md", markdown(result))
    print(markdown(result))


if __name__ == "__main__":
    main()
