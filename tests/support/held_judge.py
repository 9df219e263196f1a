"""A judge that answers when it is let, loaded by processes that should not wait for torch; and a server of it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx

from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import Message
from tests.support.scripted_judge import handler
from tests.support.servers import free_port


def held_sampler(folder: Path) -> ScriptedSampler:
    """Return a sampler of the better response. It is opened when there is no file ``starts`` in the folder, and answers while
    there is no ``answers``."""
    _wait(folder / "starts")
    return ScriptedSampler(partial(_answer, folder / "answers"), name="held")


def _answer(hold: Path, prompt: tuple[Message, ...], draw: int) -> str:
    _wait(hold)
    answer = handler(prompt, draw)
    assert isinstance(answer, str)
    return answer


def _wait(hold: Path) -> None:
    while hold.exists():
        time.sleep(0.01)


@contextmanager
def held_server(folder: Path, *, notice_s: float, drain_s: float) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve a held judge, whose uploads are below ``folder``, in a process; yield its address when it is ready."""
    port = free_port()
    arguments = [str(folder), str(port), str(notice_s), str(drain_s)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.held_judge", *arguments], stderr=subprocess.PIPE, text=True
    )
    try:
        url = f"http://127.0.0.1:{port}"
        while not _is_ready(url):
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.02)
        yield url, process
    finally:
        process.kill()
        process.communicate()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready").status_code == 200
    except httpx.TransportError:
        return False


def main(folder: Path, port: int, notice_s: float, drain_s: float) -> None:
    from rewardlab.serving.app import create_app
    from rewardlab.serving.limits import Limits
    from rewardlab.serving.media import Media
    from rewardlab.serving.server import run_server
    from rewardlab.serving.service import GroupRules, ServerOptions
    from rewardlab.serving.uploads import UploadStore

    judge = GenerativeJudge(held_sampler(folder), load_template("plain"))
    media, limits = Media(uploads=UploadStore(folder / "uploads")), Limits(notice=notice_s, drain=drain_s)
    app = create_app(judge, ServerOptions(rules=GroupRules(group_size=3), media=media, limits=limits))
    run_server(app, host="127.0.0.1", port=port)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
