"""``reference/files.md``: what stands in which file, from the first sentence of each module's docstring."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from docs.generator.command_line import escape_cell

HEAD = """# Modules

Every module with the first sentence of its docstring. A module imports only from its own layer and from earlier ones:
`types`, `errors`, `extensions`, then `prompts`, `verdicts`, `metrics`, `rl`, then `config`, `processes`, `reporting`, then
`data`, `samplers`, `models`, then `judging`, `rewards`, `distill`, then `training`, `benchmarks`, `serving`, `integrations`,
then `demo`, `curation`, `health`, `pipelines`, and last `cli`. A test verifies this.

Outside the package: `configs/` (one YAML per named run), `data_recipes/` (one file per public source), `eval/` (suites,
protocols, studies, results), `notebooks/`, `tests/` (mirrors the package).
"""


def first_sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring, in one line, as Markdown."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", " ".join(text.split("\n\n")[0].split())).replace("``", "`")
    return re.split(r"(?<=[.:])\s(?=[A-Z])", text)[0].rstrip(":")


def tree_page(root: Path) -> str:
    """Return the page: a table per room of the package, in the order of their names."""
    package, lines = root / "rewardlab", [HEAD]
    modules = [path for path in sorted(package.rglob("*.py")) if path.name != "__main__.py"]
    rooms = sorted({path.relative_to(package).parts[0] for path in modules if path.parent != package})
    for room in ("", *rooms):
        members = [p for p in modules if (p.parent == package if not room else p.relative_to(package).parts[0] == room)]
        lines.append(f"## `rewardlab/{room}{'/' if room else ''}`\n")
        about = package / room / "__init__.py"
        lines.append(f"{first_sentence(about)}\n")
        lines.append("| file | what it holds |\n|---|---|")
        lines += [
            f"| `{path.relative_to(package / room)}` | {escape_cell(first_sentence(path))} |"
            for path in members
            if path != about
        ]
        lines.append("")
    return "\n".join(lines)
