"""The hook of ``mkdocs.yml``: pages made from the code, results filled into pages, and ``llms.txt``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from mkdocs.config.defaults import MkDocsConfig  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402
from mkdocs.structure.nav import Navigation  # noqa: E402
from mkdocs.structure.pages import Page  # noqa: E402

from docs.generator.llms import llms_text  # noqa: E402
from docs.generator.notebooks import notebook_files  # noqa: E402
from docs.generator.pages import generated_pages  # noqa: E402
from docs.generator.results import fill_results  # noqa: E402

PIPELINE = Path(__file__).with_name("pipeline.svg")  # drawn within a page, in the page's colours
_navigation: list[Navigation] = []


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, content in {**generated_pages(ROOT), **notebook_files(ROOT)}.items():
        files.append(File.generated(config, path, content=content))
    for figure in sorted((ROOT / "eval" / "results").glob("*.png")):
        files.append(File.generated(config, f"studies/{figure.name}", abs_src_path=str(figure)))
    return files


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    _navigation[:] = [nav]
    return nav


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    filled = fill_results(markdown, ROOT / "eval" / "results", where=page.file.src_uri)
    figure = f'<div class="pipeline-figure">{PIPELINE.read_text(encoding="utf-8").strip()}</div>'
    return filled.replace("<!-- pipeline -->", figure)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with names in place of docstrings' roles, intervals that no line breaks, and names in tables that break
    at their signs."""
    html = re.sub(r":(?:class|func|meth|data|mod|attr):(<code>)~?", r"\1", html)
    html = re.sub(r"(?<=</td>\n<td>).*?(?=</td>)", _with_breaks, html, flags=re.DOTALL)
    return re.sub(r"(\d) \[([-+−\d.]+), ([-+−\d.]+)\]", "\\1\u00a0[\\2,\u00a0\\3]", html)


def _with_breaks(cell: re.Match[str]) -> str:
    return re.sub(r"(?<=<code>)[^<]*", lambda code: re.sub(r"([/_.=:|,])(?=\w)", r"\1<wbr>", code[0]), cell[0])


def on_post_build(config: MkDocsConfig, **unused: Any) -> None:
    """Write ``llms.txt``, and the Markdown of every page that it leads to beside the page."""
    navigation, site = _navigation[0], Path(config.site_dir)
    for page in navigation.pages:
        path = site / page.file.src_uri
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page.markdown or "", encoding="utf-8")
    (site / "llms.txt").write_text(llms_text(navigation, config.site_name, str(config.site_description)), encoding="utf-8")
