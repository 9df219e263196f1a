"""What scripts that are run by hand share: errors as sentences, numbers that are positive, folders of one study. No heavy
import."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from rewardlab.cli.exit_codes import exit_code_of
from rewardlab.data.files import write_atomic
from rewardlab.errors import ConfigError, RewardlabError


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


def keep_settings(out: Path, facts: dict[str, Any]) -> None:
    """Write what all trials of a study share into its folder. Raise ConfigError where it holds one with other settings, or with
    none that are known."""
    path, text = out / "settings.json", json.dumps(facts, indent=1) + "\n"
    is_other = path.read_text(encoding="utf-8") != text if path.exists() else out.exists() and any(out.iterdir())
    if is_other:
        raise ConfigError(f"{out}: holds a study with other settings ({path}); choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text)
