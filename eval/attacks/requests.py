"""Requests that are too large, too deep, too slow or unreadable, each with what it did before."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from eval.attacks.server import CHATML, JSON, PAIR, USER


def post(url: str, path: str, body: Any, timeout: float = 120) -> str:
    """Return the status and the beginning of the sentence of an answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        answer = httpx.post(f"{url}{path}", content=data, headers=JSON, timeout=timeout)
    except httpx.HTTPError as error:
        return type(error).__name__
    return str(answer.status_code)


def several(url: str, path: str, bodies: Sequence[Any]) -> str:
    """Ask all at once; return how often which status came."""
    statuses: list[str] = []
    threads = [threading.Thread(target=lambda body=body: statuses.append(post(url, path, body))) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ", ".join(f"{number} x {status}" for status, number in sorted(Counter(statuses).items()))


def picture(mode: str, number: int, side: int = 7000) -> str:
    buffer = io.BytesIO()
    color = (number, 9, 9, 99)[: len(mode)]
    Image.new(mode, (side, side), color).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def film(side: int, num_frames: int) -> str:
    """Return a data URL of a film of equal frames, which is small whatever their size."""
    import av
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.mp4"
        with av.open(str(path), "w") as container:
            stream = container.add_stream("mpeg4", rate=25)
            stream.width = stream.height = side
            stream.pix_fmt = "yuv420p"
            frame = av.VideoFrame.from_ndarray(np.zeros((side, side, 3), dtype=np.uint8), format="rgb24")
            for n in range(num_frames):
                frame.pts = n
                for packet in stream.encode(frame):
                    container.mux(packet)
            for packet in stream.encode():
                container.mux(packet)
        return "data:video/mp4;base64," + base64.b64encode(path.read_bytes()).decode()


def connections(url: str, number: int, sent: bytes, seconds: float) -> str:
    """Open connections that say so much and no more; return how many are open after so many seconds."""
    port = int(url.rpartition(":")[2])
    opened = []
    for _ in range(number):
        with contextlib.suppress(OSError):
            opened.append(socket.create_connection(("127.0.0.1", port), timeout=5))
            opened[-1].sendall(sent)
    time.sleep(seconds)
    still = 0
    for one in opened:
        one.setblocking(False)
        with contextlib.suppress(ConnectionError):
            try:
                while data := one.recv(65536):
                    pass
            except BlockingIOError:
                still += 1
            del data
        one.close()
    return f"{still} of {number} open after {seconds:g} s"


def endless_header(url: str) -> str:
    sent = 0
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=5) as one:
        one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        while sent < 104_000_000:
            one.sendall(b"X-F: " + b"x" * 60_000 + b"\r\n")
            sent += 60_000
    return f"closed after {sent / 1e6:.1f} MB"


