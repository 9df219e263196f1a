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
from rewardlab.health.cards import GraphicsCard
from rewardlab.health.memory import GIB, Setup
from rewardlab.health.step_time import training_seconds

MOST_WAITING = 0.1  # of a step's arithmetic, that data may take
PROCESS_BASE, WORKER_BASE = 3 * GIB, GIB // 2  # Python, torch and CUDA's own in one process; a data worker's own
ROW_GROUP = 64 << 20  # of Parquet, read whole for any pair in it; pairs of larger ones are warned about


@dataclass(frozen=True)
class DecodingRate:
    """Milliseconds of one core to decode a picture of a megapixel."""

    jpeg_ms: float
    png_ms: float


@cache
def measure_decoding() -> DecodingRate:
    """Return this machine's rate: the fastest of three decodings of a quarter of a megapixel with edges and a little noise."""
    y, x = np.mgrid[0:500, 0:500]
    shapes = np.stack([(x // 50 * y // 70) % 256, (x + y) % 256, (x * y // 300) % 256], -1)
    noise = np.random.default_rng(0).integers(0, 12, shapes.shape)
    picture = Image.fromarray((shapes + noise).clip(0, 255).astype(np.uint8))
    return DecodingRate(_fastest(picture, "JPEG"), _fastest(picture, "PNG"))


def _fastest(picture: Image.Image, kind: str) -> float:
    buffer = io.BytesIO()
    picture.save(buffer, kind)
    return 4 * 1000 * min(_seconds(buffer.getvalue()) for _ in range(3))


def _seconds(data: bytes) -> float:
    start = time.process_time()  # of a core that does nothing else, however busy the machine is now
    decode_image(data).load()
    return time.process_time() - start


@dataclass(frozen=True)
class Feeding:
    """What one process reads in a rollout batch (or an optimizer step): ``pictures``, in at least ``seconds`` of arithmetic.

    ``ahead``: they are decoded while the card computes, so that it never waits if that is as fast; else it waits for them.
    """

    pictures: float
    seconds: float
    ahead: bool

    def share(self, decode_ms: float, workers: int = 1) -> float:
        """Return the seconds of decoding by so many workers, as a share of the arithmetic's."""
        return self.pictures * decode_ms / 1000 / self.seconds / workers

    def workers(self, decode_ms: float) -> int:
        """Return the workers that keep the card fed: by whom it waits a tenth of its time at most, or never."""
        return max(1, math.ceil(self.share(decode_ms) / (1.0 if self.ahead else MOST_WAITING)))


def feeding_of(setup: Setup, card: GraphicsCard) -> Feeding:
    """Return the pictures of a rollout batch or step on one process, and the seconds of its training's arithmetic. Sampling is
    left out: the need is then a strict one."""
    sequences = (setup.method.rollout_batch_size if setup.method else setup.config.batch_size) / setup.launch.processes
    return Feeding(sequences * setup.lengths.pictures, training_seconds(setup, card), ahead=setup.method is None)


def host_bytes(setup: Setup) -> dict[str, float]:
    """Return the bytes of host memory that one process needs, by purpose: while weights are read, and for the data after.

    Data stay on disk, however many they are: of RL a process holds one rollout batch's pictures, decoded and as float32 pixels;
    of other stages one optimizer step's as bfloat16 pixels, and each data worker those of two micro-batches decoded and in
    float32. And each reader the row group that it is at.
    """
    lengths, workers = setup.lengths, setup.config.data_workers
    one = lengths.pictures * (3.0 * lengths.megapixels * 1e6 + setup.picture.num_bytes)
    samples = setup.rollouts if setup.method else 2 * setup.config.micro_batch_size * max(1, workers)
    step = setup.config.batch_size / setup.launch.processes * lengths.pictures * setup.picture.num_bytes / 2
    of_workers = 0.0 if setup.method else workers * WORKER_BASE + step
    learning, processes = setup.learning + setup.critic, setup.launch.processes
    reading = 0.0 if setup.launch.zero == 3 else 4.0 * setup.total
    return {
        "base": PROCESS_BASE,
        "weights while they are read": reading,
        "optimizer": 16.0 * learning / processes if setup.launch.offload else 0.0,
        "data": samples * one + max(1, workers) * ROW_GROUP + of_workers,
    }
