"""The layers of the house, who owns which heavy package, and the habits of its files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rewardlab"
MODULES = sorted(PACKAGE.rglob("*.py"))
SOURCES = [*MODULES, *sorted((ROOT / "eval").rglob("*.py")), *sorted((ROOT / "data_recipes").rglob("*.py"))]

# A module may import from its own layer and from lower ones.
LAYERS = [
    {"types", "errors", "extensions"},
    {"prompts", "verdicts", "metrics", "rl"},
    {"config", "processes", "reporting"},
    {"data", "samplers", "models"},
    {"judging", "rewards", "distill"},
    {"training", "benchmarks", "serving", "integrations"},
    {"demo", "curation", "health"},
    {"cli"},
]
PURE = [
    "types.py",
    *(f"{room}/{p.name}" for room in ("prompts", "verdicts", "metrics", "rl") for p in PACKAGE.glob(f"{room}/*.py")),
    "judging/ranking.py",
]
LONG_FILES = {
    "rewardlab/training/policy_gradient/trainer.py": 545,  # the one seam with TRL: every method of it that is overridden
    "rewardlab/serving/queue.py": 470,  # what waits for the engine, and what the queue remembers of it
    "eval/gpu_stages.py": 450,  # all that is tried on a GPU
}
OWNERS = {
    "openai": {"samplers/chat_endpoint.py", "samplers/openai_batch.py"},
    "vllm": {"samplers/vllm.py"},
    "fastapi": {"serving/"},
    "prometheus_client": {"serving/metrics.py", "serving/request_record.py"},
    "opentelemetry": {"serving/request_record.py"},
    "fastapi_offline": {"serving/pages.py"},
    "datasketch": {"curation/duplicates.py"},
    "imagehash": {"curation/image_hashes.py"},
    "ray": {"distill/ray_transport.py", "samplers/ray_replicas.py"},
    "av": {"data/video.py"},
    **{name: {"training/", "models/"} for name in ("peft", "deepspeed", "accelerate")},
    "trl": {"training/"},
    "datasets": {"data/", "training/"},
    "verl": {"integrations/verl_groups.py", "integrations/verl_judge_reward.py", "integrations/verl_stable_reinforce.py"},
    "verifiers": {"integrations/verifiers.py"},
    "sklearn": set(),  # only tests and studies compare with it
    "matplotlib": {"reporting/plots.py", "demo/"},
    "inspect_ai": {"benchmarks/inspect_log.py"},
    "rich": {"cli/", "reporting/progress.py", "demo/"},
    "typer": {"cli/"},
    "math_verify": {"rewards/verifiable/math_worker.py"},
    "sympy": {"rewards/verifiable/math_worker.py"},
}


MARKER = "py.typed"  # an empty file: says to type checkers that the package has types


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Full names of what a file imports when it runs, wherever in it: what only annotations need is left out."""
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    names: list[str] = []
    while nodes:
        node = nodes.pop()
        nodes += [child for child in ast.iter_child_nodes(node) if not is_type_checking(child)]
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(names)


