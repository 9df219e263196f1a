"""Every block of code in the documentation and the README: Python runs, commands exist, what is marked ``runs`` runs.

A block that a test cannot run says why in its first line, ``# needs: a GPU``, or in the line before it,
``<!-- needs: a GPU -->``. A shell block runs where ``<!-- runs -->`` stands before it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from docs.generator.command_line import root_command
from docs.generator.http_api import openapi
from rewardlab.cli import main
from rewardlab.config import config_names
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.service import GroupRules, ServerOptions
from tests.support.images import png
from tests.support.markdown import Block, blocks_of, commands_of
from tests.support.scripted_judge import handler
from tests.support.servers import running
from tests.support.shell import run_main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
SHELL = ("sh", "bash", "shell", "console")
READERS = {"json": json.loads, "yaml": yaml.safe_load, "toml": tomllib.loads}
PLAIN = ("text", "html", "dockerfile", "xml", "css", "latex")  # nothing of these can be wrong but to the eye
TOOLS = (
    "cd",
    "git",
    "python",
    "python3",
    "pip",
    "make",
    "source",
    "export",
    "accelerate",
    "curl",
    "rewardlab",
    "hf",
    "mkdir",
    "cat",
)


def name_of(block: Block) -> str:
    return f"{block.page.relative_to(ROOT).as_posix()}:{block.line}"


def of_language(*languages: str) -> list[Any]:
    return [pytest.param(block, id=name_of(block)) for block in BLOCKS if block.language in languages]


# --- blocks are of a known kind


@pytest.mark.parametrize("block", [pytest.param(b, id=name_of(b)) for b in BLOCKS])
def test_a_block_has_a_language(block: Block) -> None:
    """One that a test here reads, or one in which nothing can be wrong."""
    assert block.language in ("python", *SHELL, *READERS, *PLAIN), f"```{block.language}: {block.code[:60]!r}"


@pytest.mark.parametrize("block", of_language(*READERS))
def test_data_can_be_read(block: Block) -> None:
    READERS[block.language](block.code)


# --- commands


def options_of(command: Any) -> dict[str, bool]:
    """Return the names of a command's options, and whether each takes a value."""
    names = {"--help": False}
    for option in command.params:
        if option.param_type_name == "option":
            is_flag = getattr(option, "is_flag", False)
            names |= dict.fromkeys([*option.opts, *option.secondary_opts], not is_flag)
    return names


def check_rewardlab(words: list[str], where: str) -> None:
    """Fail for a command, an option or a config that is not there, and for an argument or option that is missing."""
    command, words = root_command(), list(words)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"{where}: no command {words[0]!r}"
        command = command.commands[words.pop(0)]
    options, positional, given = options_of(command), list[str](), set[str]()
    while words:
        name, _, value = words.pop(0).partition("=")
        if not name.startswith("-") or name == "-":
            positional.append(name)
            check_shipped(name, where, is_target=command.name == "copy")
            continue
        assert name in options, f"{where}: no option {name!r}"
        given.add(name)
        if options[name] and not value:
            assert words, f"{where}: {name} needs a value"
            value = words.pop(0)
        check_shipped(value, where)
        if name == "--config" and not value.endswith(".yaml"):  # else a file of the reader's, or one that is looked for above
            assert any(f"/{shipped}".endswith(f"/{value}") for shipped in config_names()), f"{where}: no config {value}"
    check_required(command, positional, given, where)


def check_shipped(path: str, where: str, *, is_target: bool = False) -> None:
    """Fail for a file of the repository that is not there, and for the path of a config: readers have no checkout."""
    assert is_target or not path.startswith("configs/"), f"{where}: {path}; give its name of `rewardlab configs list`"
    if path.startswith(("configs/", "eval/", "tests/")):
        assert (ROOT / path).exists(), f"{where}: no file {path}"


def check_required(command: Any, positional: list[str], given: set[str], where: str) -> None:
    if "--help" in given or hasattr(command, "commands"):
        return
    arguments = [option for option in command.params if option.param_type_name == "argument"]
    many = any(argument.nargs != 1 for argument in arguments)
    assert many or len(positional) <= len(arguments), f"{where}: {positional} for {len(arguments)} arguments"
    assert len(positional) >= sum(a.required for a in arguments), f"{where}: an argument is missing"
    for option in command.params:
        if option.param_type_name == "option" and option.required:
            assert given & set(option.opts), f"{where}: {option.opts[0]} is required"


def check_python(words: list[str], where: str) -> None:
    if words[:2] == ["-m", "rewardlab.cli"]:
        check_rewardlab(words[2:], where)
    elif words[:2] == ["-m", "eval.studies"]:
        assert (ROOT / "eval" / "studies" / f"{words[2]}.py").is_file(), where
    elif words and words[0].endswith(".py"):
        assert (ROOT / words[0]).is_file(), f"{where}: no file {words[0]}"


