"""Pairs on disk, and every way an image or a row can be bad."""

from __future__ import annotations

import base64
import io
import json
import os
import random
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rewardlab.data.images import BASE64_PIECE, decode_image, encode_png, from_data_url, plain_image, read_image, to_data_url
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.data.rows import validate, with_blank_images, with_other_images
from rewardlab.errors import DataError, MediaError, OutputError
from rewardlab.types import IMAGE_MARK, Order, PreferencePair


def png(width: int = 28, height: int = 28, color: tuple[int, int, int] = (200, 30, 30)) -> bytes:
    return encode_png(Image.new("RGB", (width, height), color))


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds nothing."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


PAIR = PreferencePair("p1", "Which?", ("a", "b"), 1, (png(),), "general", "test", 2, "3", Order.SWAPPED, "<think>..")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b"not an image", "not a readable image"),
        (png()[:60], "not a readable image"),
        (png_header(40_000, 40_000), "decompression bomb"),
        (png_header(9_000, 9_000), "decompression bomb"),
        (png_header(0, 5), "image"),
        (png(1, 1), "is too small"),
        (png(4, 1000), "thinner than 1:200"),
    ],
)
def test_bad_images(data: bytes, said: str) -> None:
    """A sentence that names the place; no warning, no exception of another kind."""
    with pytest.raises(MediaError, match=said) as caught:
        decode_image(data, where="row 7, image 0")
    assert "row 7, image 0" in str(caught.value)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1", "CMYK", "I;16"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    """Grey, palette, alpha, ink."""
    buffer = io.BytesIO()
    Image.new(mode, (8, 8)).save(buffer, format="JPEG" if mode == "CMYK" else "PNG")
    assert decode_image(buffer.getvalue()).mode == "RGB"


@pytest.mark.parametrize(("kind", "mime"), [("PNG", "png"), ("JPEG", "jpeg"), ("WEBP", "webp"), ("GIF", "gif"), ("BMP", "bmp")])
def test_data_urls(kind: str, mime: str) -> None:
    """There and back, with the right type; anything else is refused."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, format=kind)
    url = to_data_url(buffer.getvalue())
    assert url.startswith(f"data:image/{mime};base64,")
    assert from_data_url(url) == buffer.getvalue()
    for bad in ("http://host/x.png", "data:image/png,abc", "data:image/png;base64,@@", "/etc/passwd"):
        with pytest.raises(MediaError):
            from_data_url(bad)


def test_missing_image(tmp_path: Path) -> None:
    """Named, with the option that cures it."""
    with pytest.raises(MediaError, match="--images"):
        read_image(tmp_path / "none.png")


def test_parquet_round_trip(tmp_path: Path) -> None:
    """Every field comes back; ``datasets`` loads it with images as images."""
    from datasets import load_dataset

    pairs = [PAIR, replace(PAIR, pair_id="p2", preferred=None, level=None, images=(), judgment="")]
    assert write_parquet(pairs, tmp_path / "new" / "p.parquet") == 2
    assert read_pairs(tmp_path / "new" / "p.parquet") == pairs
    table = load_dataset("parquet", data_files=str(tmp_path / "new" / "p.parquet"), split="train", cache_dir=str(tmp_path))
    assert table[0]["images"][0].size == (28, 28)
    assert os.listdir(tmp_path / "new") == ["p.parquet"]


def test_jsonl_with_image_paths(tmp_path: Path) -> None:
    """Three keys are enough; paths start at --images, or beside the file."""
    (tmp_path / "img").mkdir()
    (tmp_path / "img" / "a.png").write_bytes(png())
    row = {"question": "Which?", "responses": ["a", "b"], "preferred": 0, "images": ["a.png"]}
    (tmp_path / "p.jsonl").write_text(json.dumps(row) + "\n\n")
    pair = read_pairs(tmp_path / "p.jsonl", images=tmp_path / "img")[0]
    assert (pair.pair_id, pair.images) == ("row-0", (png(),))
    with pytest.raises(MediaError, match=r"a\.png"):
        read_pairs(tmp_path / "p.jsonl")


