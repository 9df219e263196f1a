"""A picture has the same pixels by every door: those that a person sees in its file, whatever its mode and its EXIF turn."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rewardlab.data.images import decode_image, from_data_url, plain_pixels
from rewardlab.errors import MediaError
from rewardlab.integrations import flow_grpo, verl, verl_omni
from rewardlab.integrations.client import image_url, image_urls
from rewardlab.integrations.trl import judge_reward
from rewardlab.judging.api import SyncJudge
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.serving.app import create_app
from rewardlab.types import Message
from tests.support.adapters import by_ms_swift, by_slime, by_trl
from tests.support.scripted_judge import ANSWERS
from tests.support.servers import running
from tests.support.serving import judge_of

TURN = 0x0112
COUNT = itertools.count()
SEEN: list[bytes] = []
# What each EXIF orientation does to rows and columns of a file, by the standard: 6 is shown turned a quarter clockwise.
TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a[::-1].swapaxes(0, 1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: a.swapaxes(0, 1)[::-1],
}


def look(prompt: tuple[Message, ...], draw: int) -> str:
    SEEN.extend(prompt[0].images)
    return "<answer>1</answer>"


def question() -> str:
    """Return a question that nobody asked before: a server remembers its answers."""
    return f"Which? {next(COUNT)}"


def judge() -> GenerativeJudge:
    return judge_of(look)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(create_app(judge())) as address:
        yield address


def _case(name: str) -> tuple[Image.Image, dict[str, Any], np.ndarray]:
    """Return an image to save, how, and the pixels that a person sees in the file."""
    rng = np.random.default_rng(0)
    rgb = rng.integers(0, 255, (12, 20, 3), dtype=np.uint8)
    grey, alpha = rgb[..., 0], np.where(np.arange(20) < 10, 0, 255).astype(np.uint8)[None].repeat(12, 0)
    on_white = np.where(alpha[..., None] == 0, 255, rgb)
    if name.startswith("turn"):
        turn, exif = int(name[4:]), Image.Exif()
        exif[TURN] = turn
        return Image.fromarray(rgb), {"exif": exif}, TURNS[turn](rgb)
    if name == "I;16":
        return Image.fromarray((grey.astype(np.uint16) << 8) | 7), {}, grey[..., None].repeat(3, -1)
    if name == "RGBA":
        return Image.fromarray(np.dstack([rgb, alpha])), {}, on_white
    if name == "RGBA, turned":
        exif = Image.Exif()
        exif[TURN] = 6
        return Image.fromarray(np.dstack([rgb, alpha])), {"exif": exif}, TURNS[6](on_white)
    if name == "LA":
        return Image.fromarray(np.dstack([grey, alpha])), {}, np.where(alpha == 0, 255, grey)[..., None].repeat(3, -1)
    palette = Image.fromarray(grey // 64 * 64).convert("P")
    if name == "P":
        return palette, {}, np.asarray(palette.convert("RGB"))
    if name == "P, transparent":
        entry = int(np.asarray(palette)[0, 0])
        clear = (np.asarray(palette) == entry)[..., None]
        return palette, {"transparency": entry}, np.where(clear, 255, np.asarray(palette.convert("RGB")))
    if name == "RGB, one colour transparent":
        value = tuple(int(v) for v in rgb[0, 0])
        return Image.fromarray(rgb), {"transparency": value}, np.where((rgb == value).all(-1)[..., None], 255, rgb)
    if name == "1":
        return Image.fromarray(grey > 128), {}, np.where(grey > 128, 255, 0)[..., None].repeat(3, -1)
    file = io.BytesIO()
    Image.frombytes("CMYK", (20, 12), np.dstack([rgb, grey]).tobytes()).save(file, "JPEG", quality=95)
    image, again = Image.open(file), io.BytesIO()
    image.save(again, "JPEG", quality="keep")
    return image, {"format": "JPEG", "quality": "keep"}, np.asarray(Image.open(again).convert("RGB"))


TRANSPARENT = ["RGBA", "RGBA, turned", "LA", "P, transparent", "RGB, one colour transparent"]
CASES = [*TRANSPARENT, "P", "I;16", "CMYK", "1", *(f"turn{n}" for n in TURNS)]


def saved(name: str, folder: Path) -> tuple[Path, np.ndarray]:
    """Return the file of a case, and the pixels that a person sees in it."""
    image, options, seen = _case(name)
    path = folder / "picture"
    image.save(path, **{"format": "PNG", **options})
    return path, seen


def by_api(url: str, image: Any) -> None:
    SyncJudge(judge()).compare(question(), ["a", "b"], images=[image])


def by_pair(url: str, image: Any) -> None:
    SyncJudge(judge()).compare_many([{"question": [{"type": "image", "image": image}], "responses": ["a", "b"]}])


def by(adapter: Callable[..., list[Any]]) -> Callable[[str, Any], None]:
    """Return the door that an adapter is."""

    def send(url: str, image: Any) -> None:
        assert len(adapter(url, question(), [image])) == 3

    return send


def by_part(url: str, image: Any) -> None:
    turns = [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": question()}]}]
    assert len(asyncio.run(judge_reward(url)([turns] * 3, ANSWERS))) == 3


def by_verl(url: str, image: Any) -> None:
    info = {"question": question(), "images": [image], "anchor": ANSWERS[0]}
    asyncio.run(verl.compute_score("demo", ANSWERS[1], "", info))


def by_flow_grpo(url: str, image: Any) -> None:
    flow_grpo.judge_score(url)([opened(image)], [question()], [{"anchor": image}])


def by_verl_omni(url: str, image: Any) -> None:
    pixels = np.asarray(plain_pixels(opened(image))).transpose(2, 0, 1)
    info = {"question": question(), "images": [image], "anchor": image}
    asyncio.run(verl_omni.compute_score("demo", torch.tensor(pixels), "", info))


def opened(image: Any) -> Image.Image:
    return image if isinstance(image, Image.Image) else Image.open(io.BytesIO(image) if isinstance(image, bytes) else image)


DOORS = [by_pair, by_part, by_verl, by_flow_grpo, by_verl_omni, *map(by, (by_trl, by_ms_swift, by_slime))]


@pytest.mark.parametrize(("name", "door"), [*((name, by_api) for name in CASES), *(("RGBA, turned", door) for door in DOORS)])
def test_every_door_shows_the_same_pixels(
    name: str, door: Callable[[str, Any], None], tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a path, as bytes and as a PIL image."""
    monkeypatch.setenv("REWARDLAB_URL", url)
    path, expected = saved(name, tmp_path)
    for image in (str(path), path.read_bytes(), Image.open(io.BytesIO(path.read_bytes()))):
        SEEN.clear()
        door(url, image)
        assert SEEN
        for data in SEEN:
            assert np.array_equal(np.asarray(decode_image(data)), expected)
            assert np.array_equal(np.asarray(Image.open(io.BytesIO(data)).convert("RGB")), expected), "another decoder"


