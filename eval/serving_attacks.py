"""What does an endpoint answer to requests that are too large, too deep, too slow or unreadable, and what do they cost others?

``python -m eval.serving_attacks``; the judge is the package's own. The attacks come through nginx with
``configs/launch/nginx.conf``, in which only port, name and certificate differ; ``--direct`` leaves nginx out. During each
attack ``/health`` and ``/ready`` are requested ten times a second on new connections, at the endpoint itself and at nginx, and
the memory of server and engine is added up. Writes ``eval/results/serving_attacks.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import random
import select
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import av
import httpx
import psutil
from PIL import Image

from eval.endpoints import Watch, behind_nginx, cpu_seconds, endpoint, over_http
from rewardlab.data.images import encode_png, to_data_url
from rewardlab.models.checkpoints import commit
from rewardlab.types import PreferencePair

RESULTS = Path(__file__).parent / "results" / "serving_attacks.json"
PAIR: dict[str, Any] = {"question": "Which?", "responses": ["it is red", "it is blue"]}
USER = {"role": "user", "content": "Which?"}
CHATML = "<|im_start|>user\nWhich?<|im_end|>\n<|im_start|>assistant\n"
CHAT = "/v1/chat/completions"


class Target(NamedTuple):
    url: str  # that is attacked
    process: psutil.Process
    log: Path
    watch: Watch


@contextmanager
def target(*options: str, direct: bool) -> Iterator[Target]:
    """Serve the package's judge behind nginx, or ``direct``, with the keys anna and ben if an option names their file."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        Path(folder, "keys").write_text("anna name=anna\nben name=ben\n")
        settings = [*(option.format(folder=folder) for option in options), "max_tokens=64"]
        url, process = stack.enter_context(endpoint("demo", *settings, log=Path(folder, "log")))
        urls = {"endpoint": url} if direct else {"endpoint": url, "nginx": stack.enter_context(behind_nginx(url))}
        assert [post(one, "/v1/judge", PAIR) for one in urls.values()] == ["200"] * len(urls)
        yield Target([*urls.values()][-1], process, Path(folder, "log"), Watch(urls, process))


