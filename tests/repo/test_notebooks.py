"""Notebooks and tutorials run from top to bottom; tutorials print what they are published with."""

from __future__ import annotations

import ast
import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import nbformat
import pytest

from rewardlab.data.pairs import write_parquet

with warnings.catch_warnings():  # of jupyter's own packages about one another
    warnings.simplefilter("ignore")
    from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_defines_nothing_and_holds_no_output(path: Path) -> None:
    """What is worth defining is in the package, tested; outputs are made by whoever runs it."""
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]))
            assert not any(isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda) for node in ast.walk(tree))
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


def executed(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path = ROOT) -> Any:
    """Return a notebook that was run from top to bottom in ``folder``."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # jupyter's, of its own packages
def test_stability(finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads the published results, and runs its two trials from an untaught judge."""
    monkeypatch.setenv("RUN", str(finished_run))
    notebook = executed(ROOT / "notebooks" / "stability.ipynb", monkeypatch, tmp_path)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    results = [output["data"]["text/plain"] for output in outputs if "data" in output]
    assert "'stable_reinforce': {'median'" in results[-2]
    assert results[-1].count("reinforce") == 2


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # jupyter's, of its own packages
def test_closed_loop(
    finished_run: Path, tiny_checkpoint: Path, demo_pairs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads the published results; a policy is taught, trained by TRL against a served judge, and its answers are chosen."""
    for name in ("rl", "demo"):
        shutil.copytree(finished_run / name, tmp_path / "run" / name)
    shutil.copytree(tiny_checkpoint, tmp_path / "run" / "demo" / "base")
    write_parquet(list(demo_pairs[0][:60]), tmp_path / "run" / "demo" / "train.parquet")
    monkeypatch.setenv("RUN", str(tmp_path / "run"))
    notebook = executed(ROOT / "notebooks" / "closed_loop.ipynb", monkeypatch, tmp_path)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    steps, shares = [output["data"]["text/plain"] for output in outputs if "data" in output][-2:]
    assert len(ast.literal_eval(steps.replace("nan", "None"))) == 2
    assert set(ast.literal_eval(shares)) == {"sampled", "chosen", "any"}


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
    published = outputs_of(nbformat.read(path, as_version=4))
    assert outputs_of(executed(path, monkeypatch, tmp_path, tmp_path)) == published
