"""A judge behind an OpenAI-compatible address that looks: ``python eval/newcomers/server.py PORT ASKED.jsonl --style boxed``.

It decodes the picture of every request, reads the scene off it and names the response that is true of it; of a fifth of the
requests, by their content, the other one. Without a picture, or with one that shows nothing, it guesses. Each answer is
written down, with a name of the picture: what it says there is the truth that a report of it is compared with. Every request
is answered in one style, whatever it asks for. It can refuse a wrong key or model name or a field, and die after some answers.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import signal
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2])]

from eval.newcomers.eyes import name_of, pixels_of, right_place, scene_of
from rewardlab.data.images import from_data_url

MODEL, KEY = "eyes", "sk-newcomer"
ERRS = 0.2  # of the requests

_WHY = (
    "Let me look at the picture first. Response 1, or A, says one thing and Response 2, or B, another. "
    "What I see agrees with one of them only."
)
STYLES = {
    "think_answer": "<think>{why}</think><answer>{digit}</answer>",
    "double_brackets": "{why}\n\n[[{letter}]]",
    "prose": "{why}\n\nI think Response {letter} is better, for it says what is in the picture.",
    "winner": "{why}\n\n**Winner: Response {digit}**",
    "json": '```json\n{{"reasoning": "{why}", "better_response": "{letter}"}}\n```',
    "boxed": "{why}\n\n$\\boxed{{{letter}}}$",
    "overall": "1. {why}\n2. Both are short.\n\nOverall Judgment: Answer {digit} is better.",
    "letter": "{why}\n\n**{letter}**",
}
_PLACES = [re.compile(rf"(?:Response|Answer) (?:{of})\]?:\s*(.+)") for of in ("1|A", "2|B")]
_QUESTION = re.compile(r"Question\]?:\s*(.+)")


@dataclass
class Judge:
    """What the server is like. ``refuses`` is one of 401 (a wrong key), 404 (a wrong model), 400 (without an effort of
    reasoning), "newer" (400 for the older names of fields), or ""; ``dies_after`` counts answers, 0 is never."""

    asked: Path
    style: str = "think_answer"
    refuses: str = ""
    dies_after: int = 0
    answers: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def refusal(self, body: dict[str, Any], key: str) -> tuple[int, str] | None:
        """Return status and sentence of a request that is refused."""
        model = body.get("model")
        if self.refuses == "401" and key != f"Bearer {KEY}":
            return 401, "Incorrect API key provided. You can find your API key at https://example.com/keys."
        if self.refuses == "404" and model != MODEL:
            return 404, f"The model `{model}` does not exist or you do not have access to it. This server has `{MODEL}`."
        if self.refuses == "400" and "reasoning_effort" not in body:
            return 400, "This model needs the parameter 'reasoning_effort': 'low', 'medium' or 'high'."
        if self.refuses == "newer" and "max_tokens" in body:
            return (
                400,
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
            )
        if self.refuses == "newer" and body.get("temperature", 1) != 1:
            return (
                400,
                "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is supported.",
            )
        return None

    def answer(self, body: dict[str, Any]) -> str:
        """Return the judgment of a chat and write it down. Raise ValueError where it is no question about two responses."""
        parts = [part for message in body["messages"] for part in _parts(message["content"])]
        text = "\n".join(part["text"] for part in parts if part["type"] == "text")
        urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
        question, places = _QUESTION.search(text), [pattern.search(text) for pattern in _PLACES]
        if question is None or None in places:
            raise ValueError("expected a question and two responses")
        shown = (places[0][1].strip(), places[1][1].strip())
        picture = pixels_of(from_data_url(urls[0])) if urls else None
        true_of = None if picture is None else right_place(question[1].strip(), shown, scene_of(picture))
        name = "" if picture is None else name_of(picture)
        if true_of is None:  # nothing to be seen: a guess that does not depend on the order
            named = int(_share(question[1], *sorted(shown)) < 0.5) ^ (shown[0] > shown[1])
        else:
            named = true_of ^ (_share(name, question[1], *sorted(shown)) < ERRS)
        row = {"picture": name, "sees": true_of is not None, "question": question[1].strip(), "shown": shown, "named": named}
        with self.lock, self.asked.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        return STYLES[self.style].format(why=_WHY, digit=1 + named, letter="AB"[named])

    def count(self) -> None:
        """Count an answer that was sent, and end as by SIGKILL after the last."""
        with self.lock:
            self.answers += 1
            if self.dies_after and self.answers >= self.dies_after:
                os.kill(os.getpid(), signal.SIGKILL)


def _parts(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _share(*texts: str) -> float:
    """Return a number in [0, 1) that the texts decide."""
    return int(hashlib.sha256("\0".join(texts).encode()).hexdigest()[:8], 16) / 16**8


def handler_of(judge: Judge) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def send(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # of a client that has given up
                self.wfile.write(data)

        def do_GET(self) -> None:
            self.send(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if refusal := judge.refusal(body, self.headers.get("Authorization", "")):
                self.send(refusal[0], {"error": {"message": refusal[1], "type": "invalid_request_error"}})
                return
            try:
                text = judge.answer(body)
            except (ValueError, KeyError, TypeError) as error:
                self.send(400, {"error": {"message": f"not understood: {error}"}})
                return
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            usage = {"prompt_tokens": 300, "completion_tokens": len(text) // 4, "total_tokens": 300 + len(text) // 4}
            answer = {"id": "x", "object": "chat.completion", "created": 0, "model": MODEL, "choices": [choice], "usage": usage}
            self.send(200, answer)
            judge.count()

    return Handler


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # connections that come at once

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that is gone."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("asked", type=Path, help="JSON lines to append what was answered to")
    parser.add_argument("--style", choices=STYLES, default="think_answer")
    parser.add_argument("--refuses", choices=("", "401", "404", "400", "newer"), default="")
    parser.add_argument("--dies-after", type=int, default=0)
    options = parser.parse_args()
    judge = Judge(options.asked, options.style, options.refuses, options.dies_after)
    Server(("127.0.0.1", options.port), handler_of(judge)).serve_forever()


if __name__ == "__main__":
    main()
