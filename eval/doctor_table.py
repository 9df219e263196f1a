"""The memory that `rewardlab doctor` estimates for every shipped config, on the machines that the config is made for.

    python eval/doctor_table.py [NAME ...] [--lines] [--json FILE] [--beside COLUMN=FILE] [--configs FOLDER] [--set KEY=VALUE]

``--lines`` prints the doctor's lines below the table, ``--json`` writes the totals, ``--beside`` reads such a file as a column.
PYTHONPATH and ``--configs`` may name the checkout of another version; ``--set`` changes a key in every config that has it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from rewardlab.cli import app

CONFIGS = Path(__file__).parents[1] / "configs"
BASE = "Qwen/Qwen2.5-VL-7B-Instruct"


@dataclass(frozen=True)
class Machines:
    """The launch of a config: accelerate's YAML, processes, GiB of a card, what its model folder will hold."""

    launcher: str
    processes: int
    card: float = 80.0
    model: str = BASE

    def __str__(self) -> str:
        return f"{self.processes} x {self.card:.0f}, {self.launcher}"


FOUR, EIGHT = Machines("zero3", 4), Machines("zero3", 8)
ONE_SMALL = Machines("one_gpu", 1, 24.0)
QWEN3 = Machines("zero3", 8, 80.0, "Qwen/Qwen3-VL-8B-Instruct")
CRITIC_FREE = ("dapo", "dr_grpo", "grpo", "gspo", "reinforce_pp", "reinforce_pp_baseline", "rlcs", "rloo")
MACHINES = [
    ("sft/qwen2_5_vl_7b", FOUR),
    ("sft/qwen2_5_vl_7b_classifier", FOUR),
    ("sft/qwen2_5_vl_7b_qlora", ONE_SMALL),
    ("sft/qwen3_vl_8b", QWEN3),
    ("sft/qwen3_vl_4b", Machines("zero3", 2, 80.0, "Qwen/Qwen3-VL-4B-Instruct")),
    ("sft/glm_4_6v_flash", Machines("zero3", 8, 80.0, "zai-org/GLM-4.6V-Flash")),
    ("sft/qwen3_vl_30b_a3b_lora", Machines("one_gpu", 1, 80.0, "Qwen/Qwen3-VL-30B-A3B-Instruct")),
    *((f"dpo/{name}", EIGHT) for name in ("dpo", "mpo", "simpo")),
    ("rm/qwen2_5_vl_7b", FOUR),
    ("rl/stable_reinforce", EIGHT),
    ("rl/stable_reinforce_qwen2_5_vl_7b", FOUR),
    ("rl/stable_reinforce_qwen2_5_vl_3b", Machines("one_gpu", 1, 80.0, "Qwen/Qwen2.5-VL-3B-Instruct")),
    ("rl/stable_reinforce_qlora_24gb", ONE_SMALL),
    ("rl/stable_reinforce_qwen3_vl_8b", QWEN3),
    ("rl/stable_reinforce_multi_node", Machines("zero3", 32)),
    *((f"rl/{name}", EIGHT) for name in CRITIC_FREE),
    *((f"rl/{name}", EIGHT) for name in ("pag", "ppo", "t_ppo", "vapo", "vc_ppo")),
    ("policy/pairwise_rl", EIGHT),
    ("policy/pairwise_rl", Machines("zero3_offload", 8)),
]


@dataclass(frozen=True)
class Row:
    """The doctor's result for a config: whether its memory fits, the most GiB per card, and all findings."""

    name: str
    machines: str
    fits: bool
    gib: float
    text: str


def examine(name: str, machines: Machines, configs: Path, changes: Sequence[str] = ()) -> Row | None:
    """Return the row of ``configs/NAME.yaml``, read from the doctor's output; None if the config does not take the
    ``changes``."""
    words = [f"{configs / name}.yaml", "--dry-run", f"model={machines.model}", "--memory", f"{machines.card:g}"]
    words += ["--launcher", str(configs / "accelerate" / f"{machines.launcher}.yaml"), "--processes", str(machines.processes)]
    output = CliRunner().invoke(app, ["doctor", *words, *changes]).output
    if changes and output.startswith("FAILED config"):
        return None
    fits, gib = re.search(r"^(ok|FAILED)\s+memory: .*?at most ([\d.]+)", output, re.MULTILINE).groups()
    return Row(name, str(machines), fits == "ok", float(gib), output)


def as_table(rows: list[Row], columns: dict[str, list[dict[str, object]]]) -> str:
    """Return the rows as Markdown, beside those of other versions for the same config and machines."""
    lines = [
        f"| config | cards, GiB each, launch | {' | '.join([*columns, 'now'])} |",
        f"|---|---|{'---|' * (len(columns) + 1)}",
    ]
    for row in rows:
        cells = [beside(row, column) for column in columns.values()]
        lines.append(f"| {row.name} | {row.machines} | {' | '.join([*cells, cell(row.fits, row.gib)])} |")
    return "\n".join(lines)


def beside(row: Row, column: list[dict[str, object]]) -> str:
    """Return another version's cell for the same config on the same machines."""
    same = [other for other in column if (other["name"], other["machines"]) == (row.name, row.machines)]
    return cell(bool(same[0]["fits"]), float(str(same[0]["gib"]))) if same else ""


def cell(fits: bool, gib: float) -> str:
    return f"{gib:.1f}" if fits else f"**{gib:.1f}, does not fit**"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="configs, as rl/grpo; all by default")
    parser.add_argument("--configs", type=Path, default=CONFIGS)
    parser.add_argument("--lines", action="store_true")
    parser.add_argument("--beside", action="append", default=[], metavar="COLUMN=FILE")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    options = parser.parse_args()
    chosen = [(name, machines) for name, machines in MACHINES if not options.names or name in options.names]
    examined = [examine(name, machines, options.configs, options.changes) for name, machines in chosen]
    rows = [row for row in examined if row is not None]
    files = dict(column.split("=", 1) for column in options.beside)
    print(as_table(rows, {name: json.loads(Path(file).read_text(encoding="utf-8")) for name, file in files.items()}))
    for row in rows if options.lines else []:
        print(f"\n### {row.name}, {row.machines}\n\n```text\n{row.text.rstrip()}\n```")
    if options.json:
        facts = [{"name": row.name, "machines": row.machines, "fits": row.fits, "gib": row.gib} for row in rows]
        options.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
