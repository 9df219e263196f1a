"""The progress bar where no terminal is."""

from __future__ import annotations

import io
import sys
from types import ModuleType

import pytest
from rich.console import Console

from rewardlab.reporting import progress
from rewardlab.reporting.progress import bar, log_line, progress_line


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
    monkeypatch.setenv("FORCE_COLOR", "1")  # as ipykernel does
    with bar("more pairs", 3) as advance:
        advance()
    assert shown == []
    text = capsys.readouterr().err
    assert "\x1b" not in text
    assert "pairs: 3 of 3" in text


def test_text_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """No picture for :x:, no markup for brackets."""
    log_line("a :x: b [bold]c[/]")
    assert capsys.readouterr().err == "a :x: b [bold]c[/]\n"


def test_a_file_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A bar in the log of a batch job would be seen when the job is done."""
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    with bar("votes", 1200) as advance:
        advance(1000, note="71.0 % of votes right")
        advance(100)
        assert "votes: 1,100 of 1,200, 0:00:00 elapsed, 0:00:00 left, 71.0 % of votes right\n" in capsys.readouterr().err
    assert capsys.readouterr().err.count("\n") == 1  # the last state, and no second bar


def test_a_narrow_terminal_keeps_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar goes first, then the note; how many there are and how long it takes yet stay whole."""
    stream = io.StringIO()
    monkeypatch.setattr(progress, "_console", lambda: Console(file=stream, width=60, force_terminal=True, color_system=None))
    with progress._drawn_bar("bench: votes", 1200) as advance:
        advance(720, note="100.0 % of votes right, 3 invalid, 1,204,120 tokens")
    assert " 720/1200 " in stream.getvalue()
    assert "-:--:--" in stream.getvalue() or "0:00:" in stream.getvalue()


def test_the_time_left_is_of_what_this_run_did() -> None:
    assert progress_line("a", 900, 1000, 60.0, 300, "") == "a: 900 of 1,000, 0:01:00 elapsed, 0:00:20 left"
    assert progress_line("a", 900, 1000, 60.0, 0, "b") == "a: 900 of 1,000, 0:01:00 elapsed, b"
    assert progress_line("a", 9, None, 3700.0, 9, "") == "a: 9, 1:01:40 elapsed"
