"""Is a critic fitted more cheaply by several passes over stored rollouts than by fresh ones?

`python -m eval.critic_fits --run runs/quickstart --out runs/critic_fits`, by hand, after the quickstart's SFT. Every fit is to
rollouts of the judge after SFT, which stays as it is; explained variance is measured on each rollout batch before the critic is
fitted to it. What is finished in OUT is kept. Results go to eval/results/critic_fits.json and .md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rewardlab  # noqa: F401  (before transformers, see rewardlab/models/torchvision_cpu.py)

# isort: split
import numpy as np
import torch

from eval.scripts import run_script
from eval.studies.critics import SIZES, Clock, CriticLab, logged
from eval.studies.trials import digest
from rewardlab.data.files import write_atomic
from rewardlab.errors import ConfigError

RESULTS = Path(__file__).parent / "results"
NO_CLIP = 1e6
ARMS: dict[str, dict[str, Any]] = {
    "fresh": {},
    "fresh, batches of 32": {"value_pretrain_batch_size": 32},
    "fresh, no clip": {"value_clip": NO_CLIP},
    "2 passes, no clip": {"value_clip": NO_CLIP, "iterations": 2},
    "4 passes, no clip": {"value_clip": NO_CLIP, "iterations": 4},
    "4 passes": {"iterations": 4},
    "8 passes, no clip": {"value_clip": NO_CLIP, "iterations": 8},
}
BATCHES = {1: 40, 2: 32, 4: 24, 8: 16}  # rollout batches of a fit, by its passes
TOKENS = (50_000, 100_000, 150_000, 200_000, 250_000)  # at which fits are compared
WINDOW = 5


def file_of(out: Path, arm: str, seed: int) -> Path:
    return out / f"{arm.replace(', ', '_').replace(' ', '_')}-{seed}.json"


def fit(lab: CriticLab, arm: str, seed: int, out: Path, batches: int | None) -> dict[str, Any]:
    """Fit one critic, keep it, and return its logs."""
    passes, size = ARMS[arm].get("iterations", 1), ARMS[arm].get("value_pretrain_batch_size", SIZES["batch_size"])
    steps = SIZES["rollout_batch_size"] // size * passes * (batches or BATCHES[passes])
    config = lab.fit_config("vc_ppo", seed, value_pretrain_steps=steps, **ARMS[arm])
    folder = file_of(out, arm, seed).with_suffix("")
    trainer, clock = lab.trainer(config, folder, value_only=True), Clock()
    trainer.add_callback(clock)
    trainer.train()
    trainer.critic.save(folder / "critic")
    return {"arm": arm, "seed": seed, "commit": lab.commit, **identity(lab, batches), "rows": logged(trainer, clock)}


def identity(lab: CriticLab, batches: int | None) -> dict[str, Any]:
    """Return what all fits of a folder must share."""
    return {"judge": digest(lab.judge / "model.safetensors"), "batches": batches}


def read_fits(out: Path, ours: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the finished fits in a folder. Raise ConfigError where one is of another judge or length."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*.json"))]
    for record in records:
        if theirs := {name: record.get(name) for name in ours if record.get(name) != ours[name]}:
            raise ConfigError(f"{out}: holds fits of {theirs}, these are of {ours}; use another --out")
    return records


def curve(record: dict[str, Any]) -> list[tuple[float, float, float]]:
    """Return by batch: tokens generated before it, CPU seconds until then, mean explained variance of the last batches."""
    points, tokens, seconds, explained = [], 0.0, 0.0, []
    for row in record["rows"]:
        if "value/explained_variance" in row:
            explained.append(row["value/explained_variance"])
            points.append((tokens, seconds, float(np.mean(explained[-WINDOW:]))))
        tokens, seconds = tokens + row.get("tokens/generated", 0), row["cpu_s"]
    return points


def summarize(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Explained variance by arm at equal tokens, over seeds: mean, least and largest; and what reaching 0.1 takes."""
    arms: dict[str, Any] = {}
    for arm in ARMS:
        curves = [curve(record) for record in records if record["arm"] == arm]
        if not curves:
            continue
        at = {}
        for tokens in TOKENS:
            values = [
                max((p for p in points if p[0] <= tokens), key=lambda p: p[0])[2]
                for points in curves
                if points[-1][0] >= tokens
            ]
            if values:
                at[str(tokens)] = {
                    "mean": float(np.mean(values)),
                    "least": min(values),
                    "most": max(values),
                    "seeds": len(values),
                }
        reached = [next(((t, s) for t, s, value in points if value >= 0.1), None) for points in curves]
        done = [point for point in reached if point]
        arms[arm] = {
            "at": at,
            "reached": len(done),
            "seeds": len(curves),
            "tokens_to_0.1": float(np.mean([t for t, _ in done])) if done else None,
            "cpu_s_to_0.1": float(np.mean([s for _, s in done])) if done else None,
            "cpu_s_per_1000_tokens": float(np.mean([points[-1][1] / points[-1][0] * 1000 for points in curves])),
        }
    return {"commits": sorted({record["commit"] for record in records}), "arms": arms}


