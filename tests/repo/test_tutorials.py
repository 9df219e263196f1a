"""The tutorials run from top to bottom, and what they are published with is what they print."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import nbformat
import pytest

with warnings.catch_warnings():  # of jupyter's own packages about one another
    warnings.simplefilter("ignore")
    from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorials"
TUTORIALS = sorted(FOLDER.glob("*.ipynb"))


def outputs_of(notebook: Any) -> list[list[str]]:
    """The kinds of every code cell's outputs, what goes to standard error left out."""
    return [
        [output["output_type"] for output in cell["outputs"] if output.get("name") != "stderr"]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_is_published_with_its_outputs(path: Path) -> None:
    """No error, no warning, no path of a machine but temporary ones, and no more than a page can hold."""
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    kinds = [kind for cell in outputs_of(notebook) for kind in cell]
    assert len(kinds) >= 4
    assert "error" not in kinds
    assert len(text) < 400_000
    assert not re.search(r"Warning|Traceback", text)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # jupyter's, of its own packages
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell, in an empty folder; each ends with the kinds of output that are published."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, as_version=4)
    published = outputs_of(notebook)
    NotebookClient(notebook, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert outputs_of(notebook) == published
