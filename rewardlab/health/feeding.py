"""Whether pictures come as fast as the cards read them, and what that holds in the host's memory."""

from __future__ import annotations

import io
import math
import time
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image

from rewardlab.data.images import decode_image
from rewardlab.health.memory import GIB, Setup

CARD_FLOPS = 400e12  # a second, that the fastest of today's 80 GB cards reaches in bfloat16: the strictest need
SOURCE_MEGAPIXELS = 1.0  # of a stored picture, before it is reduced to pixels.max
PROCESS_BASE = 3 * GIB  # Python, torch and CUDA's own in one process


@dataclass(frozen=True)
class DecodingRate:
    """Milliseconds of one core to decode a picture of a megapixel."""

    jpeg_ms: float
    png_ms: float


@cache
def measure_decoding() -> DecodingRate:
    """Return this machine's rate: the fastest of three decodings of a picture with edges and a little noise, below a second."""
    y, x = np.mgrid[0:1000, 0:1000]
    shapes = np.stack([(x // 50 * y // 70) % 256, (x + y) % 256, (x * y // 300) % 256], -1)
    noise = np.random.default_rng(0).integers(0, 12, shapes.shape)
    picture = Image.fromarray((shapes + noise).clip(0, 255).astype(np.uint8))
    return DecodingRate(_fastest(picture, "JPEG"), _fastest(picture, "PNG"))


def _fastest(picture: Image.Image, kind: str) -> float:
    buffer = io.BytesIO()
    picture.save(buffer, kind)
    return 1000 * min(_seconds(buffer.getvalue()) for _ in range(3))


def _seconds(data: bytes) -> float:
    start = time.perf_counter()
    decode_image(data).load()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Feeding:
    """What one process reads in a rollout batch (or an optimizer step): ``pictures``, in at least ``seconds`` of arithmetic."""

    pictures: float
    seconds: float

    def workers(self, decode_ms: float) -> int:
        """Return the cores that decode as fast as the card computes, one decoding of each picture."""
        return max(1, math.ceil(self.pictures * decode_ms / 1000 / self.seconds))

    def share(self, decode_ms: float) -> float:
        """Return how much longer a step takes where one core decodes all its pictures before it."""
        return self.pictures * decode_ms / 1000 / self.seconds


def feeding_of(setup: Setup) -> Feeding:
    """Return the pictures of a rollout batch or step on one process, and the seconds that its arithmetic takes at least.

    A token costs 2 operations a weight to read, 4 more to learn from, 2 again with gradient checkpointing; old and reference
    log-probs are one more reading each. Sampling is left out: the need is then a strict one.
    """
    config, method = setup.config, setup.method
    sequences = (method.rollout_batch_size if method else config.batch_size) / setup.launch.processes
    passes = 6.0 + 2.0 * config.gradient_checkpointing
    if method:
        passes = passes * method.iterations + 2.0 + 2.0 * bool(method.kl_coef)
    models = setup.shapes.total + setup.critic
    return Feeding(sequences, sequences * (setup.prompt + setup.answer) * passes * models / CARD_FLOPS)


def host_bytes(setup: Setup) -> dict[str, float]:
    """Return the bytes of host memory that one process needs, by purpose: while weights are read, and for the data after.

    Data are read where they lie; what a process holds are the pictures of two batches, encoded, decoded and as pixels.
    """
    rows = setup.rollouts or setup.config.batch_size / setup.launch.processes
    decoded = 3.0 * SOURCE_MEGAPIXELS * 1e6
    learning, processes = setup.learning + setup.critic, setup.launch.processes
    reading = 0.0 if setup.launch.zero == 3 else 4.0 * setup.total
    return {
        "base": PROCESS_BASE,
        "weights while they are read": reading,
        "optimizer": 16.0 * learning / processes if setup.launch.offload else 0.0,
        "data": 2 * rows * (1.5 * decoded + setup.picture.num_bytes),
    }
