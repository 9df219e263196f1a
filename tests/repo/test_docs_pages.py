"""The documentation: links resolve, lists are complete, guides are short, results become tables, the site builds."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from PIL import Image

from docs.generator.command_line import commands, root_command
from docs.generator.http_api import openapi
from docs.generator.keys import inner_schemas
from docs.generator.llms import first_sentence, llms_text
from docs.generator.notebooks import notebook_files, notebook_page
from docs.generator.pages import generated_pages
from docs.generator.results import TABLES, fill_results
from eval.field import FIELD_PICTURES
from eval.pictures import FOLDER, MOST_BYTES, PICTURES
from rewardlab.config import SCHEMAS, config_names
from rewardlab.serving.limits import Limits
from tests.support.markdown import FENCE, anchors_of, links_of, slug

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RESULTS = ROOT / "eval" / "results"
WRITTEN = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
PROSE = [ROOT / "README.md", *WRITTEN.values()]
FOREIGN = ("arxiv.org", "huggingface.co", "github.com", "llmstxt.org", "inspect.aisi.org.uk", "localhost", "127.0.0.1")


@cache
def pages() -> dict[str, str]:
    """Return the Markdown of all pages by path: written ones with results filled in, generated ones, notebooks."""
    written = {name: fill_results(path.read_text(encoding="utf-8"), RESULTS, where=name) for name, path in WRITTEN.items()}
    notebooks = {name: str(text) for name, text in notebook_files(ROOT).items() if name.endswith(".md")}
    return {**written, **generated_pages(ROOT), **notebooks}


@cache
def navigation() -> list[str]:
    text = re.sub(r"!!python\S+", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    def walk(node: Any) -> Iterator[str]:
        if isinstance(node, str):
            yield node
        else:
            for child in node.values() if isinstance(node, dict) else node:
                yield from walk(child)

    return list(walk(yaml.safe_load(text)["nav"]))


def resolve(page: str, target: str) -> str:
    parts = page.split("/")[:-1]
    for part in target.split("/"):
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


# --- links


def broken_link(page: str, target: str) -> bool:
    """Return whether a link has no page, heading, file or known host."""
    url = urlsplit(target)
    if url.scheme:
        return url.scheme not in ("http", "https") or not (url.hostname or "").removeprefix("www.").endswith(FOREIGN)
    name = resolve(page, url.path) if url.path else page
    if not name.endswith(".md"):
        return not ((DOCS / name).is_file() or (RESULTS / Path(name).name).is_file())
    return name not in pages() or url.fragment not in {"", *anchors(name)}


@cache
def anchors(page: str) -> set[str]:
    return anchors_of(pages()[page])


def test_links_resolve() -> None:
    links = [(page, target) for page in WRITTEN for target in links_of(pages()[page])]
    assert len(links) > 300
    assert [link for link in links if broken_link(*link)] == []
    assert broken_link("index.md", "how-to/serve.md#no-such-heading")


def test_anchors_are_those_of_the_site() -> None:
    assert slug("`rewardlab data build`") == "rewardlab-data-build"
    assert slug("What does `--judge` take?") == "what-does-judge-take"
    assert slug("[Orders](a.md): why, *then*?") == "orders-why-then"
    assert anchors_of("# A b\n## A b\n```sh\n# no heading\n```\n") == {"a-b", "a-b_1"}


def test_navigation_lists_every_page_once() -> None:
    listed = navigation()
    assert len(listed) == len(set(listed))
    assert set(listed) == set(pages())


# --- lists are complete


def metric_names() -> set[str]:
    """Return the metrics that the code names, such as ``loss/clip_frac``; ``*`` replaces a part filled in at run time."""
    names: set[str] = set()
    for room in ("training", "rewards", "rl"):
        for path in (ROOT / "rewardlab" / room).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                    names.add(node.value)
                elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "RewardTerm":
                    names |= {f"reward/{name.value}" for name in node.args[:1] if isinstance(name, ast.Constant)}
                elif isinstance(node, ast.JoinedStr):
                    names.add("".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values))
    return {name for name in names if re.fullmatch(r"(?!runs/|configs/)[a-z]+/[a-z0-9_*]+", name)}


def test_every_metric_is_listed() -> None:
    listed = re.findall(r"^\| `([a-z]+/\w+)` \|", WRITTEN["reference/metrics.md"].read_text(encoding="utf-8"), re.M)
    assert len(listed) == len(set(listed))
    known, named = {re.sub(r"[A-Z]+", "*", name) for name in listed}, metric_names()
    assert not named - known, f"docs/reference/metrics.md: add a row for {', '.join(sorted(named - known))}"
    assert not known - named, f"docs/reference/metrics.md: no code logs {', '.join(sorted(known - named))}; delete the row"


def test_every_paper_is_listed() -> None:
    """The page has every arXiv number of the package, its configs and recipes, and names only existing configs and files."""
    page = WRITTEN["papers.md"].read_text(encoding="utf-8")
    for folder in ("rewardlab", "configs", "data_recipes"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".yaml", ".sh"):
                for number in re.findall(r"(?<![\d.])\d{4}\.\d{5}(?!\d)", path.read_text(encoding="utf-8")):
                    month = int(number[2:4])
                    assert number in page or not 1 <= month <= 12, f"{path}: add arXiv {number} to docs/papers.md"
    for name in re.findall(r"`((?:rl|policy|sft|tiny)/\w+)`", page):
        assert name in config_names(), name
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", page):
        assert (ROOT / name).exists() or (ROOT / "rewardlab" / name).exists(), name


def test_every_command_and_option_is_listed() -> None:
    page = pages()["reference/cli.md"]
    for name, command in commands(root_command()):
        _, _, rest = page.partition(f"### `{name}`\n")
        section = rest.partition("\n### ")[0]
        assert section, name
        for option in command.params:
            assert option.name == "help" or option.hidden or option.name.upper() in section or option.opts[0] in section, name


def test_every_key_is_listed() -> None:
    """Own keys, inherited ones, and those of nested schemas."""
    for stage, top in SCHEMAS.items():
        for schema in (top, *inner_schemas(top)):
            for key in schema.model_fields:
                assert f"| `{key}` |" in pages()[f"reference/yaml/{stage}.md"], f"{schema.__name__}.{key}"


def test_every_route_and_limit_is_listed() -> None:
    for path, methods in openapi()["paths"].items():
        for method in methods:
            assert f"### `{method.upper()} {path}`" in pages()["reference/http.md"]
    for name, *_ in Limits.described():
        assert f"| `{name}` |" in pages()["reference/http.md"]


JARGON = """
StableReinforce, generative judge, cold start, vote, majority of K, level, unsolved, failing closed, hard pairs, pre-clip
3-sigma filter, whitened, ragged, free flip, lost_frac, FIRE, hot_token, window, importance, Acc+, trial, ring, anchor
MFU, digits (scans)
"""


def test_terms_are_explained() -> None:
    terms = re.findall(r"^(`[^\n]+)\n:   ", WRITTEN["glossary.md"].read_text(encoding="utf-8"), re.M)
    assert [term for term in re.split(r", |\n", JARGON.strip()) if not any(term in line for line in terms)] == []


def test_guides_are_short() -> None:
    """A how-to page has at most 900 words outside of code; facts go to the reference."""
    for name in WRITTEN:
        if name.startswith("how-to/"):
            words = re.findall(r"[^\s|]*\w[^\s|]*", FENCE.sub("", pages()[name]))
            assert len(words) <= 900, f"{name}: {len(words)} words"


# --- results, notebooks, llms.txt


@pytest.mark.parametrize("name", [*TABLES, "demo_judges"])
def test_results_become_tables(name: str) -> None:
    """A table has its rows, its command and its commit."""
    text = fill_results(f"<!-- results: {name} -->", RESULTS, where="here")
    assert text.count("\n| ") >= 2
    assert re.search(r"`(python eval/|rewardlab bench)[^`]*`, commit [0-9a-f]{7}", text)


def test_a_table_holds_the_published_figures() -> None:
    """Expected cells were computed by hand from eval/results."""
    assert "| change, points | +4.6 [+2.6, +6.7] |" in fill_results("<!-- results: closed_loop -->", RESULTS, where="here")
    assert "| endpoint over hf | 90 % | 85-101 |" in fill_results("<!-- results: serving_rate -->", RESULTS, where="here")
    assert "| stable_reinforce | trl grpo, no KL | 0.83 |" in fill_results("<!-- results: step_time -->", RESULTS, where="here")
    assert "| grpo | trl grpo | 0.53 |" in fill_results("<!-- results: step_time_mixed -->", RESULTS, where="here")


def test_a_file_of_results_becomes_a_part(tmp_path: Path) -> None:
    """The title is dropped and headings move down one level. An unknown name is refused."""
    (tmp_path / "a.md").write_text("# Title\n\nText.\n\n## Part\n\n| a |\n")
    assert (
        fill_results("## All\n\n<!-- results: a.md -->\n", tmp_path, where="here") == "## All\n\nText.\n\n### Part\n\n| a |\n\n"
    )
    with pytest.raises(ValueError, match="here: no results 'nothing'"):
        fill_results("<!-- results: nothing -->", tmp_path, where="here")


def test_a_notebook_becomes_a_page(tmp_path: Path) -> None:
    """A page has text, code, printed lines and images. A notebook with an error is refused."""
    picture = {"output_type": "display_data", "data": {"image/png": "aGk=", "text/plain": "<Figure>"}}
    printed = {"output_type": "stream", "name": "stdout", "text": ["\x1b[1mthree\x1b[0m\n"]}
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Text."]},
        {"cell_type": "code", "source": "print('three')", "outputs": [printed, picture]},
    ]
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    files = notebook_page(path, "tutorials", where="docs/tutorials/a.ipynb")
    page = str(files["tutorials/a.md"])
    assert page.startswith("# Title\n\n*From the notebook `docs/tutorials/a.ipynb`.*\n")
    assert "```python\nprint('three')\n```\n\n```text\nthree\n```\n\n![" in page
    assert files["tutorials/a_0.png"] == b"hi"
    cells[1]["outputs"] = [{"output_type": "error", "ename": "KeyError", "evalue": "", "traceback": []}]
    path.write_text(json.dumps({"cells": cells}))
    with pytest.raises(ValueError, match="KeyError"):
        notebook_page(path, "tutorials", where="a.ipynb")


def test_llms_txt() -> None:
    page = SimpleNamespace(
        is_page=True,
        is_section=False,
        title="Serve",
        file=SimpleNamespace(src_uri="serve.md"),
        markdown="# S\n\n**It** serves. More.",
    )
    section = SimpleNamespace(is_page=False, is_section=True, title="How-to", children=[page])
    text = llms_text(SimpleNamespace(items=[page, section]), "rewardlab", "Judges.")
    link = "- [Serve](serve.md): It serves.\n"
    assert text == f"# rewardlab\n\n> Judges.\n\n## Start\n\n{link}\n## How-to\n\n{link}"


def test_a_page_begins_with_a_sentence() -> None:
    """`llms.txt` and search show the first sentence."""
    for name in WRITTEN:
        sentence = first_sentence(pages()[name])
        assert 20 <= len(sentence) <= 260, f"{name}: {sentence}"
        assert len(re.findall(r"^# ", FENCE.sub("", pages()[name]), re.M)) == 1, f"{name}: one title"


# --- pictures, intervals


def test_the_scripts_take_all_pictures() -> None:
    """No picture that nobody can take again, none missing; together small enough for a clone, each wide enough to read."""
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(f"{name}.png" for name in (*PICTURES, *FIELD_PICTURES))
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= MOST_BYTES
    widths = {}
    for path in FOLDER.glob("*.png"):
        with Image.open(path) as image:
            widths[path.stem] = image.width
    assert widths["judgment"] == widths["judgment-dark"] == 1600
    assert min(widths.values()) >= 600


def test_every_picture_that_a_page_names_exists() -> None:
    """By Markdown or by HTML, from README and from every page of the docs."""
    named = {name for page in PROSE for name in re.findall(r"pictures/([\w.-]+)", page.read_text(encoding="utf-8"))}
    assert named
    assert not {name for name in named if not (FOLDER / name).exists()}


def test_a_page_with_intervals_names_their_method() -> None:
    """In its own text; tables that the documentation fills in count as intervals."""
    interval = re.compile(r"\d (?:% |points )?\[[-+]?\d+(?:\.\d+)?, [-+]?\d+(?:\.\d+)?\]")
    table = re.compile(r"^<!-- results: (?:closed_loop|injections|leaks|demo_judges) -->$", re.MULTILINE)
    pages = [ROOT / "README.md", DOCS / "index.md", *(DOCS / "studies").glob("*.md"), *RESULTS.glob("*.md")]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    with_intervals = {page for page, text in texts.items() if interval.search(text) or table.search(text)}
    assert with_intervals
    assert not {page for page in with_intervals if not re.search("bootstrap|Student's|Wilson|jackknife", texts[page], re.I)}


@pytest.mark.nightly
def test_the_site_builds(tmp_path: Path) -> None:
    """A warning fails the build. No page loads anything from another server."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    for path in tmp_path.rglob("*.html"):
        for address in re.findall(
            r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?://[^\"]+)", path.read_text(encoding="utf-8")
        ):
            pytest.fail(f"{path.name} loads {address}")
    assert (tmp_path / "llms.txt").read_text(encoding="utf-8").count("- [") == len(navigation())
