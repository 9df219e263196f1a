"""A comparison as a notebook shows it: the images, the question, both responses, the votes of either order with their reasons.

All text is escaped: a response may be hostile.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from rewardlab.data.images import thumbnail, to_data_url
from rewardlab.errors import MediaError
from rewardlab.types import BOTH_ORDERS, IMAGE_MARK, VIDEO_MARK, Order

if TYPE_CHECKING:
    from rewardlab.judging.comparison import Ballot, ComparisonResult

_ORDER_NAMES = {Order.GIVEN: "response 0 shown first", Order.SWAPPED: "response 1 shown first"}
_BOX = "border:1px solid #8886;border-radius:6px;padding:.5em .7em;margin:.3em 0;white-space:pre-wrap;overflow-wrap:anywhere"


def comparison_html(result: ComparisonResult) -> str:
    """Return the comparison as a fragment of HTML that refers to nothing outside itself."""
    pair = result.pair
    parts = [f"<b>{_text(result.summary())}</b>", _images(pair.images), f"<div style='{_BOX}'>{_text(pair.question)}</div>"]
    for n, response in enumerate(pair.responses):
        mark = "outline:2px solid #2a7;" if result.winner == n else ""
        parts.append(
            f"<div style='{mark}{_BOX}'><b>response {n}</b>{' · wins' if result.winner == n else ''}\n{_text(response)}"
            f"{_images(pair.response_images[n])}</div>"
        )
    for order in BOTH_ORDERS:
        if votes := [vote for vote in result.votes if vote.order is order]:
            parts.append(f"<b>{_ORDER_NAMES[order]}</b>{''.join(map(_vote, votes))}")
    return f"<div style='max-width:60em;font-family:sans-serif'>{''.join(parts)}</div>"


def _text(text: str) -> str:
    return escape(text.replace(IMAGE_MARK, "[image]").replace(VIDEO_MARK, "[video]"))


def _images(images: tuple[bytes, ...]) -> str:
    return "".join(f"<div>{_image(data)}</div>" for data in images)


def _image(data: bytes) -> str:
    try:
        return f"<img alt='' style='max-width:360px' src='{escape(to_data_url(thumbnail(data)))}'>"
    except (MediaError, OSError):  # a pair that was made by hand may hold anything
        return "[an image that cannot be read]"


def _vote(vote: Ballot) -> str:
    verdict = f"for response {vote.winner}" if vote.winner is not None else f"no verdict: {vote.status.value}"
    who = f" · {_text(vote.member)}" if vote.member else ""
    reasoning = _text(vote.reasoning or vote.error) or "(nothing)"
    body = f"<summary>{_text(verdict)}{who}</summary><div style='{_BOX}'>{reasoning}</div>"
    return f"<details style='margin:.3em 0'>{body}</details>"
