"""Which settings make a run the run it is, and which may be others when it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Changes = Mapping[str, tuple[Any, Any]]  # dotted key -> its value before, and now

# Where a run finds its endpoint and what it prints: not what it is. Another value continues the same run.
_SURROUNDINGS = {"base_url", "api_key_env", "concurrency", "deadline_s", "report_to", "logging_steps", "save_total_limit"}
_SURROUNDINGS |= {"health", "devices", "data_workers", "gradient_checkpointing"}
_SURROUNDINGS |= {"dtype"}  # how the result is written: what learns is float32 whatever it says
# How a batch is read, not what is in it: no draw depends on these but LoRA's dropout, and sums are rounded in another order.
_ROUNDING = {"attn_implementation", "micro_batch_size", "micro_batch_tokens", "sampling_batch_size", "judge_batch_size"}
_JUDGES = {"judge", "other_judges", "signs.second_judge"}  # "openai:MODEL@URL" among them
_ROUNDING |= {"evaluation.batch_size"}  # `batch_size` alone is the optimizer step's


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys whose values differ between two resolved configs, with both values; None where one has no such
    key."""
    changes: dict[str, tuple[Any, Any]] = {}
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changes |= changed_settings(old, new, f"{prefix}{name}.")
        elif old != new:
            changes[f"{prefix}{name}"] = (old, new)
    return changes


def decides(key: str, before: Any, now: Any) -> bool:
    """Return whether the setting of a dotted key, with another value now, decides what a run computes. Of a judge that an
    endpoint serves the model does, and its address does not."""
    if {key, *key.split(".")} & (_SURROUNDINGS | _ROUNDING):
        return False
    return key not in _JUDGES or _without_addresses(before) != _without_addresses(now)


def _without_addresses(judges: Any) -> list[str]:
    """Return one judge, several, or none, by their names before the ``@`` of an address."""
    names = [judges] if isinstance(judges, str) else judges or []
    return [name.partition("@http")[0] for name in names]


def text_of_changes(changes: Changes) -> str:
    """Return what is said of settings that a run goes on with, none of which decides what it computes."""
    each = ", ".join(f"{key} {_text(now)} (was {_text(before)})" for key, (before, now) in changes.items())
    rounded = any(key in _ROUNDING for key in changes)
    return f"goes on with {each}" + ("; from here on its numbers differ from the same run's by rounding" if rounded else "")


def _text(value: Any) -> str:
    return "null" if value is None else str(value)
