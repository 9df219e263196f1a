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

    Newer models of some providers take ``max_completion_tokens`` in place of ``max_tokens``, and no temperature. What a
    refusal says is tried first (:meth:`after`) and kept (:meth:`adopt`) once a request so made is answered: a server that
    refuses a prompt may repeat the prompt, which may name anything.
    """

    def __init__(self, max_tokens_field: str = "auto", refusals: Mapping[str, str] | None = None) -> None:
        """``refusals`` are what was said of fields that are refused, by their names."""
        self._is_auto = max_tokens_field == "auto"
        self._given = max_tokens_field
        self._refusals = dict(refusals or {})

    @property
    def left_out(self) -> frozenset[str]:
        """Return the fields that requests go without because the model refuses them."""
        return frozenset(self._refusals) - {MAX_TOKENS}

    @property
    def _max_tokens_field(self) -> str:
        if not self._is_auto:
            return self._given
        return MAX_COMPLETION_TOKENS if MAX_TOKENS in self._refusals else MAX_TOKENS

    def fit(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields as this model takes them; those that are None are left out."""
        left_out = self.left_out
        wanted = {name: value for name, value in fields.items() if name not in left_out}
        wanted = {name: value for name, value in wanted.items() if value is not None or name not in OPTIONAL}
        return {self._max_tokens_field if name == MAX_TOKENS else name: value for name, value in wanted.items()}

    def after(self, sent: Mapping[str, Any], sentence: str) -> FieldFit:
        """Return the fit that a refusal of the fields sent asks for; one that is of no such field asks for this one."""
        names = self._named(sent, sentence) if _UNSUPPORTED.search(sentence) else []
        return FieldFit(self._given, self._refusals | dict.fromkeys(names, sentence)) if names else self

    def adopt(self, fit: FieldFit) -> None:
        """Make all further requests as ``fit`` does, by which one was answered."""
        for name in fit._refusals.keys() - self._refusals.keys():
            now = f"{MAX_COMPLETION_TOKENS} from now on" if name == MAX_TOKENS else "asked without it from now on"
            LOG.warning("%s is refused (%s); %s", name, fit._refusals[name], now)
        self._refusals |= fit._refusals

    def _named(self, sent: Mapping[str, Any], sentence: str) -> list[str]:
        """Return the fields, of those sent, that a refusal is of and that can be renamed or left out."""
        named = [name for name in sent if re.search(rf"\b{re.escape(name)}\b", sentence)]
        is_renamed = MAX_COMPLETION_TOKENS in sentence or not re.search(r"\d", sentence)  # a number is a bound of its value
        if MAX_TOKENS in named and is_renamed and self._max_tokens_field == MAX_TOKENS and self._is_auto:
            return [MAX_TOKENS]
        optional = [name for name in named if name in OPTIONAL]
        return ["top_p"] if "both" in sentence and "top_p" in optional else optional  # of the two the temperature says more
