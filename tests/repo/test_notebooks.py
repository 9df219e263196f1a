"""Every notebook imports, defines nothing, and runs from top to bottom."""

from __future__ import annotations

import ast
import json
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


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_defines_nothing_and_holds_no_output(path: Path) -> None:
    """What is worth defining is in the package, tested; outputs are made by whoever runs it."""
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]))
            assert not any(isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda) for node in ast.walk(tree))
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # jupyter's, of its own packages
def test_stability(finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads the published results, and runs its two trials from an untaught judge."""
    monkeypatch.setenv("RUN", str(finished_run))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(ROOT / "notebooks" / "stability.ipynb", as_version=4)
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(ROOT)}}).execute()
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
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(ROOT / "notebooks" / "closed_loop.ipynb", as_version=4)
    NotebookClient(notebook, timeout=250, resources={"metadata": {"path": str(ROOT)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    steps, shares = [output["data"]["text/plain"] for output in outputs if "data" in output][-2:]
    assert len(ast.literal_eval(steps.replace("nan", "None"))) == 2
    assert set(ast.literal_eval(shares)) == {"sampled", "chosen", "any"}
