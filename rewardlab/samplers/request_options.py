"""How an OpenAI-compatible endpoint is asked beside what is sampled: further fields, which of ours it takes, and how fast."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rewardlab.errors import ConfigError

LOG = logging.getLogger(__name__)
MAX_TOKENS, MAX_COMPLETION_TOKENS = "max_tokens", "max_completion_tokens"
EXAMPLE = '{"verbosity": "low"}'
MAX_TOKENS_FIELDS = ("auto", MAX_TOKENS, MAX_COMPLETION_TOKENS)
OPTIONAL = ("temperature", "top_p", "seed")  # fields without which an endpoint can be asked
_OTHERS_OPTION = {"temperature": "--temperature", "top_p": "--top-p", MAX_TOKENS: "--max-tokens", "seed": "--seed"}
_OTHERS_OPTION |= {"model": "--judge", "messages": "--template", "n": "--votes", "reasoning_effort": "--reasoning-effort"}
_OTHERS_OPTION |= {MAX_COMPLETION_TOKENS: "--max-tokens"}
# What servers say of a field, as against a value of it that is out of bounds, which asking without the field would hide.
_UNSUPPORTED = re.compile(
    r"unsupported|not support|n.t support|unrecogni[sz]ed|unknown|unexpected|not (?:permitted|allowed)|extra (?:inputs|fields)|"
    r"deprecated|only the default|cannot both be specified",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class RequestOptions:
    """How an ``openai:`` judge is asked.

    ``concurrency`` requests are in flight at a time (None: 32, of a server 256), each within ``deadline_s`` seconds, retries
    included (None: 120). ``reasoning_effort`` is that of models that reason before they answer. ``body`` are further fields of
    every request; null there leaves one of :data:`OPTIONAL` out. ``max_tokens_field`` names the bound of an answer; "auto" is
    ``max_tokens``, and what else a server asks for when it refuses that. Raise ConfigError for what cannot be.
    """

    concurrency: int | None = None
    deadline_s: float | None = None
    reasoning_effort: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    max_tokens_field: str = "auto"

    def __post_init__(self) -> None:
        if self.max_tokens_field not in MAX_TOKENS_FIELDS:
            raise ConfigError(f"max_tokens_field {self.max_tokens_field!r}: expected one of {', '.join(MAX_TOKENS_FIELDS)}")
        if (self.concurrency is not None and self.concurrency < 1) or (self.deadline_s is not None and self.deadline_s <= 0):
            raise ConfigError("expected a concurrency of 1 or more, and a deadline of more than 0 seconds")
        for name, value in self.body.items():
            if name in _OTHERS_OPTION and not (name in OPTIONAL and value is None):
                raise ConfigError(f"the body sets {name}, which is {_OTHERS_OPTION[name]}; leave it out of the body")
        if self.body.get("stream"):
            raise ConfigError("the body asks for a stream of pieces, and answers are read whole; leave stream out of it")

    @property
    def identity(self) -> str:
        """Return what of it decides the answers, as a text; "" where nothing does."""
        effort = [f"reasoning_effort={self.reasoning_effort}"] if self.reasoning_effort else []
        body = [f"body={json.dumps(self.body, sort_keys=True)}"] if self.body else []
        return " ".join(effort + body)

    @property
    def left_out(self) -> frozenset[str]:
        """Return the fields of :data:`OPTIONAL` that the body leaves out."""
        return nulls_of(self.body)

    @property
    def fields(self) -> dict[str, Any]:
        """Return the further fields of every request."""
        effort = {"reasoning_effort": self.reasoning_effort} if self.reasoning_effort else {}
        return {**effort, **self.body}


NOTHING_SAID = RequestOptions()


def nulls_of(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the fields of :data:`OPTIONAL` that are null in a body: requests go without."""
    return frozenset(name for name in OPTIONAL if name in body and body[name] is None)


def parse_body(text: str) -> dict[str, Any]:
    """Return the fields of a JSON object. Raise ConfigError for anything else; "" is none."""
    if not text:
        return {}
    try:
        body = json.loads(text)
    except ValueError as error:
        raise ConfigError(f'--body {text}: no JSON ({error}); expected an object such as \'{{"verbosity": "low"}}\'') from error
    if not isinstance(body, dict):
        raise ConfigError(f'--body {text}: expected a JSON object such as \'{{"verbosity": "low"}}\'')
    return body


class FieldFit:
    """Which of our fields a model takes, as its refusals teach. Shared by all endpoints of one model.

    Newer models of some providers take ``max_completion_tokens`` in place of ``max_tokens``, and no temperature.
    """

    def __init__(self, max_tokens_field: str = "auto") -> None:
        self._is_auto = max_tokens_field == "auto"
        self._max_tokens_field = MAX_TOKENS if self._is_auto else max_tokens_field
        self._left_out: set[str] = set()

    @property
    def left_out(self) -> frozenset[str]:
        """Return the fields that requests go without because the model refuses them."""
        return frozenset(self._left_out)

    def fit(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields as this model takes them; those that are None are left out."""
        wanted = {name: value for name, value in fields.items() if name not in self._left_out}
        wanted = {name: value for name, value in wanted.items() if value is not None or name not in OPTIONAL}
        return {self._max_tokens_field if name == MAX_TOKENS else name: value for name, value in wanted.items()}

    def learn(self, sent: Mapping[str, Any], sentence: str) -> None:
        """Take what a refusal says of the fields that were sent; a sentence that is of no such field changes nothing."""
        if not _UNSUPPORTED.search(sentence):
            return
        named = [name for name in sent if re.search(rf"\b{re.escape(name)}\b", sentence)]
        is_renamed = MAX_COMPLETION_TOKENS in sentence or not re.search(r"\d", sentence)  # a number is a bound of its value
        if MAX_TOKENS in named and is_renamed and self._is_auto and self._max_tokens_field == MAX_TOKENS:
            self._max_tokens_field = MAX_COMPLETION_TOKENS
            LOG.warning("max_tokens is refused (%s); %s from now on", sentence, MAX_COMPLETION_TOKENS)
            return
        optional = [name for name in named if name in OPTIONAL and name not in self._left_out]
        if "both" in sentence and "top_p" in optional:  # of the two the temperature says more
            optional = ["top_p"]
        for name in optional:
            self._left_out.add(name)
            LOG.warning("%s is refused (%s); asked without it from now on", name, sentence)