ROW: dict[str, Any] = {"question": "Which?", "responses": ["a", "b"], "preferred": 0}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"responses": ["a", " a "]}, "equal"),
        ({"responses": ["a", " "]}, "empty"),
        ({"responses": ["a"]}, "list of two strings"),
        ({"responses": "ab"}, "list of two strings"),
        ({"responses": ["a", 3]}, "response 1: expected a string, a list of"),
        ({"responses": ["a", [{"type": "video", "video": "x.mp4"}]]}, "video 0, .*No such file"),
        ({"question": [{"type": "text"}]}, "expected a text, image or video part"),
        ({"question": "Which \ufffc of \ufffc?", "images": []}, "2 marks <image> .* in the text, and 0 images"),
        ({"responses": ["a \ufffc", "b"]}, "1 in the answers, and 0 images"),
        ({"response_images": [[]]}, "two lists"),
        ({"teacher_share": 1.5}, "from 0 to 1"),
        ({"question": " "}, "question is empty"),
        ({"question": None}, "question is empty"),
        ({"preferred": 2}, "expected 0 or 1"),
        ({"preferred": "first"}, "expected 0 or 1"),
        ({"preferred": True}, "expected 0 or 1"),
        ({"order": "both"}, "given or swapped"),
        ({"level": "hard"}, "'level' is 'hard'"),
        ({"level": 300}, "'level' is 300"),
        ({"images": "a.png"}, "'images' must be a list"),
        ({"images": [3]}, "expected the path of the image, its bytes"),
    ],
)
def test_bad_rows(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    """The file and the row are named."""
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps(ROW | change) + "\n")
    with pytest.raises((DataError, MediaError), match=said) as caught:
        read_pairs(path)
    assert "p.jsonl, row 1" in str(caught.value)


