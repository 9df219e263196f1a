"""Pairs with other images than their own, which show whether a judge looks at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rewardlab.data.images import blank_like
from rewardlab.errors import DataError
from rewardlab.types import PreferencePair


def with_blank_images(pairs: Sequence[PreferencePair]) -> list[PreferencePair]:
    """Replace every image by a grey one of its size: a judge that still wins reads the text, not the image."""

    def blank(images: Sequence[bytes]) -> tuple[bytes, ...]:
        return tuple(map(blank_like, images))

    return [
        replace(
            pair, images=blank(pair.images), response_images=(blank(pair.response_images[0]), blank(pair.response_images[1]))
        )
        for pair in pairs
    ]


def with_other_images(pairs: Sequence[PreferencePair]) -> list[PreferencePair]:
    """Return every pair shown the images of another: the next one from half-way down the list on whose images are not its own.

    Plausible pictures that have nothing to do with the question, as many as its own; those within responses stay. Raises
    DataError where no other pair shows as many that differ.
    """

    def other(n: int) -> tuple[bytes, ...]:
        for step in range(len(pairs)):
            images = pairs[(n + len(pairs) // 2 + step) % len(pairs)].images
            if len(images) == len(pairs[n].images) and images != pairs[n].images:
                return images
        raise DataError("no pair has images other than its neighbours'; there is no other image to show")

    return [replace(pair, images=other(n)) if pair.images else pair for n, pair in enumerate(pairs)]
