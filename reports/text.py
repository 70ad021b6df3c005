"""Hostile text made visible and harmless. Model output may hold control, bidirectional and stacked combining characters."""

from __future__ import annotations

import unicodedata

__all__ = ["clip", "code_span", "one_line", "visible"]

MAX_COMBINING = 3  # marks on one character; more of them pile up over other lines
_KEPT = "\n\t"
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # control, format (bidi, zero width), surrogates, unassigned, separators


def visible(text: str) -> str:
    """`text` with everything that does not show, or that changes how other text shows, as an escape."""
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    marks = 0
    for character in text:
        category = unicodedata.category(character)
        marks = marks + 1 if category.startswith("M") else 0
        hidden = (category in _HIDDEN and character not in _KEPT) or marks > MAX_COMBINING
        shown.append(character.encode("unicode_escape").decode("ascii") if hidden else character)
    return "".join(shown)


def clip(text: str, limit: int) -> str:
    """At most `limit` characters, and how many more there are."""
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit} more characters)"


def one_line(text: str, limit: int = 200) -> str:
    return clip(" ".join(text.split()), limit)


def code_span(text: str, limit: int = 200) -> str:
    """A Markdown code span on one line of a table: nothing in it is markup, a link or a mention."""
    plain = one_line(visible(text), limit).replace("|", "\\|")
    fence = "`" * (_longest_run(plain, "`") + 1)
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{pad}{plain}{pad}{fence}" if plain else ""


def _longest_run(text: str, character: str) -> int:
    longest = run = 0
    for item in text:
        run = run + 1 if item == character else 0
        longest = max(longest, run)
    return longest
