"""TRL's own trainers on the same pairs, as its documentation has them: `datasets` with an `Image()` column.

Run by :mod:`eval.rehearsals.probe` as `trl-sft DATA MODEL OUT STEPS` or `trl-grpo DATA MODEL OUT STEPS`; batch sizes, lengths
and pixels are those of ours.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PIXELS = (3_136, 501_760)


def chat_rows(data: str) -> Any:
    """Return the pairs as TRL takes them, their pictures in the Arrow files that `datasets` makes of them."""
    from datasets import load_dataset

    from rewardlab.prompts import build_messages, load_template
    from rewardlab.types import BOTH_ORDERS, PreferencePair, choice_of

    template = load_template("r1_reward")
    rows = load_dataset("parquet", data_files=str(Path(data) / "*.parquet"), split="train")

    def chat(pair_id: str, question: str, responses: list[str], judgment: str) -> dict[str, Any]:
        pair = PreferencePair(pair_id, question, (responses[0], responses[1]), None)
        messages = build_messages(pair, order=BOTH_ORDERS[0], template=template)
        prompt = [{"role": message.role, "content": message.text} for message in messages]
        answer = [{"role": "assistant", "content": judgment or str(choice_of(0, BOTH_ORDERS[0]))}]
        return {"prompt": prompt, "completion": answer}

    texts = ["pair_id", "question", "responses", "judgment"]
    kept = {"images", *texts}
    rows = rows.map(chat, input_columns=texts, remove_columns=[name for name in rows.column_names if name not in kept])
    return rows.remove_columns(texts)


def main() -> None:
    """Train a few steps and write `metrics.jsonl` with the steps that were taken."""
    command, data, model, out, steps = sys.argv[1:6]
    from transformers import AutoProcessor, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

    processor = AutoProcessor.from_pretrained(model)
    processor.image_processor.size = dict(zip(("shortest_edge", "longest_edge"), PIXELS, strict=True))
    shared: dict[str, Any] = {
        "output_dir": out,
        "max_steps": int(steps),
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "disable_tqdm": True,
    }

    class Log(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            with (Path(out) / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, "loss": logs.get("loss")}) + "\n")

    Path(out).mkdir(parents=True, exist_ok=True)
    rows = chat_rows(data)
    more = {"train_dataset": rows, "processing_class": processor, "callbacks": [Log()], "model": model}
    if command == "trl-sft":
        batches = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 64}
        trainer: Any = SFTTrainer(args=SFTConfig(max_length=None, **batches, **shared), **more)
    else:
        batches = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 64, "steps_per_generation": 128}
        # its group baseline needs two samples a prompt, at the least
        options = {"num_generations": 2, "max_completion_length": 1024}
        trainer = GRPOTrainer(
            reward_funcs=[lambda completions, **columns: [float(len(str(turn)) % 2) for turn in completions]],
            args=GRPOConfig(**options, **batches, **shared),
            **more | {"train_dataset": rows.remove_columns("completion")},
        )
    trainer.train()
