"""Notebooks as pages: those in ``docs/tutorials/`` with their outputs, those in ``notebooks/`` as their text and code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

SOURCES = {"docs/tutorials": "tutorials", "notebooks": "tutorials"}  # folder -> where its pages stand
NOTE = "*From the notebook `{path}`{outputs}.*\n"


def _code(source: str, language: str = "python") -> str:
    fence = "````" if "```" in source else "```"
    return f"{fence}{language}\n{source.rstrip()}\n{fence}\n"


def _text(value: Any) -> str:
    return "".join(value) if isinstance(value, list) else str(value)


def _output(output: dict[str, Any], stem: str, files: dict[str, str | bytes], folder: str) -> str:
    """Return one output of a cell as Markdown; a picture becomes a file beside the page."""
    import base64

    if output["output_type"] == "stream":
        return _code(re.sub(r"\x1b\[[0-9;]*m", "", _text(output["text"])), "text")
    if output["output_type"] == "error":
        raise ValueError(f"{stem}: a cell ended with {output['ename']}; run the notebook again before it is published")
    data = output.get("data", {})
    for kind, ending in (("image/png", "png"), ("image/jpeg", "jpg"), ("image/svg+xml", "svg")):
        if kind in data:
            name = f"{stem}_{sum(1 for path in files if path.startswith(f'{folder}/{stem}_'))}.{ending}"
            content = _text(data[kind])
            files[f"{folder}/{name}"] = content if ending == "svg" else base64.b64decode(content)
            return f"![Output of the cell above]({name})\n"
    for kind in ("text/html", "text/markdown"):
        if kind in data:
            return _text(data[kind]).strip() + "\n"
    return _code(_text(data["text/plain"]), "text") if "text/plain" in data else ""


def notebook_page(path: Path, folder: str, *, where: str) -> dict[str, str | bytes]:
    """Return the files of a notebook's page, by their paths below ``docs/``. Raise ValueError where a cell failed."""
    notebook, files = json.loads(path.read_text(encoding="utf-8")), dict[str, str | bytes]()
    parts, has_outputs = list[str](), any(cell.get("outputs") for cell in notebook["cells"])
    for cell in notebook["cells"]:
        source = _text(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.rstrip() + "\n")
        elif cell["cell_type"] == "code" and source.strip():
            parts.append(_code(source))
            parts += [_output(output, path.stem, files, folder) for output in cell.get("outputs", ())]
    note = NOTE.format(path=where, outputs="" if has_outputs else ", without outputs: run it to see them")
    title, _, rest = "\n".join(parts).partition("\n")
    files[f"{folder}/{path.stem}.md"] = f"{title}\n\n{note}\n{rest}"
    return files


def notebook_files(root: Path) -> dict[str, str | bytes]:
    """Return the pages and pictures of all notebooks, by their paths below ``docs/``."""
    files = dict[str, str | bytes]()
    for source, folder in SOURCES.items():
        for path in sorted((root / source).glob("*.ipynb")):
            files |= notebook_page(path, folder, where=f"{source}/{path.name}")
    return files
