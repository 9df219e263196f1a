"""Frames of Qwen's families against qwen_vl_utils' ``fetch_video`` on films made here; other families; missing packages."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from qwen_vl_utils import vision_process

from rewardlab.benchmarks.rows import load_rows
from rewardlab.benchmarks.runner import open_any_judge
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.data.images import decode_image
from rewardlab.data.pairs import read_pairs
from rewardlab.data.qwen_video import QwenFrames
from rewardlab.data.video import frames_of_video
from rewardlab.errors import CheckpointError, ConfigError, MediaError
from rewardlab.judging.spec import judge_video_policy
from rewardlab.models.model_config import video_policy_of
from tests.support.videos import film


def read_with_av(ele: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any], float]:
    """A reader for qwen_vl_utils in place of those it has: every frame is decoded, and its own words choose among them."""
    with av.open(ele["video"]) as container:
        rate = float(container.streams.video[0].average_rate or 0)
        frames = torch.stack([torch.from_numpy(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)])
    start, end, total = vision_process.calculate_video_frame_range(ele, len(frames), rate)
    number = vision_process.smart_nframes(ele, total_frames=total, video_fps=rate)
    places = torch.linspace(start, end, number).round().long()
    return frames[places].permute(0, 3, 1, 2), {"frames_indices": places}, number / total * rate


@pytest.mark.parametrize(
    ("num_frames", "rate", "size", "max_frames", "patch_px"),
    [
        (90, Fraction(30), (640, 360), 32, 14),
        (25, Fraction(10), (320, 480), 8, 14),
        (61, Fraction(30000, 1001), (1280, 720), 16, 16),
        (7, Fraction(1), (64, 48), 32, 16),
        (3, Fraction(25), (200, 200), 8, 14),
        (120, Fraction(5), (96, 64), 768, 16),
    ],
)
def test_frames_are_those_of_fetch_video(
    num_frames: int,
    rate: Fraction,
    size: tuple[int, int],
    max_frames: int,
    patch_px: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many, from the same places, of the same size, and the same pixels but for what JPEG takes away."""
    path = film(tmp_path / "a.mp4", num_frames, rate, size)
    monkeypatch.setitem(vision_process.VIDEO_READER_BACKENDS, "av", read_with_av)
    monkeypatch.setattr(vision_process, "get_video_reader_backend", lambda: "av")
    wanted = {"video": str(path), "fps": 2.0, "min_frames": 4, "max_frames": max_frames}
    theirs, facts = vision_process.fetch_video(wanted, image_patch_size=patch_px, return_video_metadata=True)
    policy = QwenFrames(patch_px)
    assert policy.places(num_frames, float(rate), max_frames, where="film") == facts["frames_indices"].tolist()
    frames = [decode_image(frame) for frame in frames_of_video(path, max_frames, policy=policy)]
    assert [(frame.height, frame.width) for frame in frames] == [tuple(theirs.shape[2:])] * len(theirs)
    ours = np.stack([np.asarray(frame) for frame in frames]).transpose(0, 3, 1, 2)
    assert np.abs(ours - theirs.numpy()).max() <= 4


def test_long_videos_share_a_budget(tmp_path: Path) -> None:
    """The more frames, the smaller each, down to 128 tokens; a total of one's own holds."""
    policy = QwenFrames(14)
    sides = [policy.size(1080, 1920, number, where="film") for number in (8, 768)]
    assert sides[0][0] * sides[0][1] <= 768 * 28 * 28
    assert sides[1][0] * sides[1][1] * 768 / 2 <= 128_000 * 28 * 28 * 0.9
    small = QwenFrames(14, total_pixels=8 * 200 * 28 * 28)
    height, width = small.size(1080, 1920, 16, where="film")
    assert height * width <= 200 * 28 * 28


def test_what_cannot_be_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A film of one frame and a missing package: a sentence with the cure, and never frames of another kind."""
    one = film(tmp_path / "one.mp4", 1, Fraction(10), (64, 48))
    with pytest.raises(MediaError, match="two or more"):
        frames_of_video(one, 8, policy=QwenFrames(14))
    assert len(frames_of_video(one, 8)) == 1
    monkeypatch.setitem(sys.modules, "qwen_vl_utils", None)
    with pytest.raises(ConfigError, match=r"pip install 'rewardlab\[video\]'"):
        frames_of_video(film(tmp_path / "a.mp4", 9, Fraction(10), (64, 48)), 8, policy=QwenFrames(14))
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ConfigError, match=r"PyAV, which is missing.*rewardlab\[video\]"):
        frames_of_video(one, 8)


def test_the_family_decides(tmp_path: Path) -> None:
    """By the configuration, of an adapter by its base's; other families and remote judges are shown frames evenly spread."""
    for name, kind in (("qwen", "qwen3_vl"), ("gemma", "gemma3")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": kind}))
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "qwen")}))
    assert video_policy_of(str(tmp_path / "lora")) == QwenFrames(16)
    assert video_policy_of(str(tmp_path / "gemma")) is None
    assert video_policy_of("Qwen/Qwen2.5-VL-7B-Instruct") == QwenFrames(14)
    assert judge_video_policy("openai:judge@http://127.0.0.1:1/v1") is None
    with pytest.raises(CheckpointError, match="configuration cannot be read"):
        video_policy_of(str(tmp_path))


def test_a_benchmark_says_how_videos_are_shown(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The judge's family decides the frames of a pair's video, and a note of the report names it; training reads the same."""
    film(tmp_path / "v.mp4", 90, Fraction(30), (320, 240))
    row = {"question": "What happens?", "responses": ["a", "b"], "preferred": 0, "videos": ["v.mp4"]}
    data = tmp_path / "pairs.jsonl"
    data.write_text(json.dumps(row) + "\n")
    settings = bench_settings("pairs", data, f"hf:{tiny_checkpoint}")
    rows, notes = load_rows(settings, open_any_judge(settings))
    assert len(rows[0].pair.images) == 6  # three seconds, two a second
    assert "videos (1): each shown as qwen-vl-utils" in notes[-1]
    again = read_pairs(data, policy=judge_video_policy(settings.judge.judge))
    assert again[0].images == rows[0].pair.images
    baseline = bench_settings("pairs", data, "baseline:first")
    assert "evenly spread" in load_rows(baseline, open_any_judge(baseline))[1][-1]
