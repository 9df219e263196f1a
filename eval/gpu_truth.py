"""What holds on a GPU? `python -m eval.gpu_truth --out runs/gpu`, by hand, when one is at hand for half an hour.

Stages, in order of worth, each a process of its own that is ended after ``--minutes``, and writes OUT/STAGE.json as it goes:

- ``runs``: SFT, adapters, quantized adapters, RL by recipes with and without a critic, judging by votes and by probability, the
  endpoint and the doctor, each a command on random weights of a published architecture. What fails is recorded, the rest goes
  on. Of RL it has how far the sampler's log-probabilities are from the trainer's.
- ``equal``: the packaged judge in bfloat16 on the card beside float32 on the CPU: greedy texts, log-probabilities, loss and
  gradients.
- ``speed``: `eval/gpu_speed.py`, beside TRL's GRPO in the same run; and the decoder beside transformers' ``generate``.
- ``learns``: the hard demonstration with a judge of more weights, as far as the minutes go.

A stage that has its file is not run again. ``--on-cpu`` tries all of it with small shapes. It needs what `pip install
rewardlab[train,serve]` brings; no weights and no network.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
Record = dict[str, Any]
RECIPES = ("stable_reinforce", "grpo", "vc_ppo", "dapo", "t_ppo", "vapo", "ppo", "rloo", "reinforce_pp")
TAIL = 4000  # characters of a failed command's output that are kept
DONE = (0, 1)  # exit statuses of a command that ran; 1 is that of a judge without a verdict, as one of random weights is


@dataclass(frozen=True)
class Options:
    """Sizes of a try: the architecture, pictures in pixels, tokens of an answer."""

    out: Path
    on_cpu: bool
    minutes: float
    model: str
    image_px: int
    answer: int


def write(options: Options, stage: str, rows: Record) -> None:
    """Write what a stage has so far."""
    part_of(stage, options).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def part_of(stage: str, options: Options) -> Path:
    return options.out / f"{stage}.json.part"


def read(options: Options, stage: str) -> Record:
    """Return what an earlier call of a stage has found to work; the rest is tried again."""
    part = part_of(stage, options)
    rows: Record = json.loads(part.read_text(encoding="utf-8")) if part.exists() else {}
    return {name: row for name, row in rows.items() if row.get("ok", True)}


def run_command(words: list[str], *, allowed: tuple[int, ...] = (0,)) -> Record:
    """Run a command; return whether it did its work, its seconds, and the end of its output where it did not."""
    began = time.monotonic()
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "HF_HUB_OFFLINE": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    row: Record = {"ok": done.returncode in allowed, "status": done.returncode, "seconds": round(time.monotonic() - began, 1)}
    return row if row["ok"] else {**row, "command": shlex.join(words), "output": done.stdout[-TAIL:]}


def cli(*words: Any) -> list[str]:
    return [sys.executable, "-m", "rewardlab.cli", *map(str, words)]


def make_checkpoint(options: Options) -> tuple[Path, Path]:
    """Return a checkpoint of random weights and pairs to train on, made by the first stage that needs them."""
    folder = options.out / "inputs"
    if not (folder / "pairs.parquet").exists():
        words = [sys.executable, ROOT / "eval" / "gpu_speed.py", "--model", options.model, "--image-px", options.image_px]
        words += ["--answer", options.answer, "--save", folder, *(["--on-cpu"] if options.on_cpu else [])]
        row = run_command(list(map(str, words)))
        if not row["ok"]:
            raise RuntimeError(row["output"])
    return folder / "model", folder / "pairs.parquet"


def cases_of(options: Options, model: Path, pairs: Path) -> dict[str, tuple[list[str], tuple[int, ...]]]:
    """Return the commands of the stage ``runs``, in order of worth, and the exit statuses that count as done."""
    out, given = options.out / "tries", ["--data", pairs, "--model", model]
    size = ["max_steps=2", "save_steps=100", "batch_size=4", "micro_batch_size=2", "learning_rate=1e-6", "template=plain"]
    rl_size = [*size[:1], "save_steps=4", *size[2:], "rollout_batch_size=8", f"max_completion_length={options.answer}"]
    rl_size += ["consistency.weight=0", "importance_cap=2", 'attempts=["2"]']
    fit = ["value_pretrain_steps=2", "health.policy=warn"]
    cases: dict[str, tuple[list[str], tuple[int, ...]]] = {
        "sft": (cli("sft", *given, "--config", "sft/qwen2_5_vl_7b", "--out", out / "sft", *size), (0,)),
    }
    for recipe in RECIPES:
        more = fit if recipe in ("vc_ppo", "vapo", "ppo", "t_ppo") else []
        more = [*more, f"window={options.answer // 2}", "window_tail=1"] if recipe == "t_ppo" else more
        more = [*more, f"overlong_margin={options.answer // 4}"] if recipe == "dapo" else more
        grouped = ["group_size=2"] if recipe in ("grpo", "dapo", "rloo", "vapo") else []
        words = ["rl", *given, "--config", f"rl/{recipe}", "--out", out / recipe, *rl_size, *grouped, *more]
        cases[f"rl {recipe}"] = (cli(*words), (0, 4))  # 4: it learnt nothing, as random weights may
    adapters = ["lora.r=8", "lora.alpha=16"]
    cases["sft lora"] = (cli("sft", *given, "--config", "sft/qwen2_5_vl_7b", "--out", out / "lora", *size, *adapters), (0,))
    words = ["rl", *given, "--config", "rl/stable_reinforce", "--out", out / "rl_lora", *rl_size, *adapters]
    cases["rl lora"] = (cli(*words), (0, 4))
    if importlib.util.find_spec("bitsandbytes"):
        quantized = [*adapters, "lora.quantize=nf4"]
        words = ["sft", *given, "--config", "sft/qwen2_5_vl_7b", "--out", out / "qlora", *size, *quantized]
        cases["sft qlora"] = (cli(*words), (0,))
    words = ["sft", *given, "--config", "sft/qwen2_5_vl_7b", "--out", out / "whole", *size, "gradient_checkpointing=false"]
    cases["sft without checkpointing"] = (cli(*words), (0,))
    for name in ("sdpa", "flash_attention_2"):
        if name == "sdpa" or importlib.util.find_spec("flash_attn"):
            words = ["sft", *given, "--config", "sft/qwen2_5_vl_7b", "--out", out / name, *size, f"attn_implementation={name}"]
            cases[f"sft {name}"] = (cli(*words), (0,))
    for engine in ("hf", "prob"):
        words = ["bench", "run", "pairs", "--data", pairs, "--judge", f"{engine}:{model}", "--template", "plain", "--votes", 2]
        words += ["--limit", 4, "--max-tokens", options.answer, "--controls", "", "--out", out / f"bench_{engine}"]
        cases[f"bench {engine}"] = (cli(*words), DONE)
    words = ["doctor", "rl/stable_reinforce", "--data", pairs, "--model", model, "template=plain", "consistency.weight=0"]
    cases["doctor"] = (cli(*words, 'attempts=["2"]', f"max_completion_length={options.answer}"), DONE)
    return cases


def stage_runs(options: Options) -> None:
    """Run every case, and the endpoint."""
    model, pairs = make_checkpoint(options)
    rows = read(options, "runs")
    for name, (words, allowed) in cases_of(options, model, pairs).items():
        if name in rows:
            continue
        folder = Path(words[words.index("--out") + 1]) if "--out" in words else None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)  # of a try that was ended
        rows[name] = run_command(words, allowed=allowed)
        if name.startswith("rl ") and rows[name]["ok"] and folder is not None:
            rows[name]["importance_gap"] = last_metric(folder)
        write(options, "runs", rows)
    rows["serve"] = try_server(model, options)
    write(options, "runs", rows)


def last_metric(folder: Path, name: str = "importance/gap") -> float | None:
    """Return the last value of a metric of a run; None where it has none."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    values = [row[name] for row in map(json.loads, lines) if row.get(name) is not None]
    return float(values[-1]) if values else None