def unfinished_uploads(url: str) -> str:
    head = b"POST /v1/uploads HTTP/1.1\r\nHost: localhost\r\nContent-Type: video/mp4\r\nContent-Length: 99000000\r\n\r\n"

    def send() -> None:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=30) as one,
        ):
            one.sendall(head)
            for _ in range(98):
                one.sendall(b"x" * 1_000_000)
            time.sleep(12)

    threads = [threading.Thread(target=send) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "12 stop at 98 MB"


def hung_up(url: str, body: Any) -> str:
    post(url, "/v1/judge", body, timeout=1)
    time.sleep(3)
    return "hung up after 1 s"


def beside_a_long_one(url: str) -> str:
    """An ordinary request beside a question far beyond the context."""
    long = threading.Thread(target=post, args=(url, "/v1/judge", {**PAIR, "question": "a b " * 25_000}))
    long.start()
    begun = time.monotonic()
    status = post(url, "/v1/judge", {**PAIR, "question": "beside it?"})
    seconds = time.monotonic() - begun
    long.join()
    return f"an ordinary one beside it: {status} in {seconds:.1f} s"


Attack = tuple[str, str, Callable[[str], str]]  # what is sent, what came of it before, how


def attacks() -> list[Attack]:
    blanks = {**PAIR, "responses": ["<" + " " * 30_000 + "x", "b"]}
    long_blanks = {**PAIR, "responses": ["<" + " " * 99_000 + "x", "<" + "\n" * 99_000]}
    big_chat = {"messages": [USER], "n": 64, "max_tokens": 32768, "temperature": 10}
    rgba = [{**PAIR, "images": [picture("RGBA", n)]} for n in range(8)]
    rgb = {**PAIR, "images": [picture("RGB", n) for n in range(4)]}
    many = {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": picture("RGB", 1, 100)}}] * 40}]
    }
    frames, large_frames = film(2000, 600), film(4000, 60)
    half = b"GET /health HTTP/1.1\r\nHost: local"
    half_body = (
        b"POST /v1/judge HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 90000\r\n\r\n{"
    )
    queries = {"query": [CHATML + str(n) for n in range(1024)]}
    deep = b'{"responses_create_params":{},"response":{},"more":' + b"[" * 300 + b"]" * 300 + b"}"
    return [
        ("nothing (how the machine is)", "", lambda url: (time.sleep(10), "")[1]),
        ("`<` and 30,000 blanks in a response", "/health after 105.9 s", lambda url: post(url, "/v1/judge", blanks)),
        ("`<` and 99,000 blanks, twice", "over an hour (extrapolated)", lambda url: post(url, "/v1/judge", long_blanks)),
        (
            "/classify, 3,000 texts of one prompt",
            "/health not in 60 s; 4,300 MB",
            lambda url: post(url, "/classify", {"input": [f"{CHATML}{n} {'x' * 40}" for n in range(3000)]}),
        ),
        (
            "/get_reward, 1,024 texts of one prompt",
            "/health after 20.7 s; 1,125 MB",
            lambda url: post(url, "/get_reward", queries),
        ),
        (
            "/v1/judge/batch, 3,000 pairs",
            '1,976 "overloaded" within a 200',
            lambda url: post(url, "/v1/judge/batch", [PAIR] * 3000),
        ),
        ("a question of 100,000 characters", "an ordinary one beside it: 503 after 44.8 s", beside_a_long_one),
        (
            "chat: n 64, max_tokens 32,768, temperature 10",
            "others 503, /ready 503 for 37 s",
            lambda url: post(url, "/v1/chat/completions", big_chat),
        ),
        ("chat with 40 images", "taken", lambda url: post(url, "/v1/chat/completions", many)),
        ("a 7000x7000 RGBA PNG", "server 1,004 MB", lambda url: several(url, "/v1/judge", rgba[:1])),
        ("eight of them at once", "server 7,188 MB", lambda url: several(url, "/v1/judge", rgba)),
        ("four 7000x7000 RGB PNGs in a request", "engine 3,334 MB, busy for 57 s", lambda url: post(url, "/v1/judge", rgb)),
        (
            "half a surrogate pair as raw UTF-8",
            "500; /ready 503 for 5 s",
            lambda url: post(url, "/rerank", b'{"query":"q","documents":["a\xed\xa0\x80","b"],"model":"\xed\xa0\x80"}'),
        ),
        (
            "the same in UTF-16",
            "500",
            lambda url: post(url, "/rerank", '{"query":"q","documents":["a\\ud800","b"]}'.encode("utf-16")),
        ),
        ("300 lists inside each other", "500", lambda url: post(url, "/verify", deep)),
        (
            "chat: temperature 1e-40",
            "503; /ready 503 for 5 s",
            lambda url: post(url, "/v1/chat/completions", {"messages": [USER], "temperature": 1e-40}),
        ),
        (
            "260 connections with half a header, 256 files",
            "every new client reset",
            lambda url: connections(url, 260, half, 14),
        ),
        ("60 connections that send nothing", "open after 92 s", lambda url: connections(url, 60, b"", 14)),
        ("60 connections with half a body", "open after 92 s", lambda url: connections(url, 60, half_body, 25)),
        ("a header of 104 MB", "taken, 136 MB more", endless_header),
        ("12 uploads that stop at 98 MB", "1,233 MB", unfinished_uploads),
        (
            "a video of 600 frames of 2000x2000",
            "4.3 s of a thread",
            lambda url: post(url, "/v1/judge", {**PAIR, "videos": [frames]}),
        ),
        (
            "60 frames of 4000x4000, hung up on",
            "decoded to the end; 776 MB (6800x6800)",
            lambda url: hung_up(url, {**PAIR, "videos": [large_frames]}),
        ),
    ]
