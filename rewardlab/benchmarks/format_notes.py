"""What a report says of answers that were not read, and could be."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rewardlab.benchmarks.passes import AnyJudge
from rewardlab.benchmarks.replay import Replay
from rewardlab.benchmarks.run_files import VOTES
from rewardlab.judging.panel import PanelJudge
from rewardlab.types import Judgment
from rewardlab.verdicts.other_formats import other_format, unread_texts


def format_note(judge: AnyJudge, judgments: Sequence[Judgment], out: Path) -> str:
    """Return a sentence where another format reads many of the answers without a verdict, with the flag that does; else ""."""
    other = other_format(unread_texts([vote for judgment in judgments for vote in judgment.votes]))
    if other is None or isinstance(judge, PanelJudge):  # votes of several judges are no replay
        return ""
    if isinstance(judge, Replay):
        return other.sentence(f"--template {other.name} reads them")
    replay = shlex.quote(f"replay:{out / VOTES}")
    return other.sentence(f"--judge {replay} --template {other.name} (and another --out) reads them without asking again")
