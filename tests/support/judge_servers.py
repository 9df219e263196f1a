"""Real servers of scripted judges, each with a character of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.service import ServerOptions
from rewardlab.types import Choice, Completion, FinishReason, Message
from rewardlab.verdicts.parse import format_verdict
from tests.support.scripted_judge import handler, quality
from tests.support.servers import running

Answer = Callable[[tuple[Message, ...], int], str | Completion]
PLAIN = load_template("plain")


def first(prompt: tuple[Message, ...], draw: int) -> str:
    """Name the response shown first, whatever it is."""
    return format_verdict(Choice.FIRST, "the first one")


def smaller(prompt: tuple[Message, ...], draw: int) -> str:
    """Name the response with the smaller number."""
    one, two = (line for line in prompt[0].text.split("\n") if line.startswith("Response "))
    return format_verdict(Choice.FIRST if quality(one[12:]) <= quality(two[12:]) else Choice.SECOND, "less")


def mute(prompt: tuple[Message, ...], draw: int) -> str:
    """Give no verdict."""
    return "I cannot say"


def down(prompt: tuple[Message, ...], draw: int) -> Completion:
    """Fail for want of an engine."""
    return Completion("", FinishReason.ERROR, error="HTTP 400: the model is too small for this")


ANSWERS: dict[str, Answer] = {"greater": handler, "first": first, "smaller": smaller, "mute": mute, "down": down}


@contextmanager
def judge_servers(*names: str, **options: Any) -> Iterator[list[str]]:
    """Serve judges of :data:`ANSWERS`; yields their addresses."""
    with ExitStack() as stack:
        judges = [GenerativeJudge(ScriptedSampler(ANSWERS[name], name), PLAIN) for name in names]
        yield [stack.enter_context(running(create_app(judge, ServerOptions(**options)))) for judge in judges]
