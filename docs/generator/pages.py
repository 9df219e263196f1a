"""Every page that is made from the code, by its path below ``docs/``."""

from __future__ import annotations

from pathlib import Path

from docs.generator.command_line import command_page
from docs.generator.http_api import http_page
from docs.generator.keys import key_pages
from docs.generator.python_api import python_page
from docs.generator.tree import tree_page


def generated_pages(root: Path) -> dict[str, str]:
    """Return the Markdown of the generated pages."""
    return {
        "reference/cli.md": command_page(),
        "reference/http.md": http_page(),
        "reference/python.md": python_page(root),
        "reference/files.md": tree_page(root),
        **key_pages(),
    }
