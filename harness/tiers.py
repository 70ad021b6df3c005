"""Tiers of cases: each run takes the chosen tier and those before it."""

from __future__ import annotations

import pytest

__all__ = ["TIERS", "is_selected"]

TIERS = ("default", "real", "nightly")


def is_selected(item: pytest.Item, chosen: str) -> bool:
    """Whether `--tier=chosen` runs the item; one without the marker `tier(name)` is in the default tier."""
    marker = item.get_closest_marker("tier")
    return TIERS.index(marker.args[0] if marker else "default") <= TIERS.index(chosen)
