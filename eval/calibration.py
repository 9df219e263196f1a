"""Whose probabilities can be trusted: `python eval/calibration.py --runs runs/study/seed*`, by hand. Results: eval/results/.

From one checkpoint of each finished quickstart, with equal steps: a generative classifier (the verdict alone) and a
Bradley-Terry head. Beside them the quickstart's own reasoning judges: the probability of the verdict after K of their
rationales, and the plain share of K votes. Everything is measured on one half of the held-out pairs; the other half fits a
temperature.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from calibration_tables import JUDGES, NUM_RATIONALES, draw, evaluate, markdown, methods, planted, position

from rewardlab.config import RMConfig, SFTConfig, load_config
from rewardlab.data.files import write_atomic
from rewardlab.data.pairs import read_pairs
from rewardlab.models.checkpoints import commit, template_for
from rewardlab.models.loading import load_processor
from rewardlab.models.value_model import ValueModel
from rewardlab.prompts import build_messages
from rewardlab.reporting.progress import bar
from rewardlab.rewards.pairwise import score_responses
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.reward_model import train_reward_model
from rewardlab.training.sft import train_sft
from rewardlab.types import BOTH_ORDERS, PreferencePair
from rewardlab.verdicts.margins import LEAST_COVERAGE
from rewardlab.verdicts.parse import until_verdict

ROOT = Path(__file__).parent
CONFIGS = ROOT.parent / "configs" / "calibration"
STARTS = {"sft": "sft/final", "base": "demo/base"}


def train(run: Path, out: Path, start: str, seed: int, steps: int, rate: float) -> None:
    """The classifier and the scalar head of one seed; what is finished is kept."""
    changes = {"model": str(run / STARTS[start]), "seed": seed, "max_steps": steps, "learning_rate": rate}
    pairs = read_pairs(run / "demo" / "train.parquet")
    if not (out / "classifier" / "final").exists():
        train_sft(pairs, load_config(SFTConfig, CONFIGS / "sft.yaml", **changes), out / "classifier")
    if not (out / "rm" / "final").exists():
        train_reward_model(pairs, load_config(RMConfig, CONFIGS / "rm.yaml", **changes), out / "rm")


def _read(folder: Path, prompts: Sequence[tuple[PreferencePair, str, str]], label: str) -> np.ndarray:
    """Margins of the response shown first, nan where the model was about to write no verdict. Each prompt is read once."""
    sampler, template = HFSampler.load(folder), template_for(folder, None)
    distinct = list(dict.fromkeys((pair.pair_id, order, beginning) for pair, order, beginning in prompts))
    pairs, margin_of = {pair.pair_id: pair for pair, _, _ in prompts}, {}
    with bar(label, len(distinct)) as advance:
        for start in range(0, len(distinct), sampler.batch_size):
            batch = distinct[start : start + sampler.batch_size]
            chats = [build_messages(pairs[name], order=order, template=template) for name, order, _ in batch]
            margins, coverage = sampler.verdict_margins(chats, [beginning for _, _, beginning in batch])
            margins[coverage < LEAST_COVERAGE] = torch.nan
            margin_of |= dict(zip(batch, margins.tolist(), strict=True))
            advance(len(batch))
    return np.array([margin_of[pair.pair_id, order, beginning] for pair, order, beginning in prompts])


def _votes(path: Path) -> list[dict[str, list[dict[str, Any]]]]:
    """Return every pair's recorded votes by order."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    votes_of_row = {row["row"]: row["votes"] for row in rows if row["pass"] == "votes"}
    return [
        {order: [v for v in votes_of_row[n] if v["order"] == order] for order in BOTH_ORDERS} for n in range(len(votes_of_row))
    ]


