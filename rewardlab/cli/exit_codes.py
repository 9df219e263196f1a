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
    ExitCode.FINDING: "The command ran, but the result is negative: a check failed, a row is bad, or no vote is valid.",
    ExitCode.INPUT: "An input cannot be used: an option, a config, a file or a folder. The message says how to fix it.",
    ExitCode.ENDPOINT: "A remote model failed. Finished work is kept; the same command resumes.",
    ExitCode.HEALTH: "The watchdog ended a training run, or a finished run learnt nothing.",
    ExitCode.FAULT: "A bug in rewardlab or in a library: see the traceback.",
    ExitCode.INTERRUPTED: "Stopped by Ctrl-C (SIGINT).",
    ExitCode.TERMINATED: "Stopped by SIGTERM.",
}


def exit_code_of(error: RewardlabError) -> ExitCode:
    """Return the status that a command ends with because of ``error``."""
    if isinstance(error, EndpointError):
        return ExitCode.ENDPOINT
    return ExitCode.HEALTH if isinstance(error, HealthError) else ExitCode.INPUT
