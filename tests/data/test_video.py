"""Videos: the frames that are shown, and VideoRewardBench, whose loader is exercised on files made here."""

from __future__ import annotations

import io
import json
import random
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from rewardlab.benchmarks import videorewardbench
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.data.images import decode_image
from rewardlab.data.rows import with_frames
from rewardlab.data.video import DecodingBounds, _Work, frames_of_video, video_pixels
from rewardlab.errors import DataError, MediaError
from rewardlab.types import IMAGE_MARK, VIDEO_MARK, PreferencePair
from tests.support.images import png
from tests.support.videos import film


@pytest.mark.parametrize(("total", "number", "shown"), [(40, 5, [0, 9, 19, 29, 39]), (3, 32, [0, 1, 2]), (1, 4, [0])])
def test_frames_are_spread_evenly(total: int, number: int, shown: list[int], tmp_path: Path) -> None:
    """First and last among them, told by their brightness."""
    frames = frames_of_video(film(tmp_path / "a.mp4", total), number)
    grey = [float(np.asarray(decode_image(frame)).mean()) for frame in frames]
    assert grey == pytest.approx([255 * n / max(1, total - 1) for n in shown], abs=8)


def test_media_without_a_place_come_first(tmp_path: Path) -> None:
    """Images before a question that has a place for its video alone, frames before one that has one for its image alone."""
    video, image = film(tmp_path / "a.mp4", 4).read_bytes(), png()
    frames = frames_of_video(video, 2)
    for question, expected, images in (
        (f"See {VIDEO_MARK}?", f"{IMAGE_MARK}See {IMAGE_MARK * 2}?", (image, *frames)),
        (f"See {IMAGE_MARK}?", f"{IMAGE_MARK * 2}See {IMAGE_MARK}?", (*frames, image)),
        (f"{IMAGE_MARK}, {VIDEO_MARK}?", f"{IMAGE_MARK}, {IMAGE_MARK * 2}?", (image, *frames)),
        ("See?", "See?", (image, *frames)),
    ):
        shown = with_frames(PreferencePair("p", question, ("a", "b"), 0, (image,), videos=(video,)), 2)
        assert (shown.question, shown.images, shown.videos) == (expected, images, ())