def markdown(summary: dict[str, Any]) -> str:
    """The table of :func:`summarize`."""
    used = [tokens for tokens in map(str, TOKENS) if any(tokens in arm["at"] for arm in summary["arms"].values())]
    heads = " | ".join(f"{int(tokens):,} tokens" for tokens in used)
    lines = [
        "# Several passes over stored rollouts, or fresh ones?",
        "",
        f"- `python -m eval.critic_fits`, commit {', '.join(summary['commits'])}. The quickstart's judge after SFT, VC-PPO's",
        "  critic, rate 1e-3, rollout batches of 256 in batches of 128 where no other size stands.",
        f"- Explained variance of a rollout batch before the critic is fitted to it, mean of the last {WINDOW} batches; mean",
        "  over seeds [least and largest of them; no Student's intervals]. Tokens are those generated before. `no clip`: the",
        "  value clip of 0.2 is off.",
        "",
        f"| fit | seeds | {heads} | tokens to 0.1 | CPU s to 0.1 | CPU s per 1,000 tokens |",
        "|---|---|" + "---|" * (len(used) + 3),
    ]
    for arm, row in summary["arms"].items():
        cells = [
            f"{row['at'][t]['mean']:.2f} [{row['at'][t]['least']:.2f}, {row['at'][t]['most']:.2f}]" if t in row["at"] else "–"
            for t in used
        ]
        tokens = "–" if row["tokens_to_0.1"] is None else f"{row['tokens_to_0.1']:,.0f} ({row['reached']} of {row['seeds']})"
        seconds = "–" if row["cpu_s_to_0.1"] is None else f"{row['cpu_s_to_0.1']:.0f}"
        per = f"{row['cpu_s_per_1000_tokens']:.2f}"
        lines.append(f"| {arm} | {row['seeds']} | {' | '.join(cells)} | {tokens} | {seconds} | {per} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--out", type=Path, default=Path("runs/critic_fits"))
    parser.add_argument("--arms", default=";".join(ARMS), help="Some of them, by semicolons.")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--batches", type=int, default=None, help="Rollout batches of every fit; default: by its passes.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    lab = CriticLab(options.run)
    read_fits(options.out, identity(lab, options.batches))
    plan = [(arm, int(seed)) for seed in options.seeds.split(",") for arm in options.arms.split(";")]
    todo = [(arm, seed) for arm, seed in plan if not file_of(options.out, arm, seed).exists()]
    print(f"{len(plan)} fits, {len(todo)} to do, of about 3 to 6 minutes on one core each", flush=True)
    for place, (arm, seed) in enumerate(todo):
        started = time.monotonic()
        record = fit(lab, arm, seed, options.out, options.batches)
        write_atomic(file_of(options.out, arm, seed), json.dumps(record) + "\n")
        took = time.monotonic() - started
        last = curve(record)[-1]
        print(
            f"{arm}, seed {seed}: {last[2]:.3f} after {last[0]:,.0f} tokens, {took:.0f} s; {len(todo) - place - 1} left",
            flush=True,
        )
    records = read_fits(options.out, identity(lab, options.batches))
    summary = summarize(records)
    curves = [{name: record[name] for name in ("arm", "seed", "commit")} | {"curve": curve(record)} for record in records]
    lines = ",\n".join(json.dumps(line, separators=(",", ":")) for line in curves)  # (tokens, CPU s, explained variance)
    write_atomic(RESULTS / "critic_fits.json", f'{{"summary": {json.dumps(summary)},\n"curves": [\n{lines}\n]}}\n')
    write_atomic(RESULTS / "critic_fits.md", markdown(summary))


if __name__ == "__main__":
    run_script(main)
