"""The layers of the house, who owns which heavy package, and the habits of its files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import networkx
import pytest

from tests.support.repository import LAYERS, ROOT, tracked_files

PACKAGE = ROOT / "rewardlab"
MODULES = sorted(PACKAGE.rglob("*.py"))
SOURCES = [*MODULES, *sorted((ROOT / "eval").rglob("*.py")), *sorted((ROOT / "data_recipes").rglob("*.py"))]

PURE = [
    "types.py",
    *(f"{room}/{p.name}" for room in ("prompts", "verdicts", "metrics", "rl") for p in PACKAGE.glob(f"{room}/*.py")),
    "judging/ranking.py",
]
# What there is to read, and how tangled it is: a count may fall, never rise above its ceiling.
CEILINGS = {
    "files with one importer": 45,
    "files of at most 50 lines": 14,
    "functions with 8 or more parameters": 14,
    "imports against the order of benchmarks": 3,
}
KNOWN_CIRCLES: list[set[str]] = []
OWNERS = {
    "openai": {"samplers/chat_endpoint.py", "samplers/openai_batch.py"},
    "vllm": {"samplers/vllm.py"},
    "fastapi": {"serving/"},
    "prometheus_client": {"serving/app.py", "serving/request_record.py"},
    "opentelemetry": {"serving/request_record.py"},
    "fastapi_offline": {"serving/pages.py"},
    "datasketch": {"curation/duplicates.py"},
    "imagehash": {"curation/image_hashes.py"},
    "ray": {"distill/ray_transport.py"},
    "av": {"data/video.py"},
    **{name: {"training/", "models/"} for name in ("peft", "deepspeed", "accelerate")},
    "trl": {"training/"},
    "datasets": {"data/", "training/"},
    "verl": {"integrations/verl_groups.py", "integrations/verl_judge_reward.py", "integrations/verl_stable_reinforce.py"},
    "verifiers": {"integrations/verifiers.py"},
    "openenv": {"integrations/openenv.py"},
    "sklearn": set(),  # only tests and studies compare with it
    "matplotlib": {"reporting/plots.py", "demo/"},
    "inspect_ai": {"benchmarks/inspect_log.py", "integrations/inspect.py"},
    "mcp": {"serving/mcp_server.py"},
    "rich": {"cli/", "reporting/progress.py", "benchmarks/leaderboard.py", "demo/"},
    "typer": {"cli/"},
    "math_verify": {"rewards/verifiable/math_worker.py"},
    "sympy": {"rewards/verifiable/math_worker.py"},
}


MARKER = "py.typed"  # an empty file: says to type checkers that the package has types
BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")  # of statements


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path, *, typing: bool = False) -> tuple[str, ...]:
    """Full names of what a file imports, wherever in it; of what only annotations need, only with ``typing``."""
    nodes: list[ast.AST] = [tree_of(path)]
    names: list[str] = []
    while nodes:
        node = nodes.pop()
        children = [child for block in BLOCKS for child in getattr(node, block, ())]  # imports are statements
        nodes += [child for child in children if typing or not is_type_checking(child)]
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(names)


def name_of(path: Path) -> str:
    """``data.pairs`` for ``rewardlab/data/pairs.py``."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__").removesuffix("__init__")


