"""Checks of the options that several methods have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.options import is_int

__all__ = ["model_option", "positive_option"]


def model_option(method: str, options: Mapping[str, Any]) -> str:
    """The drafter's checkpoint; `ValueError` if it is not named."""
    model = options.get("model")
    if not isinstance(model, str) or not model:
        raise ValueError(f"speculative_config for {method!r} needs a model: a directory, a Hugging Face id or a zoo: name.")
    return model


def positive_option(options: Mapping[str, Any], name: str) -> int | None:
    value = options.get(name)
    if value is not None and (not is_int(value) or value < 1):
        raise ValueError(f"speculative_config: {name} must be an integer of at least 1, got {value!r}.")
    return value
