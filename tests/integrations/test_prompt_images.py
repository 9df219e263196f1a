"""Images on their way from a trainer's prompts to the judge: read or refused, never left out, and encoded once."""

from __future__ import annotations

import asyncio
import io
import json
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rewardlab.data.images import encode_png, from_data_url
from rewardlab.errors import DataError
from rewardlab.integrations import client as client_module
from rewardlab.integrations import easyr1
from rewardlab.integrations.chats import read_prompt
from rewardlab.integrations.client import LOSSLESS_PIXELS, image_url, image_urls
from rewardlab.integrations.ms_swift import JudgeORM
from rewardlab.integrations.trl import judge_reward
from rewardlab.serving.conversations import labeled_sample
from tests.support.adapters import by_ms_swift, by_slime, by_trl
from tests.support.images import png
from tests.support.scripted_judge import ANSWERS, handler
from tests.support.servers import running
from tests.support.serving import app_of

SEE = "Do you see it?"
DATA_URL = image_url(png())
MARKS = [
    "<image>",
    "<|image_pad|>",
    "<|vision_start|><|image_pad|><|vision_end|>",
    "<|image|>",
    "<|image_1|>",
    "<start_of_image>",
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(app_of(handler)) as address:
        yield address


def chat(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": SEE}]}]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": DATA_URL}},
        {"type": "image_url", "image_url": DATA_URL},
        {"type": "input_image", "image_url": DATA_URL},
        {"type": "image", "image": DATA_URL},
        {"type": "image", "url": DATA_URL},
        {"type": "image", "text": None, "image": {"bytes": png(), "path": None}},
        {"image": Image.new("RGB", (28, 28))},
    ],
)
def test_every_part_with_an_image_reaches_the_judge(url: str, part: dict[str, Any]) -> None:
    """The scripted judge gives no verdict about what it does not see. A row of a column without an image leaves it its own."""
    reward = judge_reward(url)
    assert asyncio.run(reward([chat(part)] * 3, ANSWERS)) == [-1, 1, 0]
    assert asyncio.run(reward([chat(part)] * 3, ANSWERS, images=[None] * 3)) == [-1, 1, 0]


def test_a_url_is_passed_on() -> None:
    """Whether it may be fetched is the server's to say."""
    part = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    assert read_prompt(chat(part)) == (SEE, ["https://example.com/a.png"])


@pytest.mark.parametrize(
    "parts",
    [
        [{"type": "image"}],
        [{"type": "image_url", "image_url": None}],
        [{"type": "input_image", "file_id": "f"}],
        [{"type": "image", "image": DATA_URL}, {"type": "image"}],
    ],
)
def test_a_part_without_its_image_is_refused(url: str, parts: list[dict[str, Any]]) -> None:
    """Judged blind, a response would get a number that means nothing. The column of the row fills the place."""
    with pytest.raises(DataError, match=r"\d image parts hold no image, and 0 images came"):
        asyncio.run(judge_reward(url)([chat(*parts)] * 3, ANSWERS))
    assert read_prompt(chat(*parts), [DATA_URL] * len(parts)) == (SEE, [DATA_URL] * len(parts))


def test_a_video_is_refused() -> None:
    with pytest.raises(DataError, match="'video'"):
        read_prompt(chat({"type": "video", "video": "a.mp4", "text": None}))
    row = [{"role": "user", "content": "<video>Which?"}]
    with pytest.raises(DataError, match="videos"):
        JudgeORM()(["a", "b"], messages=[row] * 2, videos=[["a.mp4"]] * 2)


def by_easyr1(url: str, question: str, images: list[Any] | None) -> list[float]:
    truth = json.dumps({"question": question, "media": images or []})
    return [row["overall"] for row in easyr1.compute_score([{"response": a, "ground_truth": truth} for a in ANSWERS])]


@pytest.mark.parametrize("mark", MARKS)
def test_every_mark_without_its_image_is_refused(mark: str) -> None:
    """By the client, as the server refuses it in a label."""
    with pytest.raises(DataError, match="1 mark <image> in the text, and 0 images"):
        labeled_sample(f"{mark}{SEE}", "a")
    with pytest.raises(DataError, match=r"1 mark <image> in the text, and 0 images"):
        read_prompt(f"{mark}{SEE}")


