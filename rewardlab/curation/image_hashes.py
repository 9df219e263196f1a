"""Find copies of a picture: re-encoded, resized, a little brighter, cropped by up to a tenth of a side; with its views also
mirrored, in grey, and with a plain border; for pictures of many shades, such as photographs, with another contrast or
brightness. Repainted, rotated or combined pictures are not found.

Copies have equal pixels, or near perceptual hashes (DCT, 64 bits) and near thumbnails: pages, charts and drawings have near
hashes and differ in what is drawn on them, so that a difference is measured against the picture's own contrast. Crops are
found by the hashes of the known picture's crops, and confirmed by the crop that fits best. Some copies of almost empty
pictures, such as a piece of sky, are not found.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import product
from typing import Generic, TypeVar

import imagehash
import numpy as np
from PIL import Image, ImageChops

from rewardlab.data.images import decode_image

THUMBNAIL_PX = 32
KEPT_PX = 128  # of a known picture, to crop from
CROP = 0.05  # of a side, at each side or not: the 16 crops whose hashes are known
STEPS = (0.02, 0.01, 0.005)  # of a side, by which a crop's edges are moved to fit
MOST_CROP = 0.1
BORDER_LEVELS = 24  # of 255, by which a plain border may differ from its corner: JPEG leaves traces
LEAST_INSIDE = 0.25  # of a picture's area, that is left within its border
MAIN_SHADES, LEAST_OTHERS = 3, 0.2  # a picture of many shades has so large a share of its pixels outside its 3 main ones of 32
MOST_GAIN, MOST_TONE_SHIFT = 2.0, 64.0  # of contrast, and of mean colour in levels of 255, between copies in other tones
GREY_LEVELS = 3.0  # mean spread of the three colours below which a picture is grey
_LUMINANCE = np.array([0.299, 0.587, 0.114], dtype=np.float32)

Owner = TypeVar("Owner")
Box = tuple[float, float, float, float]  # left, top, right, bottom; 0..1


@dataclass(frozen=True)
class ImageLimits:
    """When two pictures are the same.

    ``bits``: most bits of 64 that the hashes of one picture may differ in; ``change``: most mean difference of their thumbnails
    by their mean deviation from their own mean colour, which may differ by ``shift`` levels of 255; ``crop_change``: the same
    for a crop, which has more freedom to fit.
    """

    bits: int = 8
    change: float = 0.12
    shift: float = 16.0
    crop_change: float = 0.12


@dataclass(frozen=True)
class Picture:
    """The hash of an image's pixels, its perceptual hash as 8 bytes, its mean colour, and a small RGB copy minus that colour.

    ``views``: its mirror image, its content within a border, and that mirrored.
    """

    pixels: bytes
    bits: np.ndarray
    colour: np.ndarray
    small: np.ndarray
    views: tuple[Picture, ...] = ()

    @property
    def is_grey(self) -> bool:
        return float(np.ptp(self.small + self.colour, axis=2).mean()) <= GREY_LEVELS

    @property
    def luminance(self) -> np.ndarray:
        """Return the small copy in grey, [side, side, 1], 0..255."""
        grey: np.ndarray = (self.small + self.colour) @ _LUMINANCE[:, None]
        return grey

    @property
    def has_shades(self) -> bool:
        """Return whether it has many shades, unlike a drawing of a few colours."""
        shades = np.sort(np.bincount((self.luminance.ravel() / 8).astype(int).clip(0, 31), minlength=32))
        return float(shades[:-MAIN_SHADES].sum() / shades.sum()) >= LEAST_OTHERS

    def change_to(self, other: Picture) -> float:
        """Return the mean difference of the two, divided by the greater of their contrasts (at least one level)."""
        return _change(self.small, other.small)

    def is_near(self, other: Picture, limits: ImageLimits) -> bool:
        """Return whether the two are copies of one picture, without their hashes. If one of them is grey, the other's colours
        do not count."""
        if self.is_grey != other.is_grey:
            mine, theirs = self.luminance, other.luminance
            shift = abs(float(mine.mean() - theirs.mean()))
            return shift <= limits.shift and _change(mine - mine.mean(), theirs - theirs.mean()) <= limits.change
        shift = float(np.abs(self.colour - other.colour).max())
        if self.change_to(other) <= limits.change and shift <= limits.shift:
            return True
        return shift <= MOST_TONE_SHIFT and self._is_toned(other, limits) and self.has_shades and other.has_shades

    def _is_toned(self, other: Picture, limits: ImageLimits) -> bool:
        """Return whether the two are one picture in more or less contrast."""
        gain = float((self.small * other.small).sum()) / max(1.0, float((self.small**2).sum()))
        return 1 / MOST_GAIN <= gain <= MOST_GAIN and _change(gain * self.small, other.small) <= limits.change


def _change(first: np.ndarray, second: np.ndarray) -> float:
    contrast = max(1.0, float(np.abs(first).mean()), float(np.abs(second).mean()))
    return float(np.abs(first - second).mean()) / contrast


def _bits(image: Image.Image) -> np.ndarray:
    return np.packbits(imagehash.phash(image).hash.ravel())


def _thumbnail(image: Image.Image) -> tuple[np.ndarray, np.ndarray]:
    """Return (mean colour, small copy less the mean colour)."""
    small = np.asarray(image.resize((THUMBNAIL_PX, THUMBNAIL_PX)), dtype=np.float32)
    colour = small.mean((0, 1))
    return colour, small - colour


def picture_of(image: bytes, *, views: bool = False) -> Picture:
    """Return the picture of an image, with its views if ``views``. Raises MediaError."""
    decoded = decode_image(image)
    digest = hashlib.sha256(repr(decoded.size).encode() + decoded.tobytes()).digest()
    return Picture(digest, _bits(decoded), *_thumbnail(decoded), _views(decoded) if views else ())


def _views(image: Image.Image) -> tuple[Picture, ...]:
    small = image.copy()
    small.thumbnail((2 * KEPT_PX, 2 * KEPT_PX))
    others = [small.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
    if (inside := without_border(small)) is not None:
        others += [inside, inside.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
    return tuple(Picture(b"", _bits(other), *_thumbnail(other)) for other in others)


def without_border(image: Image.Image) -> Image.Image | None:
    """Return the content within a plain border of one colour, None without a border, or with too little content."""
    corner = Image.new("RGB", image.size, image.getpixel((0, 0)))
    differs = (
        ImageChops.difference(image.convert("RGB"), corner).convert("L").point(lambda level: 255 * (level > BORDER_LEVELS))
    )
    box = differs.getbbox()
    if box is None or box == (0, 0, *image.size):
        return None
    width, height = box[2] - box[0], box[3] - box[1]
    return image.crop(box) if width * height >= LEAST_INSIDE * image.width * image.height else None


def _cropped(image: Image.Image, box: Box) -> Image.Image:
    width, height = image.size
    return image.crop((round(box[0] * width), round(box[1] * height), round(box[2] * width), round(box[3] * height)))


CROPS: tuple[Box, ...] = tuple(
    (left, top, 1 - right, 1 - bottom)
    for left, top, right, bottom in product((0.0, CROP), repeat=4)
    if left or top or right or bottom
)


class PictureIndex(Generic[Owner]):
    """An index of pictures and their owners. With ``crops`` crops of them are found, too."""

    def __init__(self, limits: ImageLimits, *, crops: bool = False) -> None:
        self._limits, self._crops = limits, crops
        self._owners: dict[bytes, set[Owner]] = defaultdict(set)
        self._pictures: list[Picture] = []
        self._kept: list[Image.Image] = []  # with crops: to crop from
        self._bits = np.zeros((64, 1 + len(CROPS) * crops), dtype=np.uint64)  # by picture: its hash, and those of its crops

    def __len__(self) -> int:
        return len(self._pictures)

    def add(self, image: bytes, owner: Owner) -> Picture:
        """Raises MediaError."""
        picture = picture_of(image)
        self.put(picture, owner, image)
        return picture

    def put(self, picture: Picture, owner: Owner, image: bytes) -> None:
        """Add an image whose picture is known."""
        if picture.pixels not in self._owners:
            number = len(self._pictures)
            if number == len(self._bits):
                self._bits = np.concatenate([self._bits, np.zeros_like(self._bits)])
            self._pictures.append(replace(picture, views=()))
            self._bits[number, 0] = picture.bits.view(np.uint64)[0]
            if self._crops:
                small = decode_image(image)
                small.thumbnail((2 * KEPT_PX, 2 * KEPT_PX))
                self._kept.append(small)
                for place, box in enumerate(CROPS, start=1):
                    self._bits[number, place] = _bits(_cropped(small, box)).view(np.uint64)[0]
        self._owners[picture.pixels].add(owner)

    def find(self, query: Picture) -> dict[Owner, float]:
        """Return the owners of copies of this picture or of its views, and their similarity: 1 for equal pixels, else 1 -
        differing bits / 64, below 1."""
        if not self._pictures:
            return {}
        similarities = self._find(query)
        for view in query.views:
            for owner, similarity in self._find(view).items():
                similarities[owner] = max(similarity, similarities.get(owner, 0.0))
        return similarities

    def _find(self, query: Picture) -> dict[Owner, float]:
        similarities: dict[Owner, float] = {}
        distances = np.bitwise_count(self._bits[: len(self._pictures)] ^ query.bits.view(np.uint64)[0])
        for number in np.flatnonzero(distances.min(1) <= self._limits.bits):
            other, least = self._pictures[number], int(distances[number].min())
            same = other.pixels == query.pixels
            near = same or (distances[number, 0] <= self._limits.bits and query.is_near(other, self._limits))
            if near or (self._crops and self._is_crop(query, int(number), int(distances[number].argmin()))):
                similarities.update(dict.fromkeys(self._owners[other.pixels], 1.0 if same else min(1 - least / 64, 0.999)))
        return similarities

    def _is_crop(self, query: Picture, number: int, place: int) -> bool:
        """Return whether a crop of a known picture shows the same; the search starts at the crop with the nearest hash."""
        source = self._kept[number]

        def change(box: Box) -> tuple[float, float]:
            colour, small = _thumbnail(_cropped(source, box))
            return _change(query.small, small), float(np.abs(query.colour - colour).max())

        box: Box = (0.0, 0.0, 1.0, 1.0) if place == 0 else CROPS[place - 1]
        least, shift = change(box)
        if least > 6 * self._limits.crop_change:  # too far for any edge to mend
            return False
        for step in STEPS:
            for side, by in product(range(4), (step, -step)):
                shifted: Box = (*box[:side], box[side] + by, *box[side + 1 :])  # type: ignore[assignment]
                inside = all(0 <= edge <= MOST_CROP for edge in (shifted[0], shifted[1], 1 - shifted[2], 1 - shifted[3]))
                if inside and (fit := change(shifted))[0] < least:
                    box, (least, shift) = shifted, fit
        return least <= self._limits.crop_change and shift <= self._limits.shift
