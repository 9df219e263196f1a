"""A command line run within this process, as a shell would see it: seconds of imports are paid once."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
TERMINAL = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}


def run_main(main: Callable[[], None], *arguments: object, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Call ``main`` in ``folder`` with ``arguments`` as those of its program; what it raises besides SystemExit is a traceback
    and status 1."""
    out, err, status, before = io.StringIO(), io.StringIO(), 0, os.getcwd()
    command = ["program", *map(str, arguments)]
    os.chdir(folder)
    try:
        with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "argv", command), patch.dict(os.environ, TERMINAL):
            try:
                main()
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:
                status = 1
                traceback.print_exc()
    finally:
        os.chdir(before)
    return subprocess.CompletedProcess(command, status, out.getvalue(), err.getvalue())


def run_module(module: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a module in a process of its own."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **TERMINAL}, cwd=ROOT)