def test_frames_are_sampled_while_decoding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a question and of an answer alike: a frame is let go before the next but one is decoded, and few become images."""

    class Frame:
        num_images = 0

        def __init__(self, frame: Any) -> None:
            self._frame = frame

        def to_image(self) -> Image.Image:
            Frame.num_images += 1
            image: Image.Image = self._frame.to_image()
            return image

    def frames(self: Any, container: Any) -> Iterator[Frame]:
        for frame in decoded(self, container):
            wrapped = Frame(frame)
            alive.add(wrapped)
            assert len(alive) <= 2
            yield wrapped
            del wrapped

    decoded, alive = _Work.frames, weakref.WeakSet[Frame]()
    monkeypatch.setattr(_Work, "frames", frames)
    clip = film(tmp_path / "a.mp4", 40).read_bytes()
    of_question = PreferencePair("p", f"{VIDEO_MARK}q", ("a", "b"), 0, videos=(clip,))
    of_answers = PreferencePair("p", "q", (f"{VIDEO_MARK}a", "b"), 0, response_videos=((clip,), ()))
    shown = [with_frames(pair, 5) for pair in (of_question, of_answers)]
    assert shown[0].images == shown[1].response_images[0]
    assert (len(shown[0].images), Frame.num_images) == (5, 10)


def test_a_video_has_bounds(tmp_path: Path) -> None:
    """Seconds of work, pixels of a frame, and who waits for it: decoding ends there."""
    video = film(tmp_path / "a.mp4", 400).read_bytes()
    assert len(frames_of_video(video, 2, bounds=DecodingBounds(20.0))) == 2
    with pytest.raises(MediaError, match=r"takes more than 0\.001 s"):
        frames_of_video(video, 2, bounds=DecodingBounds(0.001))
    with pytest.raises(MediaError, match="64x48 px are more than 3,000"):
        frames_of_video(video, 2, bounds=DecodingBounds(pixels=3000))
    asked = iter([False] * 5)
    with pytest.raises(MediaError, match="no client is waiting"):
        frames_of_video(video, 2, bounds=DecodingBounds(is_stopped=lambda: next(asked, True)))


def test_frames_larger_than_a_header_says(tmp_path: Path) -> None:
    """A server keeps memory by the header: larger frames are refused. What is too large by its header is not decoded."""

    def motion_jpeg(*sides: int) -> bytes:
        with av.open(str(tmp_path / "a.avi"), "w") as container:
            stream = container.add_stream("mjpeg", rate=10)
            stream.width, stream.height, stream.pix_fmt = sides[0], sides[0], "yuvj420p"
            for n, side in enumerate(sides):
                buffer = io.BytesIO()
                Image.new("RGB", (side, side)).save(buffer, format="JPEG")
                packet = av.Packet(buffer.getvalue())
                packet.stream, packet.pts, packet.dts = stream, n, n
                container.mux(packet)
        return (tmp_path / "a.avi").read_bytes()

    growing = motion_jpeg(32, 32, 200)
    assert video_pixels(growing, "video 0", most_pixels=9_000_000) == 64 * 64
    assert len(frames_of_video(growing, 3)) == 3
    with pytest.raises(MediaError, match="frames of 200x200 px, but its header declares 32x32"):
        frames_of_video(growing, 3, bounds=DecodingBounds(20.0))
    with pytest.raises(MediaError, match="not a readable video"):  # the decoder itself refuses what is much larger
        frames_of_video(motion_jpeg(32, 32, 2000), 3, bounds=DecodingBounds(20.0))
    with pytest.raises(MediaError, match="200x200 px are more than 30,000"):
        video_pixels(motion_jpeg(200), "video 0", most_pixels=30_000)


def test_what_is_no_video(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"not a film")
    with pytest.raises(MediaError, match="not a readable video"):
        frames_of_video(tmp_path / "a.mp4", 4)


def rows() -> list[dict[str, Any]]:
    names = ("Long-form Perception", "short_perception", "Knowledge", "Reasoning", "Safety")
    return [
        {
            "video": f"v{n}.mp4",
            "prompt": f"What happens in {n}?",
            "chosen": "It gets brighter.",
            "rejected": "It rains.",
            "dimension": name,
        }
        for n, name in enumerate(names)
    ]


def test_videorewardbench(tmp_path: Path) -> None:
    """Five groups by the paper's names; a video as a file or a folder of frames; sizes that differ are told; missing ones are
    listed at once; a constant judge scores one half."""
    data = tmp_path / "v.jsonl"
    data.write_text("\n".join(map(json.dumps, rows())))
    with pytest.raises(MediaError, match="5 of 5 media files"):
        videorewardbench.BENCHMARK.load(data, images=None, with_images=True)
    for n in range(5):
        film(tmp_path / f"v{n}.mp4", 6)
    loaded = videorewardbench.BENCHMARK.load(data, images=None, with_images=True)
    assert [len(row.pair.images) for row in loaded] == [6] * 5
    report = run_bench(bench_settings("videorewardbench", data, "baseline:first"), tmp_path / "out")[0].to_json()
    assert set(report["groups"]) == set(videorewardbench.BENCHMARK.sizes)
    assert (report["accuracy"]["micro"], report["position_bias"]) == (0.5, 0.5)
    assert sum("the published benchmark" in note for note in report["notes"]) == 5
    assert sum(videorewardbench.BENCHMARK.sizes.values()) == 1563


def test_columns_of_another_name(tmp_path: Path) -> None:
    """Those that are there are named."""
    (tmp_path / "v.jsonl").write_text(json.dumps(rows()[0] | {"prompt": None, "asked": "x"}))
    with pytest.raises(DataError, match=r"question \(prompt or question or query\).*asked"):
        videorewardbench.BENCHMARK.load(tmp_path / "v.jsonl", images=None, with_images=False)


@pytest.mark.parametrize(("form", "codec"), [("mp4", "mpeg4"), ("matroska", "mpeg4"), ("avi", "mpeg4")])
def test_titles_and_damage(form: str, codec: str) -> None:
    """A title that is no UTF-8 is legal. Whatever else is wrong with a file has one error, which says what to do."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=form) as container:
        container.metadata["title"] = "TITLE OF IT"
        stream: Any = container.add_stream(codec, rate=5)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for n in range(10):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), n * 20, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    video = buffer.getvalue()
    latin = video.replace(b"TITLE OF IT", "ÉTÉ À PARIS".encode("latin-1"))
    assert latin != video
    assert frames_of_video(latin, 4) == frames_of_video(video, 4)
    assert video_pixels(latin, "video 0", most_pixels=10**8) == 64 * 64
    draw = random.Random(0)
    for _ in range(60):
        damaged = bytearray(video)
        for _ in range(draw.choice([1, 5, 50])):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        for read in (lambda data: frames_of_video(data, 4), lambda data: video_pixels(data, "video 0", most_pixels=10**8)):
            with suppress(MediaError):
                read(bytes(damaged))


def test_an_error_of_another_kind_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged header may leave a stream without what every stream has."""
    video = film(tmp_path / "a.mp4", 3).read_bytes()
    monkeypatch.setattr("rewardlab.data.video._Work._check_size", lambda *_: None.missing)  # type: ignore[attr-defined]
    for read in (lambda: frames_of_video(video, 2, where="v"), lambda: video_pixels(video, "v", most_pixels=10**8)):
        with pytest.raises(MediaError, match=r"v: not a readable video \(.*\); re-encode it"):
            read()
