"""The limits of a server: on one request, one key, and all requests together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

from rewardlab.errors import ConfigError, InputError
from rewardlab.processes import memory_here


class LimitError(InputError):
    """A request exceeds a limit of the server; the sentence has both numbers."""


def _bound(default: float, words: str, *, least: float | None = None, most: float = math.inf) -> Any:
    """Return a field with its bounds; without ``least`` the number is above 0."""
    return field(default=default, metadata={"words": words, "least": least, "most": most})


@dataclass(frozen=True)
class Limits:
    """All limits, by their names in ``--limit NAME=NUMBER``; :meth:`described` explains each."""

    timeout: float = _bound(600.0, "seconds to judge a framework's group; beyond it the request gets 504", least=1)
    group_timeout: float = _bound(60.0, "seconds that responses wait for the others of their group", least=0.1)
    engine_timeout: float = _bound(600.0, "seconds of one call of the engine, after which it is restarted", least=0.1)
    notice: float = _bound(5.0, "seconds after SIGTERM in which /ready is 503 and requests are still accepted", least=0)
    drain: float = _bound(90.0, "seconds after notice to finish accepted requests; the rest get 503", least=0)
    queue: int = _bound(1024, "pairs that wait; beyond it requests get 429")
    rate: float = _bound(math.inf, "requests a minute of a key whose line in --keys sets no per_minute", least=0.1)
    upload_bytes: int = _bound(1_000_000_000, "bytes of the uploads that are kept for each key")
    check_rate: float = _bound(
        0.0,
        "fraction of the groups with images that --reward-log holds with one comparison and its images, for `rewardlab signs "
        "--judge`",
        least=0,
        most=1,
    )

    body_bytes: int = _bound(100_000_000, "bytes of the body of an upload")
    json_bytes: int = _bound(32_000_000, "bytes of any other body")
    json_values: int = _bound(250_000, "commas and opening brackets of a body, which bound the values in it")
    json_depth: int = _bound(64, "nesting depth of lists and objects")
    characters: int = _bound(400_000, "characters of one text")
    items: int = _bound(1024, "entries of a list or an object: a batch, samples, documents; numbers alone may be more")
    responses: int = _bound(128, "responses to one question that are compared with each other")
    images: int = _bound(16, "images of one question or chat")
    pixels: int = _bound(50_000_000, "pixels of an image")
    frame_pixels: int = _bound(9_000_000, "pixels of a frame of a video")
    video_seconds: float = _bound(120.0, "CPU seconds for decoding a video")
    decoding_bytes: int = _bound(
        400_000_000,
        "bytes of memory for images being decoded, as much for those that wait and for those that are fetched, a quarter for "
        "small ones, and the same for videos",
    )
    comparisons: int = _bound(65_536, "comparisons in one request")
    samples: int = _bound(262_144, "votes for all comparisons of a request")
    completions: int = _bound(64, "completions of a chat (n)")
    key_comparisons: int = _bound(262_144, "comparisons in all requests of a key at a time")
    held_bytes: int = _bound(
        256_000_000, "bytes of bodies and media of all requests; default: at least a quarter of the memory"
    )
    idle_seconds: int = _bound(75, "seconds that an idle connection is kept open")

    @staticmethod
    def of(settings: Iterable[str]) -> Limits:
        """Return the limits with some changed by ``NAME=NUMBER``. Raise ConfigError for another name or number, for a repeated
        name, and for limits under which a request of the largest size could never be admitted."""
        known, given = {one.name: one for one in fields(Limits)}, dict[str, Any]()
        for setting in settings:
            name, _, text = setting.partition("=")
            name = name.replace("-", "_")
            if name not in known:
                raise ConfigError(f"--limit {setting}: expected NAME=NUMBER with one of {', '.join(known)}")
            if name in given:
                raise ConfigError(f"--limit {name} is given twice; give it once")
            given[name] = _number(setting, text, known[name])
        given.setdefault("held_bytes", max(Limits().held_bytes, memory_here() // 4))
        limits = replace(Limits(), **given)
        for whole, least, what in (
            ("key_comparisons", limits.comparisons, "comparisons, those of one request"),
            ("held_bytes", 2 * limits.body_bytes, "twice body_bytes, for a key alone holds half"),
            ("held_bytes", 2 * limits.json_bytes, "twice json_bytes, for a key alone holds half"),
        ):
            if getattr(limits, whole) < least:
                raise ConfigError(f"--limit {whole} is {getattr(limits, whole):,}; expected {least:,} or more ({what})")
        return limits

    @staticmethod
    def described() -> list[tuple[str, float, str]]:
        """Return (name, default, description) of each."""
        return [(one.name, one.default, one.metadata["words"]) for one in fields(Limits)]  # type: ignore[misc]

    def check_responses(self, number: int) -> None:
        _check(number, self.responses, "responses to one question", "responses")

    def check_images(self, number: int) -> None:
        _check(number, self.images, "images", "images")

    def check_comparisons(self, comparisons: int, votes: int) -> None:
        """Raise LimitError for too many comparisons of a request, or too many votes on all of them."""
        _check(comparisons, self.comparisons, "comparisons", "comparisons")
        _check(votes, self.samples, "votes", "samples")

    def check_completion(self, number: int) -> None:
        """Raise LimitError for too many completions of a chat."""
        _check(number, self.completions, "completions (n)", "completions")


def _check(number: int, most: float, what: str, name: str) -> None:
    if number > most:
        raise LimitError(f"{number:,} {what} in one request; this server takes at most {most:,} (its --limit {name})")


def _number(setting: str, text: str, bound: Field[Any]) -> float:
    whole, least, most = bound.type == "int", bound.metadata["least"], bound.metadata["most"]
    try:
        number = int(text) if whole else float(text)
    except ValueError:
        number = math.nan
    if not (number > 0 if least is None else number >= least) or not number <= most or math.isinf(number):
        expected = "number above 0" if least is None else f"number from {least:g}" + (f" to {most:g}" if most == 1 else "")
        raise ConfigError(f"--limit {setting}: expected a {'whole ' if whole else ''}{expected}")
    return number


LIMITS = tuple(bound.name for bound in fields(Limits))
