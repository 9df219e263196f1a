"""Digests of images that are remembered: those of the bytes, each computed once, within a bound."""

from __future__ import annotations

import hashlib

import pytest

from rewardlab.serving import jobs
from rewardlab.serving.jobs import ImageDigests


def test_digests_are_remembered_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[bytes] = []
    sha256 = hashlib.sha256

    def counted(data: bytes) -> object:
        computed.append(data)
        return sha256(data)

    monkeypatch.setattr(jobs.hashlib, "sha256", counted)
    digests, images = ImageDigests(250), [bytes([n]) * 100 for n in range(3)]
    for image in (images[0], images[0], images[1], images[0], images[2], images[0], images[1]):
        assert digests.of(image) == sha256(image).digest()
    assert computed == [images[0], images[1], images[2], images[1]]  # the second gave way to the third


def test_an_image_beyond_the_bound_is_not_held() -> None:
    digests = ImageDigests(10)
    for n in range(50):
        image = bytes([n]) * 100  # takes the place, and the id, of the one before
        assert digests.of(image) == hashlib.sha256(image).digest()
