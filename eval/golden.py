"""Record what fixed seeds compute, and check that a change of the code has not changed it.

`python eval/golden.py record GOLDEN.json` before a change, `python eval/golden.py check GOLDEN.json` after it: four optimizer
steps of every recipe in `configs/rl/`, of SFT, of a reward model, of a process reward model, and of the features that recipes
do not use; one benchmark run; one distillation. Every logged number and a hash of every weight must be equal, bit for bit, on
the same machine with the same packages. `--renamed OLD=NEW,...` says which metrics have another name since the record.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # sums in one order
os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from safetensors.torch import load_file

from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.config import DistillConfig, PolicyConfig, PRMConfig, RLConfig, RMConfig, SFTConfig, load_yaml
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.demo.base_model import build_model, build_processor, save_model, train_tokenizer
from rewardlab.demo.build import corpus
from rewardlab.demo.judgments import grounded_judgment
from rewardlab.demo.pairs import make_pairs
from rewardlab.demo.server import TeacherConfig, build_demo_app
from rewardlab.distill.pipeline import distill
from rewardlab.rewards.steps import judgment_steps, step_labels
from rewardlab.training.policy import train_policy
from rewardlab.training.prm import train_prm
from rewardlab.training.reward_model import train_reward_model
from rewardlab.training.rl import train_rl
from rewardlab.training.sft import train_sft
from rewardlab.types import Order

CLOCKS = ("time", "per_second", "seconds", "epoch_s", "runtime", "flos")  # parts of names of what a clock says
NAMES = ("/distill/model:",)  # places of names that are given and not computed
OPTIMIZER = {
    "template": "plain",
    "learning_rate": 1e-2,
    "lr_scheduler": "constant",
    "batch_size": 8,
    "micro_batch_size": 4,
    "save_steps": 4,
    "max_steps": 4,
    "gradient_checkpointing": False,
}
ROLLOUTS = {**OPTIMIZER, "learning_rate": 3e-3, "rollout_batch_size": 16, "max_completion_length": 32, "attempts": ["1"]}
SCHEDULE = ("warmup_ratio", "min_lr_ratio")  # without meaning at a constant rate
SKIPPED_KEYS = ("model", "template", "save_steps", "consistency", "health", "pixels", "engine", "lora", *SCHEDULE)


def recipes() -> dict[str, dict[str, Any]]:
    """The methods of `configs/rl/` at a size of seconds. Files for one model or machine are not methods."""
    methods = {}
    for path in sorted((ROOT / "configs" / "rl").glob("*.yaml")):
        if path.stem.startswith("stable_reinforce_"):
            continue
        method = {name: value for name, value in load_yaml(path).items() if name not in SKIPPED_KEYS}
        method = {name: value for name, value in method.items() if name not in ROLLOUTS and name != "epochs"}
        if "group_size" in method:
            method["group_size"] = 4
        if "window" in method:
            method["window"] = 16
        if "overlong_margin" in method:
            method["overlong_margin"] = 8
        if "value_pretrain_steps" in method:
            method |= {"value_pretrain_steps": 2, "health": {"policy": "warn"}}  # of a critic fitted in two steps
        methods[path.stem] = method
    return methods


FEATURES: dict[str, dict[str, Any]] = {
    "swap": {"swap_weight": 0.5},
    "outliers": {"outlier_sigma": 0.7, "outliers": "clip", "whiten_by": "sequence"},
    "oversample": {"advantage": "grpo", "group_size": 4, "dynamic_sampling": "oversample", "difficulty_weighted": True},
    "refill": {"advantage": "rloo", "group_size": 4, "dynamic_sampling": "refill"},
    "kl in the reward": {"kl_coef": 0.05},
    "kl in the loss": {"kl": "k2_loss", "kl_coef": 0.05, "iterations": 2},
    "hot token": {"hot_token": {"position": 1}},
    "importance": {"importance": {"mode": "token_truncate", "cap": 2.0}, "positive_nll": 0.1},
    "slices": {"sampling_batch_size": 5},
    "lora": {"lora": {"r": 4, "alpha": 8}},
}


def weights_of(folder: Path) -> str:
    """A hash of every weight in a folder, by its name."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.safetensors")):
        for name, value in sorted(load_file(path).items()):
            digest.update(name.encode())
            digest.update(value.contiguous().view(-1).float().numpy().tobytes())
    return digest.hexdigest()[:24]