@pytest.mark.parametrize("adapter", [by_trl, by_ms_swift, by_slime, by_easyr1])
def test_a_mark_without_its_image_is_refused(url: str, adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By each adapter; with its image it is judged."""
    monkeypatch.setenv("REWARDLAB_URL", url)
    mark = MARKS[2]
    with pytest.raises(DataError, match=r"1 mark <image> in the text, and 0 images"):
        adapter(url, f"{mark}{SEE}", None)
    assert adapter(url, f"{mark}{SEE}", [DATA_URL]) == [-1, 1, 0]


def test_marks_are_no_part_of_the_question() -> None:
    assert read_prompt(f"{MARKS[2]}\n{SEE}", [DATA_URL]) == (SEE, [DATA_URL])
    assert read_prompt("Is 1 < 2?") == ("Is 1 < 2?", [])


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(DataError, match="expected a PIL image"):
        image_url({"bytes": None, "path": None})


def photo(size: tuple[int, int] = (2000, 1100), **options: Any) -> Image.Image:
    """A smooth scene with the noise of a sensor, opened from a JPEG file."""
    rng = np.random.default_rng(0)
    scene = Image.fromarray(rng.integers(0, 255, (6, 8, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    noisy = np.asarray(scene) + rng.normal(0, 4, (size[1], size[0], 3))
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", **(options or {"quality": 90}))
    image = Image.open(file)
    image.load()
    return image


def sent(image: Image.Image) -> tuple[str, int, float]:
    """Return the format that an image is sent in, its bytes, and the mean difference of a value of a pixel (of 255)."""
    data = from_data_url(image_url(image))
    back = Image.open(io.BytesIO(data))
    assert back.format is not None
    difference = np.abs(np.asarray(image.convert("RGB")).astype(int) - np.asarray(back.convert("RGB")))
    return back.format, len(data), float(difference.mean())


@pytest.mark.parametrize("quality", [50, 75, 90])
def test_a_photo_is_sent_as_the_jpeg_that_it_was(quality: int) -> None:
    """By the tables of its file, which change next to nothing; what was drawn on it since is sent too."""
    image = photo(quality=quality)
    file = io.BytesIO()
    image.save(file, "JPEG", quality="keep")
    kind, size, difference = sent(image)
    assert (kind, size) == ("JPEG", len(file.getvalue()))
    assert difference < 0.05
    image.paste((255, 0, 0), (0, 0, 400, 400))
    back = Image.open(io.BytesIO(from_data_url(image_url(image)))).convert("RGB")
    assert np.abs(np.asarray(back)[100:300, 100:300].astype(int) - (255, 0, 0)).max() < 10


def through_pickle(image: Image.Image) -> Image.Image:
    again: Image.Image = pickle.loads(pickle.dumps(image))
    return again


@pytest.mark.slow
@pytest.mark.parametrize("change", [through_pickle, Image.Image.copy, lambda image: image.convert("RGBA")])
def test_a_large_image_without_tables_is_a_fine_jpeg(change: Callable[[Image.Image], Image.Image]) -> None:
    """A photo that came through a process, a copy, a converted one: still close to what it was, at a third of a PNG's bytes. By
    Pillow's own 75 a value would be off by 3 in the mean."""
    image = photo(quality=95, subsampling=0)
    kind, size, difference = sent(change(image))
    assert kind == "JPEG"
    assert difference < 0.1
    assert size < len(encode_png(image)) / 3


@pytest.mark.parametrize("size", [(640, 480), (1920, 1080)])
def test_an_image_of_a_screen_is_lossless(size: tuple[int, int]) -> None:
    assert size[0] * size[1] <= LOSSLESS_PIXELS
    kind, _, difference = sent(photo(size))
    assert (kind, difference) == ("PNG", 0)


def test_an_image_is_encoded_once_and_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """One object in many rows, and many objects with its pixels, as TRL decodes a row for each completion."""
    threads: list[int] = []
    encode = client_module.encode_png

    def counted(image: Image.Image) -> bytes:
        threads.append(threading.get_ident())
        return encode(image)

    monkeypatch.setattr(client_module, "encode_png", counted)
    red, blue = Image.new("RGB", (28, 28), "red"), Image.new("RGB", (28, 28), "blue")
    rows = [[red]] * 4 + [[red.copy(), blue]] + [[]]
    assert asyncio.run(image_urls(rows)) == [(image_url(red),)] * 4 + [(image_url(red), image_url(blue)), ()]
    in_call = threads[:2]
    assert len(threads) == 2 + 3  # those of the line above
    assert threading.get_ident() not in in_call


def test_images_that_differ_in_one_pixel_are_two() -> None:
    """The last one: what stands before it is alike."""
    red, other = Image.new("RGB", (28, 28), "red"), Image.new("RGB", (28, 28), "red")
    other.putpixel((27, 27), (0, 0, 255))
    sent = [Image.open(io.BytesIO(from_data_url(url))) for (url,) in asyncio.run(image_urls([[red], [other]]))]
    assert [image.getpixel((27, 27)) for image in sent] == [(255, 0, 0), (0, 0, 255)]