def measure(run: Path, out: Path, stages: Sequence[str]) -> dict[str, np.ndarray]:
    """Margins [N, 2 orders, K] of the classifier and of reasoning judges, [N] of the scalar head, votes [N, 2, K]; kept."""
    path = out / "margins.npz"
    if path.exists():
        return dict(np.load(path))
    pairs = read_pairs(run / "demo" / "test.parquet")
    arrays = {"preferred": np.array([pair.preferred for pair in pairs])}
    prompts = [(pair, order, "") for pair in pairs for order in BOTH_ORDERS]
    arrays["classifier"] = _read(out / "classifier" / "final", prompts, "classifier").reshape(len(pairs), 2, 1)
    rm = out / "rm" / "final"
    model, processor = ValueModel.from_pretrained(str(rm)), load_processor(str(rm))
    scores = score_responses(model, processor, pairs, template_for(rm, None)).double()
    arrays["rm"] = (scores[:, 0] - scores[:, 1]).numpy()
    for stage in stages:
        votes_of_row = _votes(run / "bench" / stage / "votes.jsonl")
        choice = {"first": 1.0, "second": 0.0, None: np.nan}
        arrays[f"{stage} votes"] = np.array(
            [[[choice[v["choice"]] for v in votes[o]] for o in BOTH_ORDERS] for votes in votes_of_row]
        )
        margins = np.full((len(pairs), 2, NUM_RATIONALES), np.nan)
        prompts, places = [], []
        for n, votes in enumerate(votes_of_row):
            for side, order in enumerate(BOTH_ORDERS):
                for k, vote in enumerate(votes[order][:NUM_RATIONALES]):
                    beginning = until_verdict(vote["text"], "think_answer") if vote["status"] == "ok" else None
                    if beginning is not None:
                        prompts.append((pairs[n], order, beginning))
                        places.append((n, side, k))
        margins[tuple(np.array(places).T)] = _read(run / stage / "final", prompts, f"{stage}: rationales")
        arrays[f"{stage} margins"] = margins
    np.savez(path, **arrays)
    return arrays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, nargs="+", default=[Path("runs/quickstart")], help="finished quickstarts")
    parser.add_argument("--start", choices=sorted(STARTS), default="sft", help="checkpoint that both heads start from")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--learning-rate", type=float, default=2e-4, help="of both heads; at 1e-3 neither learnt anything")
    parser.add_argument("--out", type=Path, default=Path("runs/calibration"))
    parser.add_argument("--name", default="calibration", help="of the files in eval/results/")
    options = parser.parse_args()
    stages, measured = ("sft", "rl"), []
    for seed, run in enumerate(options.runs):
        train(run, options.out / f"seed{seed}", options.start, seed, options.steps, options.learning_rate)
        measured.append(measure(run, options.out / f"seed{seed}", stages))
    by_method = [methods(f, stages) for f in measured]
    rows = [
        evaluate(name, [(margins[name], 1 - f["preferred"]) for margins, f in zip(by_method, measured, strict=True)])
        for name in by_method[0]
    ]
    biased = [("classifier", "classifier", 1)]
    for stage in stages:
        biased.append((f"{JUDGES[stage]}, 1 rationale", f"{stage} margins", 1))
        biased.append((f"{JUDGES[stage]}, {NUM_RATIONALES} rationales", f"{stage} margins", NUM_RATIONALES))
    result = {
        "command": f"python eval/calibration.py --start {options.start} --steps {options.steps} "
        f"--learning-rate {options.learning_rate:g}",
        "commit": commit(),
        "start": options.start,
        "steps": options.steps,
        "runs": [run.name for run in options.runs],
        "methods": rows,
        "planted": {name: planted(measured, key, k) for name, key, k in biased},
        "position": {
            name: [position(f, key) for f in measured] for name, key, _ in biased if not name.endswith(" 1 rationale")
        },
    }
    write_atomic(ROOT / "results" / f"{options.name}.json", json.dumps(result, indent=1) + "\n")
    write_atomic(ROOT / "results" / f"{options.name}.md", markdown(result))
    chosen = ["classifier: both, log-odds", "Bradley-Terry head"]
    chosen += [
        n for n in by_method[0] if n.endswith((f"{NUM_RATIONALES} rationales: both, log-odds by pairs", ", 5 votes per order"))
    ]
    panels = {}
    for name in chosen:
        margins = np.concatenate([m[name][:, 0] for m in by_method])
        happened, read = np.concatenate([1 - f["preferred"] for f in measured]), ~np.isnan(margins)
        panels[name] = (torch.from_numpy(margins[read]).sigmoid().numpy(), happened[read])
    draw(panels, ROOT / "results" / f"{options.name}.png")


if __name__ == "__main__":
    main()
