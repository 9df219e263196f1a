"""Numbers of weights and sizes on disk in words."""

from __future__ import annotations

GB = 1e9  # disks are sold by it


def weights_text(number: float) -> str:
    """Return a number of weights: "8.29 B", "74.4 M", "74.4 k"."""
    for unit, name in ((1e9, "B"), (1e6, "M")):
        if number >= 0.1 * unit:
            return f"{number / unit:.2f} {name}" if unit == 1e9 else f"{number / unit:.3g} {name}"
    return f"{number / 1e3:.3g} k"


def hours_text(seconds: float) -> str:
    """Return an estimate of a duration: "about 31 h", "about 2.4 h", "about 12 min", "under a minute"."""
    if seconds < 60:
        return "under a minute"
    if seconds < 3600:
        return f"about {seconds / 60:.0f} min"
    return f"about {seconds / 3600:.1f} h" if seconds < 36_000 else f"about {seconds / 3600:,.0f} h"


def size_text(size: float) -> str:
    """Return bytes on disk: "133 GB", "16.6 GB", "0.9 MB"."""
    if size >= 0.1 * GB:
        return f"{size / GB:.0f} GB" if size >= 100 * GB else f"{size / GB:.1f} GB"
    return f"{size / 1e6:.1f} MB"
