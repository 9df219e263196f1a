"""Exit statuses of `rewardlab`: what a shell script or a scheduler can rely on."""

from __future__ import annotations

from enum import IntEnum

from rewardlab.errors import EndpointError, HealthError, RewardlabError


class ExitCode(IntEnum):
    """The statuses; :data:`EXIT_CODES` has their sentences."""

    OK = 0
    FINDING = 1
    INPUT = 2
    ENDPOINT = 3
    HEALTH = 4
    FAULT = 70
    INTERRUPTED = 130
    TERMINATED = 143


EXIT_CODES = {
    ExitCode.OK: "Done, and nothing is wrong.",
    ExitCode.FINDING: "The command did its work, and the result is not good: a check failed, a row is bad, no vote is valid.",
    ExitCode.INPUT: "Something given cannot be used: an option, a config, a file, a folder. The message has the cure.",
    ExitCode.ENDPOINT: "A remote model failed. What is done is kept; the same command goes on.",
    ExitCode.HEALTH: "The watchdog ended a training run, or one that got to its end learnt nothing.",
    ExitCode.FAULT: "A fault of rewardlab or of a library: the traceback says where.",
    ExitCode.INTERRUPTED: "Stopped by Ctrl-C (SIGINT).",
    ExitCode.TERMINATED: "Stopped by SIGTERM.",
}


def exit_code_of(error: RewardlabError) -> ExitCode:
    """Return the status that a command ends with because of ``error``."""
    if isinstance(error, EndpointError):
        return ExitCode.ENDPOINT
    return ExitCode.HEALTH if isinstance(error, HealthError) else ExitCode.INPUT
