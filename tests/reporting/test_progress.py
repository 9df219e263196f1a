"""The progress bar where no terminal is."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from rewardlab.reporting.progress import bar, log_line


def test_a_notebook_gets_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """rich would add an output to the cell for every refresh, with a warning where ipywidgets is missing."""
    shown: list[object] = []
    display = ModuleType("IPython.display")
    display.display = lambda *things, **more: shown.extend(things)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    with bar("pairs", 3) as advance:
        for _ in range(3):
            advance()
    assert shown == []
    assert "3/3" in capsys.readouterr().err


def test_text_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """No picture for :x:, no markup for brackets."""
    log_line("a :x: b [bold]c[/]")
    assert capsys.readouterr().err == "a :x: b [bold]c[/]\n"