def post(url: str, path: str, body: Any, *, key: str = "anna", timeout: float = 600, forwarded: str = "") -> str:
    """Return the status of an answer, or the name of an error."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}", "X-Forwarded-For": forwarded}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        answer = httpx.post(f"{url}{path}", content=data, headers=headers, timeout=timeout, verify=False)
    except httpx.HTTPError as error:
        return type(error).__name__
    return "503 unjudged" if answer.status_code == 503 and '"unjudged"' in answer.text else str(answer.status_code)


def counts(statuses: Iterable[str] | dict[str, int]) -> str:
    return ", ".join(f"{number:,} x {status}" for status, number in sorted(Counter(statuses).items()))


def at_once(actions: Sequence[Callable[[], str]]) -> str:
    with ThreadPoolExecutor(32) as threads:
        return counts(threads.map(lambda action: action(), actions))


def beside(url: str, actions: Sequence[Callable[[], str]], body: Any) -> str:
    """Judge a pair of the key ben a little after the actions have begun."""
    with ThreadPoolExecutor(1) as thread:
        others = thread.submit(at_once, actions)
        time.sleep(0.5)
        return f"{timed(url, body, key='ben')} beside {others.result()}"


def timed(url: str, body: Any, **options: Any) -> str:
    begun, status = time.monotonic(), post(url, "/v1/judge", body, **options)
    return f"{status} in {time.monotonic() - begun:.1f} s"


def png(mode: str, number: int, side: int = 7000) -> str:
    return to_data_url(encode_png(Image.new(mode, (side, side), (number, 9, 9, 99)[: len(mode)])))


def film(side: int, num_frames: int) -> str:
    """Return a film of equal frames, which is small whatever their size."""
    buffer, frame = io.BytesIO(), av.VideoFrame.from_image(Image.new("RGB", (side, side)))
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = side, side, "yuv420p"
        for frame.pts in range(num_frames):
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return "data:video/mp4;base64," + base64.b64encode(buffer.getvalue()).decode()


def connect(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=30)


def connections(url: str, start: bytes, seconds: int, number: int = 60, each_second: bytes = b"") -> str:
    """Open connections that send so much, and some more each second."""
    opened, num_open = [connect(url) for _ in range(number)], 0
    for n in range(seconds):
        for connection in opened:
            with suppress(OSError):
                connection.sendall(each_second if n else start)
        time.sleep(1)
    for connection in opened:
        connection.setblocking(False)
        with suppress(ConnectionError):
            try:
                while connection.recv(65536):
                    pass
            except BlockingIOError:
                num_open += 1
        connection.close()
    return f"{num_open} of {number} open after {seconds} s"


def endless(url: str, start: bytes, piece: bytes, num_bytes: int) -> str:
    """Send a start and then pieces, up to a number of bytes, until there is an answer or the other side closes."""
    num_sent, outcome = 0, "closed"
    with suppress(ConnectionError), connect(url) as connection:
        connection.sendall(start)
        while num_sent < num_bytes and not select.select([connection], [], [], 0)[0]:
            connection.sendall(piece)
            num_sent += len(piece)
        try:
            outcome = connection.recv(12)[9:].decode() or "closed"
        except TimeoutError:
            outcome = "open"
    return f"{outcome} after {num_sent / 1e6:.1f} MB"


def forged_address(on: Target) -> str:
    status = post(on.url, "/v1/judge", PAIR, forwarded="6.6.6.6 key=ben path=/admin status=200")
    time.sleep(0.5)
    return f"{status}; {on.log.read_text().count('6.6.6.6')} times in the log"


def wrong_keys(url: str) -> str:
    statuses = counts(post(url, "/v1/judge", PAIR, key=f"wrong{n}") for n in range(200))
    return f"{statuses}, then {timed(url, PAIR)}"


JUNK = (b"\xed\xa0\x80", b"\\ud800", b"\\uDFFF", b"\x00", b"[" * 70, b"{" * 9, b"1e999", b"NaN", b"\xff\xfe", b'"', b"9" * 400,
        b"null", b"true", b"-", b"\xc0\xaf", b"\\u", b"\xf4\x90\x80\x80", b" " * 50)  # fmt: skip
SEEDS = {"/v1/judge": PAIR, "/v1/rewards": PAIR | {"votes": 1}, "/v1/judge/batch": [PAIR],
         "/rerank": {"query": "q", "documents": ["a", "b"]}, "/score": {"text_1": "q", "text_2": ["a", "b"]},
         CHAT: {"messages": [USER], "max_tokens": 2}, "/v1/responses": {"input": "q", "max_output_tokens": 2},
         "/classify": {"input": [CHATML + "a", CHATML + "b"]}, "/v1/embeddings": {"input": [CHATML + "a"]},
         "/get_reward": {"query": [CHATML + "a"], "labels": ['{"anchor": "b"}']},
         "/slime": {"prompt": "q", "response": "a", "label": {"anchor": "b"}},
         "/verify": {"responses_create_params": {"input": "q"}, "response": {"output": []}},
         "/compare": {"conversation_history": [USER], "response_objs": [{"output": []}]}}  # fmt: skip


def mutant(rng: random.Random) -> tuple[str, bytes]:
    path = rng.choice(list(SEEDS))
    text = json.dumps(SEEDS[rng.choice(list(SEEDS))] if rng.random() < 0.1 else SEEDS[path])
    body = bytearray(text.encode(rng.choice(["utf-8"] * 6 + ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])))
    for _ in range(rng.randint(1, 3)):
        position = rng.randrange(len(body))
        body[position : position + rng.choice((0, 0, 1, 5, 30))] = rng.choice(JUNK)
    return path, bytes(body) * rng.choice((1, 1, 1, 1, 2))


def poison(url: str, number: int) -> str:
    """Send a request that no model can read, of one kind after the other."""
    kinds: list[tuple[str, Any]] = [
        ("/v1/judge", b'{"question":"\xed\xa0\x80","responses":["a","b"]}'),
        ("/v1/judge", {**PAIR, "question": f"{number} " + "a b " * 20_000}),
        ("/v1/judge", {**PAIR, "question": f"{number} " + "a " * 8172}),  # its texts fit, and the template makes it too long
        (CHAT, {"messages": [USER], "top_p": 1e-300, "seed": number}),
    ]
    return post(url, *kinds[number % len(kinds)])


def poisoned(on: Target) -> str:
    """Return how many of 64 clients' pairs are judged beside poison, of those judged without it: per second and per CPU second
    of server and engine, in turns and in both orders, since the machine's speed changes."""
    ratios, statuses = [], list[str]()

    def spoil(done: threading.Event) -> None:
        while not done.wait(0.5):
            statuses.append(poison(on.url, len(statuses)))

    def costs(name: str, poisons: bool) -> tuple[float, float]:
        pairs = [PreferencePair(name, f"{name} {poisons} {n}: which?", ("it is red", "it is blue"), None) for n in range(400)]
        done, begun, begun_cpu = threading.Event(), time.monotonic(), cpu_seconds(on.process)
        if poisons:
            threading.Thread(target=spoil, args=(done,), daemon=True).start()
        asyncio.run(over_http(on.url, pairs, num_votes=1, concurrency=64, seed=0))  # raises if a pair gets no answer
        done.set()
        return time.monotonic() - begun, cpu_seconds(on.process) - begun_cpu

    for turn in range(8):
        both = {poisons: costs(str(turn), poisons) for poisons in ((False, True), (True, False))[turn % 2]}
        ratios.append([clean / other for clean, other in zip(both[False], both[True], strict=True)])
    wall, cpu = (f"{statistics.median(of):.2f} ({min(of):.2f} to {max(of):.2f})" for of in zip(*ratios, strict=True))
    return f"{counts(statuses)}; {wall} of the clean rate, {cpu} per CPU second"


GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
HEAD = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: %b\r\nContent-Length: %d\r\n%b"
HALF = HEAD % (b"/v1/judge", b"application/json", 90_000, b"\r\n{")
EXPECT = HEAD % (b"/v1/judge", b"application/json", 90_000, b"Expect: 100-continue\r\n\r\n")
UPLOAD = HEAD % (b"/v1/uploads", b"video/mp4", 99_000_000, b"\r\n")
Attack = tuple[str, str, Callable[[], Any]]  # what is sent, what came of it before, how it is done


def attacks(on: Target) -> Iterator[Attack]:
    """Yield those on an endpoint without keys."""
    send, silent = partial(partial, post, on.url), partial(partial, connections, on.url)
    judge, chat = partial(send, "/v1/judge"), partial(send, CHAT)
    blanks = [PAIR | {"responses": one} for one in (["<" + " " * 30_000, "b"], ["<" + " " * 99_000, "<" + "\n" * 99_000])]
    parts = [{"type": "image_url", "image_url": {"url": png("RGB", 1, 100)}}] * 40
    frames, large_frames = (PAIR | {"videos": [film(*size)]} for size in ((2000, 600), (4000, 60)))
    lone = b'{"query":"q","documents":["a\xed\xa0\x80","b"],"model":"\xed\xa0\x80"}'
    deep = b'{"responses_create_params":{},"response":{},"more":' + b"[" * 300 + b"]" * 300 + b"}"
    texts, batch = [f"{CHATML}{n} {'x' * 40}" for n in range(3000)], [PAIR | {"question": f"{n}?"} for n in range(1024)]
    group = {"question": "Which is best?", "responses": [f"{n} is red" for n in range(128)], "timeout_s": 900}
    rgba, rgb = [judge(PAIR | {"images": [png("RGBA", n)]}) for n in range(8)], [png("RGB", n) for n in range(4)]
    uploads = [partial(endless, on.url, UPLOAD, b"x" * 1_000_000, 98_000_000)] * 12
    header, large = b"X-F: " + b"x" * 60_000 + b"\r\n", {"messages": [USER], "n": 64, "max_tokens": 32768, "temperature": 10}
    long, numbers = judge(PAIR | {"question": "a b " * 25_000}), {"query": "q", "documents": [0] * 249_000}
    rows: list[Attack] = [
        ("nothing (how the machine is)", "", partial(time.sleep, 10)),
        ("two poisonous requests a second beside 64 clients", "0.12 of the clean rate", partial(poisoned, on)),
        ("`<` and 30,000 blanks in a response", "/health after 105.9 s", judge(blanks[0])),
        ("`<` and 99,000 blanks, twice", "over an hour (extrapolated)", judge(blanks[1])),
        ("/classify, 3,000 texts of one prompt", "/health not in 60 s; 4,300 MB", send("/classify", {"input": texts})),
        ("/get_reward, 1,024 of them", "/health after 20.7 s; 1,125 MB", send("/get_reward", {"query": texts[:1024]})),
        ("/v1/judge/batch, 3,000 pairs", '1,976 "overloaded" within a 200', send("/v1/judge/batch", [PAIR] * 3000)),
        ("/v1/judge/batch, 1,024 pairs", "/health after 14.4 s", send("/v1/judge/batch", batch)),
        ("a group of 128", "/health after 7.0 s", send("/v1/rewards", group)),
        ("the same group from the cache", "/health after 10.1 s", send("/v1/rewards", group)),
        ("/rerank, 500 KB of numbers", "/health after 58 s; 1,037 MB", send("/rerank", numbers)),
        ("/v1/judge, 200,000 unknown keys", "/health not in 30 s; 506 MB", judge({f"k{n}": 0 for n in range(200_000)})),
        ("a pair beside 100,000 characters", "503 after 44.8 s", partial(beside, on.url, [long], PAIR | {"question": "?"})),
        ("chat: n 64, max_tokens 32,768, temperature 10", "others 503, /ready 503 for 37 s", chat(large)),
        ("chat with 40 images", "taken", chat({"messages": [{"role": "user", "content": parts}]})),
        ("a 7000x7000 RGBA PNG", "server 1,004 MB", rgba[0]),
        ("eight of them at once", "server 7,188 MB", partial(at_once, rgba)),
        ("four 7000x7000 RGB PNGs in a request", "engine 3,334 MB, busy for 57 s", judge(PAIR | {"images": rgb})),
        ("half a surrogate pair as raw UTF-8", "500; /ready 503 for 5 s", send("/rerank", lone)),
        ("the same in UTF-16", "500", send("/rerank", '{"query":"q","documents":["a\\ud800","b"]}'.encode("utf-16"))),
        ("300 lists inside each other", "500", send("/verify", deep)),
        ("chat: temperature 1e-40", "503; /ready 503 for 5 s", chat({"messages": [USER], "temperature": 1e-40})),
        ("60 connections that send nothing", "open after 92 s", silent(b"", 14)),
        ("60 connections, a header line a second", "new clients reset", silent(GET, 14, each_second=b"X-A: b\r\n")),
        ("60 connections with half a body", "open after 92 s", silent(HALF, 25)),
        ("60 connections, a byte of a body a second", "", silent(HALF, 25, each_second=b" ")),
        ("60 connections: Expect: 100-continue, and silence", "open", silent(EXPECT, 25)),
        ("a header of 104 MB", "taken, 136 MB more", partial(endless, on.url, GET, header, 104_000_000)),
        ("12 uploads that stop at 98 MB", "1,233 MB", partial(at_once, uploads)),
        ("a video of 600 frames of 2000x2000", "4.3 s of a thread", judge(frames)),
        ("60 frames of 4000x4000", "decoded to the end; 776 MB", judge(large_frames)),
    ]
    yield from rows
    on.process.rlimit(psutil.RLIMIT_NOFILE, (256, 256))
    yield "260 connections with half a header, 256 files", "every new client reset", silent(GET[:-9], 14, 260)


