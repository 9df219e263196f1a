"""Unsupported parameters of other APIs: those that would change the answer are refused, not ignored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rewardlab.serving.errors import UnsupportedParameterError

# Parameters without effect on an answer: user, storage and billing at OpenAI.
WITHOUT_EFFECT = frozenset(
    [
        "user",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
    ]
)
# Parameters of truncation: this server never truncates, and refuses texts that are too long.
CUTTING = ("truncate", "truncation_direction", "truncate_prompt_tokens", "max_chunks_per_doc", "max_tokens_per_doc")
# Values without effect, which clients send as defaults.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "normalize": (False,),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "priority": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "softmax": (False,),
    "stop": ([], ""),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_k": (-1, 0),
    "top_logprobs": (0,),
    "use_activation": (False,),
    "verbosity": ("medium",),
}


def refuse_unsupported(parameters: Mapping[str, Any] | None, *, without_effect: Collection[str] = ()) -> None:
    """Raise UnsupportedParameterError for the first parameter that would change the answer. ``without_effect`` are parameters
    that have none on this route."""
    for name, value in (parameters or {}).items():
        if name in WITHOUT_EFFECT or name in without_effect or value is None:
            continue
        if value not in NEUTRAL.get(name, ()):
            accepted = " or ".join(repr(neutral) for neutral in NEUTRAL.get(name, ()))
            cure = f"leave it out, or send {accepted}" if accepted else "leave it out"
            raise UnsupportedParameterError(f"the parameter {name!r:.80} is not supported here: {cure}", name)
