"""Every code block in README and docs: Python runs, commands exist, and shell blocks marked ``runs`` run.

A block that a test cannot run says why, in its first line (``# needs: a GPU``) or in the line before it
(``<!-- needs: a GPU -->``). A shell block runs if ``<!-- runs -->`` precedes it.
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
import typer
import yaml

from docs.generator.http_api import openapi
from rewardlab.cli import main
from rewardlab.config import config_names
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.limits import Limits
from rewardlab.serving.service import GroupRules, ServerOptions
from tests.support.command_line import make_targets, parse_command
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
PLAIN = ("text", "html", "dockerfile", "xml", "css", "latex")
TOOLS = {"cd", "git", "python", "python3", "pip", "make", "export", "accelerate", "curl", "rewardlab", "hf", "mkdir", "cat"}


def name_of(block: Block) -> str:
    return f"{block.page.relative_to(ROOT).as_posix()}:{block.line}"


def of_language(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def test_every_block_has_a_known_language_and_data_parses() -> None:
    known = ("python", *SHELL, *READERS, *PLAIN)
    assert [f"{name_of(block)}: {block.language!r}" for block in BLOCKS if block.language not in known] == []
    for block in of_language(*READERS):
        try:
            READERS[block.language](block.code)
        except ValueError as error:
            pytest.fail(f"{name_of(block)}: {error}")


# --- commands


def check_rewardlab(words: list[str], where: str) -> None:
    """Fail for a command, an option or a config that is not there, and for what is missing."""
    try:
        given = parse_command(words)
    except typer.BadParameter as error:
        if str(error).endswith("does not exist."):  # a file of the reader's
            return
        raise
    for name, value in given.items():
        if isinstance(value, str | Path) and words[:2] != ["configs", "copy"]:
            check_shipped(str(value), where)
        if name == "config" and value and not str(value).endswith(".yaml"):  # else a file of the reader's, or one of configs/
            assert any(f"/{shipped}".endswith(f"/{value}") for shipped in config_names()), f"{where}: no config {value}"


def check_shipped(path: str, where: str) -> None:
    """Fail for a file of the repository that is not there, and for the path of a config: readers have no checkout."""
    assert not path.startswith("configs/"), f"{where}: {path}; give its name of `rewardlab configs list`"
    if path.startswith(("eval/", "tests/")):
        assert (ROOT / path).exists(), f"{where}: no file {path}"


def check_python(words: list[str], where: str) -> None:
    if words[:2] == ["-m", "rewardlab.cli"]:
        check_rewardlab(words[2:], where)
    elif words[:2] == ["-m", "eval.studies"]:
        assert (ROOT / "eval" / "studies" / f"{words[2]}.py").is_file(), where
    elif words and words[0].endswith(".py"):
        assert (ROOT / words[0]).is_file(), f"{where}: no file {words[0]}"


def check_pip(words: list[str], where: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words:
        if match := re.fullmatch(r"(?:\.|rewardlab)\[([\w,-]+)\]", word):
            assert set(match[1].split(",")) <= set(extras), f"{where}: {word}; extras are {', '.join(extras)}"


def check_curl(words: list[str], where: str) -> None:
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
        assert {word for word in rest if "=" not in word} <= make_targets(), f"{where}: make {rest}"
    elif tool == "accelerate" and "rewardlab.cli" in rest:
        check_rewardlab(rest[rest.index("rewardlab.cli") + 1 :], where)
    elif tool == "curl":
        check_curl(rest, where)
    else:
        known = (ROOT / tool).is_file() or tool in TOOLS
        assert known, f"{where}: {tool!r} is not known here; say `# needs: ...` in the block's first line"


def test_commands_exist() -> None:
    """Check each command with its options, configs, paths and targets; in blocks with needs only rewardlab and make."""
    assert len(of_language(*SHELL)) > 50
    for block in of_language(*SHELL):
        for words in commands_of(re.sub(r"^\$ ", "", block.code, flags=re.M)):
            if not block.needs or words[0] in ("rewardlab", "make"):
                check_command(words, name_of(block))


# --- what runs


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    judge = GenerativeJudge(ScriptedSampler(handler), load_template("plain"))
    with running(create_app(judge, ServerOptions(rules=GroupRules(group_size=3), limits=Limits(group_timeout=0.5)))) as address:
        yield address


@pytest.fixture
def desk(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a reader's folder: the repository's files but configs, six pairs, an image, and running servers."""
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
    return re.sub(r"(http://)?(localhost|127\.0\.0\.1):800[01]", url, code)


def run_command(words: list[str], desk: Path, url: str) -> None:
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
    """Yield pages with a block that runs. Pages with a command are slow."""
    for page in PAGES:
        if found := [block for block in BLOCKS if block.page == page and runs(block)]:
            slow = [pytest.mark.slow] if any(block.language in SHELL for block in found) else []
            yield pytest.param(page, marks=slow, id=page.relative_to(ROOT).as_posix())


@pytest.mark.parametrize("page", list(pages_that_run()))
def test_blocks_run(page: Path, desk: Path, url: str) -> None:
    """Run a page's blocks in order in one folder; its Python blocks share their names."""
    names: dict[str, Any] = {"__name__": "reader"}
    for block in (block for block in BLOCKS if block.page == page and runs(block)):
        if block.language == "python":
            exec(compile(at(url, block.code), name_of(block), "exec"), names)
        else:
            for words in commands_of(at(url, block.code)):
                run_command(words, desk, url)


def test_a_false_block_is_found() -> None:
    false = ["rewardlab jugde", "rewardlab rl --lr 1 --data a --out b", "rewardlab rl --data a --out b --config rl/gropo"]
    false += ["rewardlab rl --data a", "curl localhost:8000/v1/jugde", "make chekc", "pip install '.[qrola]'", "kubectl apply"]
    for line in false:
        (words,) = commands_of(line)
        with pytest.raises((AssertionError, ValueError, typer.BadParameter.__base__)):  # type: ignore[arg-type]
            check_command(words, line)
    with pytest.raises(ValueError, match="not a complete command"):
        list(commands_of("rewardlab judge --question 'open"))