def test_bad_files(tmp_path: Path) -> None:
    """Absent, empty, of an unknown kind, damaged, rows that are no objects."""
    for name, text, said in [
        ("none.jsonl", None, "no such file"),
        ("empty.jsonl", "", "holds no pairs"),
        ("pairs.txt", "a,b", r"expected rows as \.parquet, \.jsonl"),
        ("torn.jsonl", '{"question"', "line 1"),
        ("list.jsonl", "[1]", "row 0"),
        ("bad.parquet", "PAR1 it is not", "Parquet"),
    ]:
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=said):
            read_pairs(tmp_path / name)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """A file where a folder is needed; nothing is left behind."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        write_parquet([PAIR], tmp_path / "file" / "p.parquet")


def test_controls_change_the_images_only() -> None:
    """Blank: same size, one colour. Other: somebody else's, nobody's own."""
    pairs = [replace(PAIR, pair_id=str(n), images=(png(28, 28 + n, (n, 0, 0)),)) for n in range(5)]
    blank = with_blank_images(pairs)
    assert [decode_image(p.images[0]).size for p in blank] == [decode_image(p.images[0]).size for p in pairs]
    assert all(len(decode_image(p.images[0]).getcolors() or ()) == 1 for p in blank)
    other = with_other_images(pairs)
    assert all(a.images != b.images for a, b in zip(pairs, other, strict=True))
    assert {p.images for p in other} == {p.images for p in pairs}
    assert [replace(p, images=()) for p in other] == [replace(p, images=()) for p in pairs]


def test_answers_that_are_images_alone() -> None:
    """Unread, nobody knows whether they differ, and the pair stays; two that are read and the same are refused."""
    mark, one, other = IMAGE_MARK, png(), png(color=(0, 0, 200))
    unread = PreferencePair("a", "Which is better?", (mark, mark), 0)
    assert validate(unread, where="x") is unread
    validate(replace(unread, response_images=((one,), (other,))), where="x")
    with pytest.raises(DataError, match="equal"):
        validate(replace(unread, response_images=((one,), (one,))), where="x")


def turned() -> bytes:
    """A JPEG whose EXIF says that it lies on its side."""
    image, buffer = Image.new("RGB", (112, 56), (200, 30, 30)), io.BytesIO()
    image.paste((30, 30, 200), (0, 0, 56, 56))  # the left half, which a viewer sees at the top
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(buffer, format="JPEG", exif=exif)
    return buffer.getvalue()


def saved(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind)
    return buffer.getvalue()


SEE_THROUGH = saved(Image.new("RGBA", (28, 28), (200, 30, 30, 0)))


def test_transparency_is_white_and_exif_turns_are_made() -> None:
    """And the bytes that are kept show it to any decoder."""
    assert decode_image(SEE_THROUGH).getpixel((3, 3)) == (255, 255, 255)
    upright = decode_image(turned())
    assert upright.size == (56, 112)
    (*_, top_blue), (bottom_red, *_) = upright.getpixel((28, 20)), upright.getpixel((28, 90))  # type: ignore[misc]
    assert top_blue > 150
    assert bottom_red > 150
    for data in (SEE_THROUGH, turned(), saved(Image.new("P", (28, 28))), saved(Image.new("CMYK", (28, 28)), "JPEG")):
        kept = plain_image(data)
        with Image.open(io.BytesIO(kept)) as image:
            assert image.mode == "RGB"
            assert image.tobytes() == decode_image(data).tobytes()
    for data in (png(), saved(Image.new("L", (28, 28))), saved(Image.new("RGB", (28, 28)), "JPEG")):
        assert plain_image(data) == data


def test_large_images_are_reduced_to_what_is_used() -> None:
    """By a whole factor and never below what is kept: plain, see-through, turned; smaller ones stay as they are."""
    noise = Image.frombytes("RGBA", (301, 200), random.Random(0).randbytes(4 * 301 * 200))
    on_white = Image.alpha_composite(Image.new("RGBA", noise.size, "white"), noise).convert("RGB")
    assert decode_image(saved(noise)).tobytes() == on_white.tobytes()
    small = decode_image(saved(noise), kept_pixels=6000)
    assert (small.size, small.tobytes()) == ((101, 67), on_white.reduce(3).tobytes())
    assert decode_image(saved(on_white), kept_pixels=6000).tobytes() == small.tobytes()
    assert plain_image(saved(on_white), kept_pixels=301 * 200 // 3) == saved(on_white)
    upright = decode_image(turned(), kept_pixels=28 * 14)
    assert upright.size == (14, 28)
    assert upright.getpixel((7, 4))[2] > 150  # type: ignore[index]
    with pytest.raises(MediaError, match="more than 60,000"):
        decode_image(saved(noise), most_pixels=60_000)


LARGE = """
import io, sys
from PIL import Image
from rewardlab.data.images import decode_image
buffer = io.BytesIO()
Image.new("RGBA", (6000, 6000), (9, 9, 9, 99)).save(buffer, format="PNG", compress_level=1)
def mb(name): return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1]) // 1000
before = mb("VmRSS")
decode_image(buffer.getvalue(), kept_pixels=int(sys.argv[1]) or None)
print(mb("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kept", "most_mb"), [(0, 400), (100_000, 220)])
def test_a_large_image_is_decoded_without_copies(kept: int, most_mb: int) -> None:
    """A see-through one of 144 MB: as it is stored and as it is seen, or as it is stored alone where little is kept."""
    done = subprocess.run([sys.executable, "-c", LARGE, str(kept)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < most_mb


def test_a_data_url_in_pieces() -> None:
    """Of more than a piece, with a limit; padding in between is no base64."""
    data = random.Random(0).randbytes(BASE64_PIECE + 1)
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    assert from_data_url(url, max_bytes=len(data)) == data
    with pytest.raises(MediaError, match="more than 1,000 bytes"):
        from_data_url(url, max_bytes=1000)
    with pytest.raises(MediaError, match="base64"):
        from_data_url("data:image/png;base64," + "A" * (BASE64_PIECE - 1) + "=" + "AAAA")


def test_training_and_sampling_see_the_same_pixels(tmp_path: Path) -> None:
    """What ``datasets`` decodes from a stored pair, as the trainers do, is what the sampler decodes."""
    from datasets import Dataset

    (tmp_path / "a.png").write_bytes(SEE_THROUGH)
    (tmp_path / "b.jpg").write_bytes(turned())
    row = {"question": "q", "responses": ["a", "b"], "preferred": 0, "images": ["a.png", "b.jpg"]}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(row) + "\n")
    pairs = read_pairs(tmp_path / "pairs.jsonl")
    write_parquet(pairs, tmp_path / "pairs.parquet")
    theirs = Dataset.from_parquet(str(tmp_path / "pairs.parquet"), cache_dir=str(tmp_path / "cache"))[0]["images"]
    for ours, image in zip(pairs[0].images, theirs, strict=True):
        assert decode_image(ours).tobytes() == image.tobytes()
        assert image.mode == "RGB"


def test_only_common_formats_are_opened() -> None:
    """An EPS would start Ghostscript."""
    with pytest.raises(MediaError, match="not a readable image"):
        decode_image(saved(Image.new("RGB", (28, 28)), "EPS"))
    with pytest.raises(MediaError, match="not a readable image"):
        decode_image(saved(Image.new("RGB", (28, 28)), "ICO"))


def test_another_image_is_never_ones_own() -> None:
    """Also where every picture occurs twice, half the list apart; where there is but one, there is no other."""
    pictures = [png(color=(n, 0, 0)) for n in (10, 60, 110)]
    pairs = [PreferencePair(str(n), "q", ("a", "b"), 0, images=(pictures[n % 3],)) for n in range(6)]
    assert all(a.images != b.images for a, b in zip(pairs, with_other_images(pairs), strict=True))
    with pytest.raises(DataError, match="no other image"):
        with_other_images(pairs[:1])


@pytest.mark.parametrize("column", ["pair_id", "question", "category", "licence", "judgment", "provenance"])
def test_half_a_surrogate_pair_in_any_column(column: str) -> None:
    """Whatever is paid for in between, the pair could not be written in the end."""
    pair, damage = PreferencePair("p", "q", ("a", "b"), 0), dict[str, Any]({column: "x\ud83d"})
    with pytest.raises(DataError, match=f"row 0: '{column}' contains half a surrogate pair"):
        validate(replace(pair, **damage), where="row 0")


def grey_of_16_bits(transparent: int | None = None) -> bytes:
    """A PNG of 256 x 256 px, each of another value, by hand: Pillow is what reads it."""
    values = struct.pack(">65536H", *range(65536))
    lines = b"".join(b"\0" + values[512 * n : 512 * (n + 1)] for n in range(256))

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 256, 256, 16, 0, 0, 0, 0))
    key = b"" if transparent is None else chunk(b"tRNS", struct.pack(">H", transparent))
    return b"\x89PNG\r\n\x1a\n" + head + key + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def test_grey_of_16_bits_is_not_white() -> None:
    """Line n of it is grey n, at full size, where it is stored for training, and made smaller on the way."""
    for image in (decode_image(grey_of_16_bits()), decode_image(plain_image(grey_of_16_bits()))):
        assert (image.mode, image.size) == ("RGB", (256, 256))
        assert [image.getpixel((7, n)) for n in range(256)] == [(n, n, n) for n in range(256)]
    small = decode_image(grey_of_16_bits(), kept_pixels=64 * 64)
    assert [small.convert("L").getpixel((5, n)) for n in (0, 20, 63)] == pytest.approx([4 * n + 2 for n in (0, 20, 63)], abs=1)
    clear = decode_image(grey_of_16_bits(transparent=1000))
    assert [clear.getpixel((x, 3)) for x in (231, 232, 233)] == [(3,) * 3, (255,) * 3, (3,) * 3]


