"""A server whose judge a test replaces while it runs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from rewardlab.judging.judge import GenerativeJudge
from rewardlab.serving.app import create_app
from rewardlab.serving.judge_versions import JudgeVersion
from rewardlab.serving.service import ServerOptions


def replace(app: Any, judge: GenerativeJudge) -> None:
    """Replace the judge within the server's loop."""
    queue, done = app.state.service.queue, threading.Event()
    app.state.loop.call_soon_threadsafe(lambda: (queue.replace_version(JudgeVersion(judge)), done.set()))
    assert done.wait(10)


def served(judge: GenerativeJudge, **options: Any) -> Any:
    """Return an application that tells its loop."""
    app = create_app(judge, ServerOptions(**options))
    begin = app.state.service.queue.start

    def start() -> None:
        app.state.loop = asyncio.get_running_loop()
        begin()

    app.state.service.queue.start = start
    return app
