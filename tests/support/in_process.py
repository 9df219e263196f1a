"""The commands of a pipeline in this process: the real ones, without the seconds in which a process starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rewardlab.cli import main
from tests.support.shell import run_main


@dataclass
class Ended:
    """A command that has run."""

    returncode: int

    def poll(self) -> int:
        return self.returncode

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int:
        return self.returncode


@dataclass
class InProcess:
    """Starts commands here; ``lines`` are their words. Before the command of index ``stop_before`` the
    pipeline ends, as by Ctrl-C."""

    stop_before: int = -1
    lines: list[list[str]] = field(default_factory=list)

    def __call__(self, words: Sequence[str], log: Path, env: Mapping[str, str], folder: Path | None) -> Ended:
        if len(self.lines) == self.stop_before:
            raise KeyboardInterrupt
        self.lines.append(list(words[3:]))
        done = run_main(main, *words[3:], folder=folder or Path.cwd())
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(done.stdout + done.stderr)
        return Ended(done.returncode)
