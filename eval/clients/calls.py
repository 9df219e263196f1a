"""Shared code of the scripts in this folder: each calls a server with one foreign client and prints a line of JSON per call.

They run in environments of their own, which lack this project: only the standard library is imported here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

URL, KEY, KEYLESS_URL = os.environ["CLIENTS_URL"], os.environ["CLIENTS_KEY"], os.environ["CLIENTS_KEYLESS_URL"]
IMAGE, VIDEO = os.environ["CLIENTS_IMAGE"], os.environ["CLIENTS_VIDEO"]
URLS, LONE_URLS = os.environ["CLIENTS_URLS"].split(","), os.environ["CLIENTS_LONE_URLS"].split(",")
QUESTION, SEEN_QUESTION = "Which number is greater?", "Do you see which number is greater?"
ANSWERS = ["I say 1.", "I say 3."]
CHATML = "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def call(name: str, action: Callable[[], Any], expected: Any = None, *, refused: str = "") -> None:
    """Print the outcome of a call: it worked if it returned ``expected`` (None: anything), and was refused if it failed with a
    text that contains ``refused``."""
    try:
        value = action()
        good = not refused and (expected is None or value == expected)
        print_line(name, "worked" if good else "wrong", "" if good else f"got {value!r}, expected {refused or expected!r}")
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {getattr(error, 'body', None) or error}".split())
        print_line(name, "refused" if refused and refused in text else "wrong", text)


def print_line(name: str, outcome: str, detail: str) -> None:
    print(json.dumps({"call": name, "outcome": outcome, "detail": detail[:600]}), flush=True)


def parts(question: str) -> list[dict[str, Any]]:
    """Return the content of a user's message with the image."""
    return [{"type": "text", "text": question}, {"type": "image_url", "image_url": {"url": IMAGE}}]
