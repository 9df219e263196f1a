"""Judges and applications of a test, and clients that call an application in this process, without a socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI
from starlette.testclient import TestClient

from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.service import ServerOptions
from rewardlab.types import Completion, Message
from tests.support.scripted_judge import handler

Answer = Callable[[tuple[Message, ...], int], str | Completion]


def judge_of(answer: Answer = handler, **options: Any) -> GenerativeJudge:
    """Return a judge that says what ``answer`` returns."""
    return GenerativeJudge(ScriptedSampler(answer), load_template("plain"), **options)


def app_of(answer: Answer = handler, **options: Any) -> FastAPI:
    """Return the application around :func:`judge_of`, with ``options`` of the server."""
    return create_app(judge_of(answer), ServerOptions(**options))


@contextmanager
def in_process(app: Any, key: str = "") -> Iterator[TestClient]:
    """Start an application, and yield a client of it that sends ``key``."""
    headers = {"Authorization": f"Bearer {key}"} if key else None
    with TestClient(app, "http://localhost", raise_server_exceptions=False, headers=headers) as client:
        yield client