def check_pip(words: list[str], where: str) -> None:
    """Fail for an extra that is not there."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words:
        if match := re.fullmatch(r"(?:\.|rewardlab)\[([\w,-]+)\]", word):
            assert set(match[1].split(",")) <= set(extras), f"{where}: {word}; extras are {', '.join(extras)}"


def check_curl(words: list[str], where: str) -> None:
    """Fail for a path that the server has not."""
    url = next(word for word in words if re.match(r"(https?://)?(localhost|127\.0\.0\.1)", word))
    path = re.sub(r"^(https?://)?[^/]+", "", url).partition("?")[0]
    assert path in {*openapi()["paths"], "/docs", "/openapi.json"}, f"{where}: no path {path!r}"


def check_command(words: list[str], where: str) -> None:
    tool, *rest = words
    if tool == "rewardlab":
        check_rewardlab(rest, where)
    elif tool in ("python", "python3"):
        check_python(rest, where)
    elif tool == "pip":
        check_pip(rest, where)
    elif tool == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert set(rest) <= {*targets} | {word for word in rest if "=" in word}, f"{where}: make {rest}"
    elif tool == "accelerate" and "rewardlab.cli" in rest:
        check_rewardlab(rest[rest.index("rewardlab.cli") + 1 :], where)
    elif tool == "curl":
        check_curl(rest, where)
    else:
        is_script = (ROOT / tool).is_file()
        assert is_script or tool in TOOLS, f"{where}: {tool!r} is not known here; say `# needs: ...` in the block's first line"


@pytest.mark.parametrize("block", of_language(*SHELL))
def test_commands_exist(block: Block) -> None:
    """Each command with its options, configs, paths and targets; what needs another machine, its rewardlab commands."""
    for words in commands_of(re.sub(r"^\$ ", "", block.code, flags=re.M)):
        if not block.needs or words[0] in ("rewardlab", "make"):
            check_command(words, name_of(block))


# --- what runs


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    judge = GenerativeJudge(ScriptedSampler(handler), load_template("plain"))
    with running(create_app(judge, ServerOptions(rules=GroupRules(group_size=3, group_timeout_s=0.5)))) as address:
        yield address


@pytest.fixture
def desk(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a reader has it: the repository's files without configs, which have names, pairs, an image; the servers that
    the pages name are there."""
    for name in ("eval", "tests", "data_recipes"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a1.png").write_bytes(png())
    rows = [
        {"pair_id": f"p{n}", "question": f"Which number is in picture {n}?", "images": ["images/a1.png"]}
        | {"responses": ["I say 3.", "I say 1."], "preferred": n % 2}
        for n in range(6)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_parquet(read_pairs(tmp_path / "pairs.jsonl"), tmp_path / "pairs.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REWARDLAB_URL", url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    return tmp_path


def at(url: str, code: str) -> str:
    """Return a block with the test's server in place of the addresses that the pages name."""
    return re.sub(r"(http://)?(localhost|127\.0\.0\.1):800[01]", url, code)


def run_command(words: list[str], desk: Path, url: str) -> None:
    """Run one command to its end; fail unless it ends well."""
    if words[0] == "curl":
        target = next(word for word in words if word.startswith(url))
        body = words[words.index("-d") + 1]
        answer = httpx.post(target, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 200, answer.text
        return
    assert words[0] == "rewardlab", f"only rewardlab and curl run here, not {words[0]!r}"
    done = run_main(main, *words[1:], folder=desk)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"


def runs(block: Block) -> bool:
    return block.note == "runs" if block.language in SHELL else block.language == "python" and not block.needs


def pages_that_run() -> Iterator[Any]:
    """Yield the pages with a block that runs; those with a command are slow."""
    for page in PAGES:
        if found := [block for block in BLOCKS if block.page == page and runs(block)]:
            slow = [pytest.mark.slow] if any(block.language in SHELL for block in found) else []
            yield pytest.param(page, marks=slow, id=page.relative_to(ROOT).as_posix())


@pytest.mark.parametrize("page", list(pages_that_run()))
def test_blocks_run(page: Path, desk: Path, url: str) -> None:
    """Those of a page one after another in one folder, as its reader types them; Python's share their names."""
    names: dict[str, Any] = {"__name__": "reader"}
    for block in (block for block in BLOCKS if block.page == page and runs(block)):
        if block.language == "python":
            exec(compile(at(url, block.code), name_of(block), "exec"), names)
        else:
            for words in commands_of(at(url, block.code)):
                run_command(words, desk, url)


def test_a_false_block_is_found() -> None:
    """A command, an option, a config, a path, a target and an extra that are not there."""
    false = ["rewardlab jugde", "rewardlab rl --lr 1 --data a --out b", "rewardlab rl --data a --out b --config rl/gropo"]
    false += ["rewardlab rl --data a", "curl localhost:8000/v1/jugde", "make chekc", "pip install '.[qrola]'", "kubectl apply"]
    for line in false:
        (words,) = commands_of(line)
        with pytest.raises((AssertionError, ValueError)):
            check_command(words, line)
    with pytest.raises(ValueError, match="not a complete command"):
        list(commands_of("rewardlab judge --question 'open"))