def is_clock(name: str) -> bool:
    return any(part in name for part in CLOCKS)


def without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_clocks(inner) for name, inner in value.items() if not is_clock(name)}
    return [without_clocks(inner) for inner in value] if isinstance(value, list) else value


def run_record(out: Path) -> dict[str, Any]:
    """Return a training run's record: every line of its metrics, the rollouts it kept, and its weights."""
    metrics = [without_clocks(json.loads(line)) for line in (out / "metrics.jsonl").read_text().splitlines()]
    samples = out / "samples.jsonl"
    texts = [json.loads(line)["text"] for line in samples.read_text().splitlines()] if samples.exists() else []
    value = out / "value" / "metrics.jsonl"
    if value.exists():
        metrics += [without_clocks(json.loads(line)) for line in value.read_text().splitlines()]
    weights = {str(path.relative_to(out)): weights_of(path) for path in (out / "final", out / "critic") if path.exists()}
    return {"metrics": metrics, "texts": hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:24], "weights": weights}


class Golden:
    """Runs of one folder, each by its name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pairs, self.truths = make_pairs(200, seed=0, held_out=False)
        tokenizer = train_tokenizer(corpus(self.pairs, self.truths, random.Random(0)), 700)
        self.base = folder / "base"
        save_model(self.base, build_model(tokenizer, hidden=32, layers=2, seed=0), build_processor(tokenizer))
        self.taught = [
            replace(pair, attempts="1", judgment=grounded_judgment(truth, pair.shown(pair.order), misread=bool(n % 3 == 0))[0])
            for n, (pair, truth) in enumerate(zip(self.pairs, self.truths, strict=True))
        ]
        config = SFTConfig(**{**OPTIMIZER, "model": str(self.base), "max_steps": 60, "save_steps": 1000})
        self.judge = train_sft(self.taught, config, folder / "judge")

    def data(self) -> Any:
        rows = [[p.pair_id, p.question, p.responses, p.preferred, [len(image) for image in p.images]] for p in self.pairs]
        return {"rows": hashlib.sha256(json.dumps(rows).encode()).hexdigest(), "base": weights_of(self.base)}

    def rl(self, name: str, changes: dict[str, Any]) -> Any:
        out = self.folder / name
        values = {**ROLLOUTS, **changes, "model": str(self.judge), "consistency": {"weight": 0.0}}
        train_rl(self.taught[:48], RLConfig(**values), out)
        return run_record(out)

    def sft(self) -> Any:
        return run_record(self.folder / "judge")

    def steps(self) -> list[dict[str, Any]]:
        rows = []
        for n, (pair, truth) in enumerate(zip(self.pairs[:32], self.truths[:32], strict=True)):
            order = Order.SWAPPED if n % 4 > 1 else Order.GIVEN
            text, _ = grounded_judgment(truth, pair.shown(order), misread=bool(n % 2))
            ends = judgment_steps(text)
            labels = step_labels(len(ends), 1 if n % 2 else None)
            rows.append({"pair_id": pair.pair_id, "order": order.value, "text": text, "ends": ends, "labels": labels})
        return rows

    def rm(self) -> Any:
        config = RMConfig(**{**OPTIMIZER, "template": "single", "model": str(self.base)})
        train_reward_model(self.pairs[:64], config, self.folder / "rm")
        return run_record(self.folder / "rm")

    def prm(self) -> Any:
        train_prm(self.pairs, self.steps(), PRMConfig(**{**OPTIMIZER, "model": str(self.judge)}), self.folder / "prm")
        return run_record(self.folder / "prm")

    def policy(self, name: str, changes: dict[str, Any]) -> Any:
        values = {**ROLLOUTS, "template": "answer", "model": str(self.judge), **changes}
        del values["attempts"]
        train_policy(self.pairs[:32], PolicyConfig(**values), self.folder / name)
        return run_record(self.folder / name)

    def bench(self) -> Any:
        write_parquet(self.pairs[:24], self.folder / "test.parquet")
        out = self.folder / "bench"
        run_bench(
            bench_settings(
                benchmark="pairs",
                data=self.folder / "test.parquet",
                judge=f"hf:{self.judge}",
                template="plain",
                votes=3,
                max_tokens=32,
                batch_size=32,
                controls=("greedy", "blank", "other"),
            ),
            out,
        )
        written = json.loads((out / "report.json").read_text())
        dropped = ("data", "judge", "command", "commit", "versions", "data_sha256")
        scores = hashlib.sha256((out / "scores.jsonl").read_bytes()).hexdigest()[:24]
        return {"scores": scores, **without_clocks({name: value for name, value in written.items() if name not in dropped})}

    def distillation(self) -> Any:
        from tests.support.servers import running

        out = self.folder / "distill"
        with running(build_demo_app(self.truths, TeacherConfig(), None)) as url:
            config = DistillConfig(model="demo-teacher", base_url=f"{url}/v1", template="plain", concurrency=1)
            statistics = distill(self.pairs[:60], config, out)
        kept = [[p.pair_id, p.attempts, p.order.value, p.judgment] for p in read_pairs(out / "distilled.parquet")]
        digest = hashlib.sha256(json.dumps(sorted(kept)).encode()).hexdigest()[:24]
        return {"kept": digest, **without_clocks({n: v for n, v in statistics.items() if n not in ("versions", "commit")})}


def cases(golden: Golden) -> dict[str, Callable[[], Any]]:
    """Every run by name, cheap ones first."""
    made: dict[str, Callable[[], Any]] = {
        "data": golden.data,
        "sft": golden.sft,
        "rm": golden.rm,
        "prm": golden.prm,
        "bench": golden.bench,
        "distill": golden.distillation,
    }
    for name, changes in {**recipes(), **FEATURES}.items():
        made[f"rl {name}"] = lambda name=name, changes=changes: golden.rl(name, changes)
    made["rl process reward"] = lambda: golden.rl("process", {"process_reward": str(golden.folder / "prm" / "final")})
    made["policy prob"] = lambda: golden.policy(
        "policy", {"judge": f"prob:{golden.judge}", "advantage": "gae", "judge_max_tokens": 16}
    )
    made["policy rm"] = lambda: golden.policy("scalar", {"judge": f"rm:{golden.folder / 'rm' / 'final'}"})
    return made


def run(only: str | None) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="golden-"))
    try:
        results = {}
        for name, case in cases(Golden(folder)).items():
            if only and not name.startswith(only):
                continue
            try:
                results[name] = json.loads(json.dumps(case()))
            except Exception as error:  # one broken case must not hide the others
                results[name] = f"{type(error).__name__}: {error}"
            print(f"{name}: {'failed: ' + results[name] if isinstance(results[name], str) else 'done'}", flush=True)
        return results
    finally:
        shutil.rmtree(folder)


def renamed(value: Any, names: dict[str, str]) -> Any:
    """``value`` with the keys of its mappings under their new names."""
    if isinstance(value, dict):
        return {names.get(key, key): renamed(inner, names) for key, inner in value.items()}
    return [renamed(inner, names) for inner in value] if isinstance(value, list) else value


def differences(before: Any, after: Any, where: str = "") -> list[str]:
    """The places at which two records differ, with both values."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted({*before, *after})
        return [line for key in keys for line in differences(before.get(key), after.get(key), f"{where}/{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [line for n, two in enumerate(zip(before, after, strict=True)) for line in differences(*two, f"{where}[{n}]")]
    return [] if before == after else [f"{where}: {json.dumps(before)[:200]} -> {json.dumps(after)[:200]}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record", "check"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", help="names that begin so")
    parser.add_argument("--renamed", type=Path, help="JSON file: the old name of a metric or key -> its name now")
    options = parser.parse_args()
    results = run(options.only)
    if options.action == "record":
        options.file.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        raise SystemExit(any(isinstance(value, str) for value in results.values()))
    before = json.loads(options.file.read_text())
    names = json.loads(options.renamed.read_text()) if options.renamed else {}
    before = renamed(
        {name: value for name, value in before.items() if not options.only or name.startswith(options.only)}, names
    )
    lines = [line for line in differences(before, renamed(results, names)) if not line.startswith(NAMES)]
    print("\n".join(lines[:200]))
    print(f"{len(results)} runs, {len(lines)} differences")
    raise SystemExit(bool(lines))


if __name__ == "__main__":
    main()