def layer_of(room: str) -> int:
    return next(n for n, rooms in enumerate(LAYERS) if room in rooms)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize(
    "path", [m for m in MODULES if m != PACKAGE / "__init__.py"], ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_imports_go_one_way(path: Path) -> None:
    """Never from a higher layer; training, serving and benchmarks never meet."""
    room = room_of(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] in ("data_recipes", "eval", "tests"):
            pytest.fail(f"{path} imports {name}")
        if parts[0] == "rewardlab" and parts[1] not in (room, "__version__"):
            below = layer_of(parts[1]) < layer_of(room)
            beside = layer_of(parts[1]) == layer_of(room) and room not in {"training", "serving", "benchmarks"}
            assert below or beside, f"{path} imports {name}"


@pytest.mark.parametrize("name", PURE)
def test_the_pure_middle_is_pure(name: str) -> None:
    """No I/O, no network, no logging, no config object; ``rl`` adds torch, ``metrics`` numpy, and nothing else."""
    allowed = {*sys.stdlib_module_names, "rewardlab"} - {"logging", "subprocess", "socket", "urllib", "asyncio", "os", "random"}
    allowed |= (
        {"torch"}
        if name.startswith("rl/") or name == "verdicts/margins.py"
        else {"numpy"}
        if name.startswith(("metrics/", "judging/"))
        else set()
    )
    for imported in imports(PACKAGE / name):
        assert imported.split(".")[0] in allowed, imported
        assert not imported.startswith("rewardlab.config"), imported
    calls = [
        n.func.id
        for n in ast.walk(ast.parse((PACKAGE / name).read_text()))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    ]
    assert not {"open", "print", "input"} & set(calls)


@pytest.mark.parametrize("package", sorted(OWNERS))
def test_heavy_packages_have_one_owner(package: str) -> None:
    """Only the owner's files import it."""
    users = {str(p.relative_to(PACKAGE)) for p in MODULES if any(i.split(".")[0] == package for i in imports(p))}
    strangers = {user for user in users if not any(user.startswith(owner) for owner in OWNERS[package])}
    assert not strangers


def test_import_is_slim() -> None:
    """``import rewardlab`` and the command line load neither torch nor any other heavy package."""
    heavy = ["torch", "transformers", "trl", "datasets", "openai", "fastapi", "matplotlib", "numpy", "pydantic", "sklearn"]
    for module, free_of in [
        ("rewardlab", heavy),
        ("rewardlab.cli", heavy),
        ("rewardlab.metrics.accuracy", ["torch", "transformers"]),
    ]:
        code = f"import sys, {module}; print(*[name for name in {free_of!r} if name in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
        assert done.stdout.strip() == "", f"{module} loads {done.stdout}"


def test_public_names_are_what_type_checkers_see() -> None:
    """``import rewardlab`` offers the same names, from the same places, to a program and to a type checker; few of them."""
    import rewardlab

    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    [block] = [node for node in tree.body if is_type_checking(node)]
    seen = {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == rewardlab._HOMES
    assert {*seen, "__version__"} == set(rewardlab.__all__) <= set(dir(rewardlab))
    assert len(seen) <= 18
    heavy = {"train_sft", "train_rl"}  # load torch
    assert all(getattr(rewardlab, name) is not None for name in set(seen) - heavy)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = rewardlab.nothing
    assert (PACKAGE / MARKER).read_text() == ""


def test_only_the_demo_knows_that_the_model_is_tiny() -> None:
    """No branch, no constant, no word of it elsewhere; only the command line imports the demonstration."""
    for path in MODULES:
        if room_of(path) == "demo":
            continue
        text = path.read_text(encoding="utf-8")
        if room_of(path) != "cli":
            assert not any(name.startswith("rewardlab.demo") for name in imports(path)), path
            assert "tiny" not in text.lower(), path
    for path in (PACKAGE / "cli").glob("*.py"):
        assert not re.search(r"\bif\b[^\n]*tiny", path.read_text())


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_habits_of_files(path: Path) -> None:
    """A docstring, at most 400 lines (a size that makes one think), no bare except, no leftover; prompt builders know no
    label."""
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", text), "a control character"
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "module docstring"
    assert len(text.splitlines()) <= LONG_FILES.get(str(path.relative_to(ROOT)), 400)
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"bare except in line {node.lineno}"
        if isinstance(node, ast.FunctionDef) and path.is_relative_to(PACKAGE / "prompts"):
            assert not {"chosen", "rejected", "preferred"} & {a.arg for a in [*node.args.args, *node.args.kwonlyargs]}


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def test_no_file_speaks_of_a_machine() -> None:
    """No absolute paths of somebody's computer, no addresses but local ones and examples."""
    for path in tracked_files():
        if path.suffix in (".png", ".npz", ".parquet", ".safetensors"):
            continue
        text = path.read_text(encoding="utf-8")
        found = re.search(r"(/(work|root|tmp|Users)/|/home/\w)", text)
        assert not found, f"{path}: {found and found[0]}"


def test_readme_is_a_door() -> None:
    """A screen or two with pictures; what is longer stands in docs/."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    assert len(text.split()) <= 1200
    assert len(text.encode()) <= 15_000
    assert len(set(re.findall(r"docs/pictures/[\w-]+\.png", text))) >= 3


def test_root_has_few_names() -> None:
    """A newcomer's first look at the package: at most 24 names."""
    names = [path.name for path in PACKAGE.iterdir() if "__" not in path.name and path.name != MARKER]
    assert len(names) <= 24, sorted(names)


def test_modules_import_in_no_circle() -> None:
    """No module reaches itself by what is imported when it is loaded."""
    names = {
        ".".join(("rewardlab", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in MODULES
    }
    graph = {name: [found for found in loaded_by(path, names) if found != name] for name, path in names.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for imported in graph[name]:
                visit(imported, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def loaded_by(path: Path, names: dict[str, Path]) -> set[str]:
    """The package's modules that a file imports at its top level."""
    loaded = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        full = []
        if isinstance(node, ast.Import):
            full = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            full = [
                f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in names else str(node.module)
                for alias in node.names
            ]
        loaded |= {name for name in full if name in names}
    return loaded