@pytest.mark.parametrize(("mode", "fill"), [("F", 0.5), ("I", 70_000), ("I", -1)])
def test_numbers_of_unknown_white_are_refused(mode: str, fill: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewardlab.data.images.FORMATS", ("TIFF",))
    with pytest.raises(MediaError, match=rf"image: its pixels \(mode {mode}\) are not 8- or 16-bit greyscale"):
        decode_image(saved(Image.new(mode, (28, 28), fill), "TIFF"))
    grey = decode_image(saved(Image.new("I", (28, 28), 51_400), "TIFF"))  # as older Pillows open a PNG
    assert grey.getpixel((0, 0)) == (200, 200, 200)


RED, BLUE = (220, 20, 20), (20, 20, 220)
ORIENTATION = 0x0112
# Where the red left half of the stored image is seen, by its orientation.
RED_SIDE = {1: "left", 2: "right", 3: "right", 4: "left", 5: "top", 6: "top", 7: "bottom", 8: "bottom"}


def stored(orientation: int) -> bytes:
    """A JPEG, red at the left and blue at the right of what is stored."""
    image, buffer = Image.new("RGB", (120, 60), BLUE), io.BytesIO()
    image.paste(RED, (0, 0, 60, 60))
    exif = image.getexif()
    exif[ORIENTATION] = orientation
    image.save(buffer, format="JPEG", quality=95, subsampling=0, exif=exif)
    return buffer.getvalue()


def is_red(image: Image.Image, side: str) -> bool:
    width, height = image.size
    places = {"left": (5, height // 2), "right": (width - 6, height // 2)}
    places |= {"top": (width // 2, 5), "bottom": (width // 2, height - 6)}
    red, _, blue = image.getpixel(places[side])  # type: ignore[misc]
    return bool(red > blue)


@pytest.mark.parametrize("orientation", RED_SIDE)
def test_every_turn_is_made(orientation: int) -> None:
    """Each of the eight: size and sides as they are seen, in the bytes that are kept as in what is decoded."""
    data, side = stored(orientation), RED_SIDE[orientation]
    opposite = {"left": "right", "right": "left", "top": "bottom", "bottom": "top"}[side]
    seen = decode_image(data)
    with Image.open(io.BytesIO(plain_image(data))) as kept:  # no EXIF turn is made here
        assert kept.size == seen.size == ((120, 60) if side in ("left", "right") else (60, 120))
        for image in (kept.convert("RGB"), seen):
            assert is_red(image, side)
            assert not is_red(image, opposite)
    assert (plain_image(data) == data) == (orientation == 1)


def test_an_animation_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [Image.new("RGB", (32, 32), color) for color in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    monkeypatch.setattr("rewardlab.data.images._SAID", set())
    assert decode_image(read_image(tmp_path / "a.gif")).getpixel((1, 1))[2] == 0  # red, not blue
    read_image(tmp_path / "a.gif")
    assert capsys.readouterr().err.count("an animation; judges are shown the first frame") == 1
