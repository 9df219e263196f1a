"""Which fields of a request a model accepts, as its refusals show."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from rewardlab.config.judge import MAX_COMPLETION_TOKENS, MAX_TOKENS, OPTIONAL_FIELDS

LOG = logging.getLogger(__name__)
# What servers say of a field, as against a value of it that is out of bounds, which asking without the field would hide.
_UNSUPPORTED = re.compile(
    r"unsupported|not support|n.t support|unrecogni[sz]ed|unknown|unexpected|not (?:permitted|allowed)|extra (?:inputs|fields)|"
    r"deprecated|only the default|cannot both be specified",
    re.IGNORECASE,
)


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
        wanted = {name: value for name, value in wanted.items() if value is not None or name not in OPTIONAL_FIELDS}
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
        optional = [name for name in named if name in OPTIONAL_FIELDS]
        return ["top_p"] if "both" in sentence and "top_p" in optional else optional  # of the two the temperature says more