def test_a_picture_is_turned_once(tmp_path: Path) -> None:
    """What was decoded before is shown as it is."""
    path, expected = saved("RGBA, turned", tmp_path)
    assert np.array_equal(np.asarray(plain_pixels(decode_image(path.read_bytes()))), expected)


@pytest.mark.parametrize("name", CASES)
def test_one_picture_is_one_url(name: str) -> None:
    """Decoded anew for each completion, or flattened by whoever made it. Responses about one URL are one group."""
    image, _, _ = _case(name)
    (first,), (second,) = asyncio.run(image_urls([[image], [image.copy()]]))
    assert first == second
    if name in TRANSPARENT[:1]:
        flat = Image.new("RGB", image.size, "white")
        flat.paste(image, mask=image.getchannel("A"))
        assert asyncio.run(image_urls([[image], [flat]])) == [(first,)] * 2


def test_two_drawings_on_glass_are_two_urls() -> None:
    """Black lines on nothing: without their alpha both are one black rectangle."""
    drawings = [Image.new("RGBA", (20, 12), (0, 0, 0, 0)) for _ in range(2)]
    for n, drawing in enumerate(drawings):
        drawing.putpixel((n, 3), (0, 0, 0, 255))
    (first,), (second,) = asyncio.run(image_urls([[drawing] for drawing in drawings]))
    assert first != second


def test_a_large_photo_is_sent_upright() -> None:
    """As a JPEG, which takes the turn of its file neither along nor twice."""
    rng = np.random.default_rng(0)
    scene = Image.fromarray(rng.integers(0, 255, (6, 8, 3), dtype=np.uint8)).resize((2000, 1100), Image.Resampling.BICUBIC)
    file, exif = io.BytesIO(), Image.Exif()
    exif[TURN] = 6
    scene.save(file, "JPEG", quality=90, exif=exif)
    by_file, by_object = decode_image(file.getvalue()), decode_image(from_data_url(image_url(Image.open(file))))
    assert by_file.size == by_object.size == (1100, 2000)
    assert np.abs(np.asarray(by_file).astype(int) - np.asarray(by_object)).mean() < 1


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.full((8, 8), 200, dtype=np.int32), 200),
        (np.full((8, 8), 200 << 8, dtype=np.int32), 200),
        (np.full((8, 8), 255, dtype=np.int32), 255),
        (np.full((8, 8), 256, dtype=np.int32), 1),
    ],
)
@pytest.mark.parametrize("send", [by_api, by(by_trl)])
def test_whole_numbers_are_grey_of_eight_bits_if_they_fit(
    send: Callable[[str, Any], None], values: np.ndarray, expected: int, url: str
) -> None:
    """Of a picture that was computed: nothing else says how many bits its values have."""
    SEEN.clear()
    send(url, Image.fromarray(values))
    assert SEEN
    assert {int(value) for data in SEEN for value in np.unique(np.asarray(decode_image(data)))} == {expected}


def test_grey_that_is_multiplied_by_its_alpha(url: str) -> None:
    """Is shown as the grey that it was made of: 100, half of it seen, is 128 + 50 on white."""
    grey = Image.merge("LA", [Image.new("L", (8, 8), 100), Image.new("L", (8, 8), 128)])
    SEEN.clear()
    by_api(url, grey.convert("La"))
    [value] = np.unique(np.asarray(decode_image(SEEN[0])))
    assert abs(int(value) - (100 * 128 + 255 * 127) / 255) <= 2


@pytest.mark.parametrize("send", [by_api, by(by_trl)])
def test_what_cannot_be_shown_is_refused(send: Callable[[str, Any], None], url: str) -> None:
    """A file cut off, and numbers of which nobody knows what is white: a sentence, no picture made up."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(file, "PNG")
    cut = Image.open(io.BytesIO(file.getvalue()[:2000]))
    with pytest.raises(MediaError, match="not a readable image"):
        send(url, cut)
    with pytest.raises(MediaError, match="not 8- or 16-bit greyscale"):
        send(url, Image.fromarray(np.full((8, 8), 1e6, dtype=np.float32)))
