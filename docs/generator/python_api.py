"""``reference/python.md``: the public names, and the modules that users read most, for mkdocstrings to fill in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

MODULES = {
    "Records": ("rewardlab.types", "rewardlab.errors"),
    "Client of a server": ("rewardlab.integrations.client", "rewardlab.integrations.trl"),
    "Judges": ("rewardlab.judging.judge", "rewardlab.judging.ranking"),
    "Verdicts and votes": ("rewardlab.verdicts.parse", "rewardlab.verdicts.votes", "rewardlab.verdicts.early_stopping"),
    "Metrics": ("rewardlab.metrics.accuracy", "rewardlab.metrics.intervals", "rewardlab.metrics.calibration"),
    "RL arithmetic": (
        "rewardlab.rl.reference",
        "rewardlab.rl.advantages",
        "rewardlab.rl.groups",
        "rewardlab.rl.advantages",
        "rewardlab.rl.objectives",
        "rewardlab.rl.objectives",
        "rewardlab.rl.selection",
    ),
    "Rewards": ("rewardlab.rewards.judgment", "rewardlab.rewards.rollout"),
}

HEAD = """# Python

Generated from docstrings. Names end with tensor shapes: `rewards_NT` has N rollouts and T tokens. For examples see
[Python](../how-to/python.md).
"""


def public_names(package: Path) -> Iterator[tuple[str, str, str]]:
    """Yield each public name of the package, its module and what it is called there: those that ``__init__.py`` imports for
    type checkers, and loads when they are first used."""
    for block in ast.parse((package / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
            for node in block.body:
                if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("rewardlab."):
                    yield from ((alias.asname or alias.name, node.module, alias.name) for alias in node.names)


def _public_section(package: Path) -> Iterator[str]:
    names = sorted(public_names(package))
    if not names:
        return
    listed = {module for modules in MODULES.values() for module in modules}
    yield "## `rewardlab`\n\nEach name is imported from `rewardlab` itself.\n"
    if elsewhere := [f"[`{n}`][{m}.{own}]" for n, m, own in names if m in listed]:
        yield f"Documented below: {', '.join(elsewhere)}.\n"
    for name, module, own in names:
        if module not in listed:
            options = {"heading_level": 3, "heading": f"rewardlab.{name}", "toc_label": name}
            lines = [f"      {key}: {value}" for key, value in options.items()]
            yield "\n".join([f"::: {module}.{own}", "    options:", *lines, ""])


def python_page(root: Path) -> str:
    """Return the page."""
    lines = [HEAD, *_public_section(root / "rewardlab")]
    for title, modules in MODULES.items():
        lines.append(f"## {title}\n")
        lines += [f"::: {module}\n    options:\n      heading_level: 3\n" for module in modules]
    return "\n".join(lines)