def try_server(model: Path, options: Options) -> Record:
    """Start the endpoint and ask it; an answer without a verdict is one of random weights."""
    from rewardlab.demo.pipeline import free_port

    port, began = free_port(), time.monotonic()
    words = cli("serve", "--judge", f"hf:{model}", "--template", "plain", "--max-tokens", options.answer, "--port", port)
    log = options.out / "serve.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(words, cwd=ROOT, stdout=sink, stderr=sink, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    try:
        while time.monotonic() - began < 240 and process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=2):
                    break
            except OSError:
                time.sleep(1)
        body = json.dumps({"question": "Which color?", "responses": ["Red.", "Blue."], "votes": 2}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/judge", body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=240) as answer:
            told = json.load(answer)
        return {"ok": len(told["votes"]) == 4, "seconds": round(time.monotonic() - began, 1)}
    except Exception as error:  # the boundary: it is recorded
        return {"ok": False, "error": repr(error), "output": log.read_text(encoding="utf-8", errors="replace")[-TAIL:]}
    finally:
        process.terminate()
        process.wait(timeout=60)


def stage_equal(options: Options) -> None:
    """Compare the packaged judge in float32 on the CPU with bfloat16 on the card."""
    from eval.gpu_comparisons import compare_judges

    write(options, "equal", compare_judges(device_of(options), 2 if options.on_cpu else 100))


def device_of(options: Options) -> str:
    return "cpu" if options.on_cpu else "cuda"


def stage_speed(options: Options) -> None:
    """Time training beside TRL's, and the decoder beside ``generate``."""
    from eval.gpu_comparisons import decoder_beside_generate

    rows = read(options, "speed")
    sizes = ["--pairs", 8, "--batch", 4, "--steps", 1] if options.on_cpu else []
    words = [sys.executable, ROOT / "eval" / "gpu_speed.py", "--model", options.model, "--image-px", options.image_px]
    words += [
        "--answer",
        options.answer,
        "--out",
        options.out / "gpu_speed.json",
        *sizes,
        *(["--on-cpu"] if options.on_cpu else []),
    ]
    if "training" not in rows:
        rows["training"] = run_command(list(map(str, words)))
        write(options, "speed", rows)
    model, pairs = make_checkpoint(options)
    sizes_of = {"num_pairs": 2, "turns": 2} if options.on_cpu else {"num_pairs": 16, "turns": 4}
    for number in [number for number in (1, 4, 16) if f"decoder, {number} draws" not in rows]:
        row = decoder_beside_generate(model, pairs, device_of(options), number=number, max_tokens=options.answer, **sizes_of)
        rows[f"decoder, {number} draws"] = row
        write(options, "speed", rows)


def stage_learns(options: Options) -> None:
    """Train a judge of more weights on the hard demonstration, until the minutes are over; keep its curves."""
    configs = options.out / "configs"
    configs.mkdir(parents=True, exist_ok=True)
    changes = {"demo": {"hidden": 32, "layers": 2, "base_steps": 3, "num_train": 150, "num_test": 24, "num_validation": 8}}
    changes |= {
        "sft": {"max_steps": 2},
        "rl": {"max_steps": 2, "rollout_batch_size": 8, "batch_size": 4, "micro_batch_size": 4},
    }
    if not options.on_cpu:
        changes = {"demo": {"hidden": 768, "layers": 8}, "sft": {}, "rl": {}}
    else:
        changes["rl"] |= {"save_steps": 2}
        changes["demo"] |= {"num_unlike": 16}
    import yaml

    for path in (ROOT / "configs" / "tiny_hard").glob("*.yaml"):
        text = {**yaml.safe_load(path.read_text(encoding="utf-8")), **changes.get(path.stem, {})}
        (configs / path.name).write_text(yaml.safe_dump(text), encoding="utf-8")
    run, log = options.out / "learns", options.out / "quickstart.log"
    with log.open("ab") as sink:
        process = subprocess.Popen(cli("quickstart", "--configs", configs, "--out", run), cwd=ROOT, stdout=sink, stderr=sink)
        while process.poll() is None:
            write(options, "learns", {"curves": curves_of(run)})  # this stage is ended at some time
            time.sleep(2 if options.on_cpu else 15)
    row: Record = {"ok": process.returncode == 0, "status": process.returncode}
    if not row["ok"]:
        row["output"] = log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
    write(options, "learns", {"run": row, "curves": curves_of(run)})


def curves_of(run: Path) -> Record:
    """Return what each stage of a quickstart has logged so far."""
    names = ("loss", "reward/accuracy", "completions/mean_length")
    curves: Record = {}
    for stage in ("sft", "rl"):
        path = run / stage / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        rows = list(map(json.loads, lines))
        curves[stage] = {name: [[row["step"], row[name]] for row in rows if row.get(name) is not None] for name in names}
    return curves


STAGES: dict[str, Callable[[Options], None]] = {
    "runs": stage_runs,
    "equal": stage_equal,
    "speed": stage_speed,
    "learns": stage_learns,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", action="append", choices=STAGES, help="repeat for several (default: all)")
    parser.add_argument("--minutes", type=float, default=8.0, help="of a stage, at most")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--model", default="Qwen/Qwen2.5-VL-3B-Instruct", help="published architecture; its weights are random")
    parser.add_argument("--image-px", type=int, default=448)
    parser.add_argument("--answer", type=int, default=256, help="tokens of an answer")
    parser.add_argument("--on-cpu", action="store_true", help="try the script with small shapes")
    parser.add_argument("--within", choices=STAGES, help=argparse.SUPPRESS)  # this process is that stage
    given = parser.parse_args()
    small = {"image_px": 56, "answer": 12} if given.on_cpu else {"image_px": given.image_px, "answer": given.answer}
    options = Options(given.out.resolve(), given.on_cpu, given.minutes, given.model, **small)
    options.out.mkdir(parents=True, exist_ok=True)
    if given.within:
        import rewardlab  # noqa: F401  (before transformers, see rewardlab/models/torchvision_cpu.py)

        STAGES[given.within](options)
        return
    if not given.on_cpu:
        import torch

        if not torch.cuda.is_available():
            sys.exit("not measured: no GPU here (torch.cuda.is_available() is false); --on-cpu tries the script")
    failed = [stage for stage in given.stage or STAGES if not run_stage(stage, options)]
    sys.exit(f"not done: {', '.join(failed)}; see the files in {options.out}" if failed else 0)


def run_stage(stage: str, options: Options) -> bool:
    """Run a stage in a process of its own; return whether all of it came to its end and worked. What it had by then is kept,
    and the next call goes on with what did not work."""
    path, part = options.out / f"{stage}.json", part_of(stage, options)
    if path.exists():
        print(f"{stage}: done before", flush=True)
        return True
    words = [sys.executable, "-m", "eval.gpu_truth", "--within", stage, "--out", options.out, "--model", options.model]
    words += ["--image-px", options.image_px, "--answer", options.answer, *(["--on-cpu"] if options.on_cpu else [])]
    began, log = time.monotonic(), options.out / f"{stage}.log"
    with log.open("ab") as sink:
        process = subprocess.Popen(list(map(str, words)), cwd=ROOT, stdout=sink, stderr=sink, start_new_session=True)
        try:
            status = process.wait(timeout=60 * options.minutes)
        except subprocess.TimeoutExpired:
            status = None
            os.killpg(process.pid, 9)  # and whatever it has started
            process.wait()
    seconds = time.monotonic() - began
    print(f"{stage}: {'ended after its minutes' if status is None else f'status {status}'}, {seconds:.0f} s", flush=True)
    rows = json.loads(part.read_text(encoding="utf-8")) if part.exists() else {}
    failed = [name for name, row in rows.items() if isinstance(row, dict) and not row.get("ok", True)]
    if failed:
        print(f"{stage}: did not work: {', '.join(failed)}; their output is in {part}", flush=True)
    if status == 0 and not failed:
        part.rename(path)
    return status == 0 and not failed


if __name__ == "__main__":
    main()
