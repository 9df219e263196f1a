"""What scripts that are run by hand share: errors as sentences, and numbers that are positive. No heavy import."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from rich.console import Console
from rich.markup import escape

from rewardlab.cli.exit_codes import exit_code_of
from rewardlab.errors import RewardlabError


def run_script(main: Callable[[], object]) -> None:
    """Run ``main``; an error that this package raises on purpose is one sentence, and the exit status of `rewardlab`."""
    try:
        main()
    except RewardlabError as error:
        Console(stderr=True, soft_wrap=True, emoji=False).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        raise SystemExit(exit_code_of(error)) from error


def positive(text: str) -> int:
    """Return a number from 1 on, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1 on")
    return int(text)