@cache
def references() -> dict[str, set[str]]:
    """The modules that each module imports, lazily or for its annotations, too."""
    paths = {name_of(path): path for path in MODULES}

    def module(imported: str) -> str | None:
        name = imported.removeprefix("rewardlab.")
        owner = name if name in paths else name.rpartition(".")[0]
        return owner if imported.startswith("rewardlab.") and owner in paths else None

    graph = {name: {*map(module, imports(path, typing=True))} for name, path in paths.items() if name}
    return {name: {other for other in others if other and other != name} for name, others in graph.items()}


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of nodes that reach one another."""
    arrows = networkx.DiGraph([(node, other) for node, others in graph.items() for other in others])
    return [nodes for nodes in networkx.strongly_connected_components(arrows) if len(nodes) > 1]


def against_the_order(graph: dict[str, set[str]]) -> list[str]:
    """The arrows that lead back in an order of the nodes with few of those (Eades, Lin and Smyth, 1993)."""
    left, first, last = set(graph), [], []
    while left:
        arrows = {node: (len(graph[node] & left), sum(node in graph[other] for other in left)) for node in sorted(left)}
        ends = [node for node, (out, _) in arrows.items() if not out]
        begins = [node for node, (_, into) in arrows.items() if not into]
        node = (ends or begins or [max(arrows, key=lambda node: arrows[node][0] - arrows[node][1])])[0]
        (last if ends else first).append(node)
        left.remove(node)
    place = {node: n for n, node in enumerate([*first, *reversed(last)])}
    return [f"{node} -> {other}" for node in graph for other in graph[node] if place[other] < place[node]]


def layer_of(room: str) -> int:
    return next(n for n, rooms in enumerate(LAYERS) if room in rooms)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_go_one_way() -> None:
    """Never from a higher layer; training, serving and benchmarks never meet."""
    offenders = []
    for path in MODULES:
        room = room_of(path)
        for name in imports(path) if room != "__init__" else ():
            parts = name.split(".")
            if parts[0] in ("data_recipes", "eval", "tests"):
                offenders.append(f"{path} imports {name}")
            if parts[0] == "rewardlab" and parts[1] not in (room, "__version__"):
                below = layer_of(parts[1]) < layer_of(room)
                beside = layer_of(parts[1]) == layer_of(room) and room not in {"training", "serving", "benchmarks"}
                if not (below or beside):
                    offenders.append(f"{path} imports {name}")
    assert not offenders, "\n".join(offenders)


def test_the_pure_middle_is_pure() -> None:
    """No I/O, no network, no logging, no config object; ``rl`` adds torch, ``metrics`` numpy, and nothing else."""
    allowed = {*sys.stdlib_module_names, "rewardlab"} - {"logging", "subprocess", "socket", "urllib", "asyncio", "os", "random"}
    offenders = []
    for name in PURE:
        with_torch = name.startswith("rl/") or name == "verdicts/margins.py"
        more = {"torch"} if with_torch else {"numpy"} if name.startswith(("metrics/", "judging/")) else set()
        offenders += [
            f"{name} imports {imported}"
            for imported in imports(PACKAGE / name)
            if imported.split(".")[0] not in allowed | more or imported.startswith("rewardlab.config")
        ]
        offenders += [
            f"{name}:{node.lineno} calls {node.func.id}"
            for node in ast.walk(tree_of(PACKAGE / name))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("open", "print", "input")
        ]
    assert len(PURE) > 20
    assert not offenders, "\n".join(offenders)


def test_heavy_packages_have_one_owner() -> None:
    """Only the owner's files import it."""
    offenders = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in MODULES
        for name in imports(path)
        for owners in [OWNERS.get(name.split(".")[0])]
        if owners is not None and not str(path.relative_to(PACKAGE)).startswith(tuple(owners))
    ]
    assert not offenders, "\n".join(offenders)


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


def test_habits_of_files() -> None:
    """A docstring, no bare except, no leftover, no control character; prompt builders know no label."""
    offenders = []
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        if re.search(r"[\x00-\x08\x0b-\x1f]", text):
            offenders.append(f"{path}: a control character")
        if not ast.get_docstring(tree_of(path)):
            offenders.append(f"{path}: no docstring")
        if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", text):
            offenders.append(f"{path}: a leftover")
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                offenders.append(f"{path}:{node.lineno}: bare except")
            if isinstance(node, ast.FunctionDef) and path.is_relative_to(PACKAGE / "prompts"):
                labels = {"chosen", "rejected", "preferred"} & {a.arg for a in [*node.args.args, *node.args.kwonlyargs]}
                offenders += [f"{path}:{node.lineno}: a parameter {name}" for name in labels]
    assert not offenders, "\n".join(offenders)


def test_little_to_read() -> None:
    """Few files that one other file imports, few of at most 50 lines, few long signatures, few imports that lead back."""
    importers = Counter(name for names in references().values() for name in names)
    modules = [path for path in MODULES if path.name != "__init__.py"]
    functions = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and num_parameters(node) >= 8
    ]
    rooms: dict[str, set[str]] = defaultdict(set)
    for name, others in references().items():
        if name.startswith("benchmarks."):
            room = name.split(".")[1]
            rooms[room] |= {other.split(".")[1] for other in others if other.startswith("benchmarks.")} - {room}
    offenders = {
        "files with one importer": [name_of(path) for path in modules if importers[name_of(path)] == 1],
        "files of at most 50 lines": [name_of(p) for p in modules if len(p.read_text(encoding="utf-8").splitlines()) <= 50],
        "functions with 8 or more parameters": functions,
        "imports against the order of benchmarks": against_the_order(rooms),
    }
    assert offenders.keys() == CEILINGS.keys()
    for rule, found in offenders.items():
        assert len(found) <= CEILINGS[rule], f"{len(found)} {rule}, at most {CEILINGS[rule]}:\n" + "\n".join(found)


def num_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [*node.args.posonlyargs, *node.args.args]
    return len(names) + len(node.args.kwonlyargs) - bool(names and names[0].arg in ("self", "cls"))


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
    """A newcomer's first look at the package: at most 25 names."""
    names = [path.name for path in PACKAGE.iterdir() if "__" not in path.name and path.name != MARKER]
    assert len(names) <= 25, sorted(names)


def test_modules_import_in_no_circle() -> None:
    """No module reaches itself, lazy imports and those for annotations counted."""
    found = [sorted(names) for names in circles(references()) if not any(names <= known for known in KNOWN_CIRCLES)]
    assert not found, "\n".join(map(str, found))


def test_the_order_of_a_graph() -> None:
    """Worked by hand: two circles, one within the other's reach, are found, and one arrow of each leads back."""
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert sorted(map(sorted, circles(graph))) == [["a", "b", "c"], ["d", "e"]]
    assert len(against_the_order(graph)) == 2
    assert against_the_order({"a": {"b"}, "b": set()}) == []
