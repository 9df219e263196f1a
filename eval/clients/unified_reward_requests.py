"""UnifiedReward's own request code: the vllm_request.py that its inference and benchmark scripts share, and the older one."""

from __future__ import annotations

import importlib
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from calls import ANSWERS, IMAGE, KEY, SEEN_QUESTION, URL, call

ADDRESS = URL.replace("://", f"://x:{KEY}@")
PAIR = f"{SEEN_QUESTION}\nResponse 1: {ANSWERS[0]}\nResponse 2: {ANSWERS[1]}"
VERDICT = "<think>by number</think><answer>2</answer>"
shared: Any = importlib.import_module("vllm_qwen.vllm_request")
sys.path.append(str(Path(shared.__file__).parents[1] / "UnifiedReward-Think" / "vllm_qwen"))
older: Any = importlib.import_module("vllm_request")


def judged(client: Any, images: list[str], number: int = 1, **options: Any) -> list[str]:
    """Return the answers to pairs with these images. Raise RuntimeError for one that failed."""
    items = [{"problem": PAIR, "images": images} for _ in range(number)]
    with tempfile.TemporaryDirectory() as folder:
        rows = client.evaluate_batch(items, ADDRESS, output_file=f"{folder}/out.json", **{"max_retries": 1, **options})
    if failed := [row["error"] for row in rows if not row["success"]]:
        raise RuntimeError(failed[0])
    return [row["model_output"] for row in rows]


def calls(label: str, client: Any, path: str) -> None:
    encoded = IMAGE.partition(",")[2]  # a PNG, which its requests call a JPEG
    call(f"{label}: evaluate_batch, files", lambda: judged(client, [path] * 2), [VERDICT])
    call(f"{label}: evaluate_batch, encoded images", lambda: judged(client, [encoded] * 2), [VERDICT])
    call(f"{label}: evaluate_batch, 32 pairs", lambda: judged(client, [path], number=32), [VERDICT] * 32)


with tempfile.TemporaryDirectory() as name:
    file = Path(name) / "image.png"
    file.write_bytes(urllib.request.urlopen(IMAGE).read())
    calls("vllm_request", shared, str(file))
    calls("UnifiedReward-Think's", older, str(file))
address = ["http://127.0.0.1:9/image.png"]
call("vllm_request: evaluate_batch, an address", lambda: judged(shared, address), refused="422 Client Error")
