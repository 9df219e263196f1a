"""verl-omni's own reward functions that query a chat model. Its package is not initialised: that imports the trainer."""

from __future__ import annotations

import asyncio
import importlib
import os
import random
import sys
import tempfile
import urllib.request
from logging.handlers import BufferingHandler
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from calls import ANSWERS, IMAGE, KEY, KEYLESS_URL, SEEN_QUESTION, URL, VIDEO, call

package = ModuleType("verl_omni")
package.__path__ = [str(Path(folder) / "verl_omni") for folder in sys.path if (Path(folder) / "verl_omni").is_dir()]
sys.modules["verl_omni"] = package
from verl_omni.utils.reward_score import agentic_image_judge_client as judge
from verl_omni.utils.reward_score import genrm_ocr, unified_reward

sys.path.append(str(Path(package.__path__[0]).parent / "examples" / "dpo_trainer" / "qwen3_omni"))
evaluation: Any = importlib.import_module("vlm_as_judge")
ROUTER = URL.replace("http://", f"x:{KEY}@")
PICTURE = torch.full((3, 32, 32), 200, dtype=torch.uint8)
LOG = BufferingHandler(100)
judge.logger.addHandler(LOG)


def score(function: Any, picture: Any, truth: str, **info: Any) -> float:
    return float(asyncio.run(function("data", picture, truth, info, ROUTER))["score"])


def judged(url: str, *, thinks: bool = False) -> list[Any]:
    """Return the scores of a picture of "I say 3." Raise RuntimeError, with what the client logs, if it returns none."""
    os.environ |= {"AGENTIC_VLLM_URL": url, "AGENTIC_JUDGE_ENABLE_THINKING": str(int(thinks))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image.png"
        path.write_bytes(urllib.request.urlopen(IMAGE).read())
        found = judge.call_reflect_vlm(user_request="I say 3.", image_prompt="three", image_path=str(path))
    if found is None:
        raise RuntimeError(LOG.buffer[-1].getMessage())
    return [found["correctness"], found["aesthetics"], found["backend"]]


def compared(modality: str, url: str) -> list[Any]:
    """Return who wins and the scores in its evaluation of a trained policy, whose answer has the greater number."""
    media = {key: [url] if key == f"{modality}s" else [] for _, key in evaluation.MEDIA_KEYS}
    sample = evaluation.EvalSample("data", 0, "uid", modality, SEEN_QUESTION, media, None)
    router, tokens = KEYLESS_URL.removeprefix("http://"), {"max_tokens": 2048, "retry_max_tokens": 4096}
    options = {"model_name": "judge", "temperature": 0.0, "rng": random.Random(0), **tokens}
    result = evaluation.judge_pair(
        sample=sample, reference_text=ANSWERS[0], trained_text=ANSWERS[1], router_address=router, **options
    )
    return [result.winner, result.reference_score, result.trained_score]


points = unified_reward.compute_score_unified_reward
call("unified_reward, an image", lambda: [score(points, PICTURE, f"I say {n}.") for n in (1, 3, 5)], [0, 0.5, 1])
video = PICTURE.expand(4, 3, 32, 32)
call("unified_reward, a video", lambda: score(points, video, "", prompt="I say 3.", frame_interval=2), 0.5)
call("genrm_ocr", lambda: [score(genrm_ocr.compute_score_ocr, PICTURE, text) for text in ("star", "stop")], [1, 0.5])
call("agentic image judge", lambda: judged(KEYLESS_URL), [0.6, 0.6, "vllm"])
call("agentic image judge that thinks", lambda: judged(KEYLESS_URL, thinks=True), refused="400")
call("vlm_as_judge, an image", lambda: compared("image", IMAGE), ["trained", 1, 3])
call("vlm_as_judge, a video", lambda: compared("video", VIDEO), ["trained", 1, 3])
audio = "data:audio/wav;base64,UklGRg=="
call("vlm_as_judge, audio", lambda: compared("audio", audio), refused="audio_url")
