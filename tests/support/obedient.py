"""A sampler that does to its process what its prompt says; loaded by children, which should not wait for torch."""

from __future__ import annotations

import os
import signal
import time

from rewardlab.errors import MediaError
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import Message


def obeys(prompt: tuple[Message, ...], draw: int) -> str:
    """Does to its process what the prompt says."""
    match prompt[0].text:
        case "hang":
            time.sleep(60)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "refuse":
            raise MediaError("image 0: not a readable image")
        case "break":
            raise RuntimeError("out of memory")
    return f"{prompt[0].text}, by {os.getpid()}"


def obedient() -> ScriptedSampler:
    return ScriptedSampler(obeys, name="obedient")


def unwilling() -> ScriptedSampler:
    raise MediaError("no such model")