def attacks_on_keys(on: Target) -> Iterator[Attack]:
    """Yield those on an endpoint with the keys anna and ben."""
    large = [partial(post, on.url, "/v1/judge", PAIR | {"images": [png("RGBA", n)]}) for n in range(6)]
    small, rng = PAIR | {"images": [png("RGBA", 7, 64)]}, random.Random(0)
    mutants = [partial(post, on.url, *mutant(rng)) for _ in range(20_000)]
    yield "six 7000x7000 PNGs, 64x64 of another key", "64 s (alone 0.06 s)", partial(beside, on.url, large, small)
    yield "a forged X-Forwarded-For", "in the log", partial(forged_address, on)
    yield "200 wrong keys, then a right one", "", partial(wrong_keys, on.url)
    yield "20,000 requests with changed bytes", "", partial(at_once, mutants)


ENDPOINTS = {attacks: [], attacks_on_keys: ["--keys", "{folder}/keys", "--limit", "group_timeout=0.1", "--group-size", "2"]}


def report(rows: list[dict[str, Any]]) -> str:
    commits, tracebacks = sorted({row["commit"][:12] for row in rows}), max(row["tracebacks"] for row in rows)
    lines = [f"# Attacks on an endpoint\n\n`python -m eval.serving_attacks`, commit {', '.join(commits)}. Before: 42e8c34"]
    lines += [f"or 5646b2d0, on machines of the same size. Tracebacks in an endpoint's log: {tracebacks}.\n"]
    lines += ["| attack | before | answer now | `/health`, worst, ms | `/ready` | all memory, MB |\n|---|---|---|---|---|---|"]
    for row in rows:
        health = ", ".join(f"{name} {ms:.0f}" for name, ms in row["health_worst_ms"].items())
        cells = row["attack"], row["before"], row["answer"] or "", health, counts(row["ready"]), f"{row['peak_mb']:,.0f}"
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="words in the name of an attack: the others keep their results")
    parser.add_argument("--direct", action="store_true", help="without nginx")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = {row["attack"]: row for row in json.loads(options.out.read_text())} if options.out.exists() else {}
    for kind, settings in ENDPOINTS.items():
        with target(*settings, direct=options.direct) as on:
            for name, before, action in kind(on):
                if options.only in name:
                    rows[name] = {"attack": name, "before": before, "commit": commit(), **on.watch.during(action)}
                    rows[name]["tracebacks"] = on.log.read_text().count("Traceback")  # since the endpoint began
                    print(json.dumps(rows[name]), flush=True)
                    options.out.write_text(json.dumps([*rows.values()], indent=1) + "\n")
                    options.out.with_suffix(".md").write_text(report([*rows.values()]))


if __name__ == "__main__":
    main()
