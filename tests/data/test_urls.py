"""Which URLs may be fetched."""

from __future__ import annotations

import pytest

from rewardlab.data.urls import AllowedUrls
from rewardlab.errors import ConfigError


@pytest.mark.parametrize(
    "beginning",
    [
        "https://images.host",
        "https://images.host/?/",
        "https://images.host/#/",
        "https://user:word@images.host/",
        "https://@images.host/",
        "https://images.host:x/",
        "https://images.host:99999/",
        "https://[::1/",
        "https:///set/",
        "ftp://images.host/",
    ],
)
def test_a_beginning_that_is_none(beginning: str) -> None:
    with pytest.raises(ConfigError, match="expected a URL that ends with /"):
        AllowedUrls([beginning])


def test_no_path_leads_up() -> None:
    """By either slash, however often encoded, with parameters, with bytes that are no UTF-8 or characters that stand for dots;
    and no URL has credentials."""
    allowed = AllowedUrls(["https://h/set/", "http://[::1]:8080/"])
    assert allowed.allows("https://h:443/set/a..b.png")
    assert allowed.allows("http://[::1]:8080/a.png")
    more = ("..;/x", "..;a=1/x", "%c0%ae%c0%ae/x", "%25252e%25252e/x", "\u2025/x", "%e2%80%a5/x", "%2525252525252525252e./x")
    for up in ("../x", "%2e%2e/x", "..%5cx", "..%255Cx", "a%5C..%5C..%5Cx", "..\\x", *more):
        assert not allowed.allows(f"https://h/set/{up}")
    assert not allowed.allows("https://[::1/a.png")
    assert not any(allowed.allows(f"https://{user}@h/set/a.png") for user in ("", "ann", ":word", "ann:word"))
    assert allowed.allows("https://h/set/%C3%A4;v=2/a%20b.png")
