"""Evidence of a failure as titled blocks of text, whatever the exception put into it.

A mapping of labels to values (candidates of both sides) becomes blocks that stand side by side, a list of flat mappings becomes
aligned columns, everything else is indented JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from reports.text import clip

__all__ = ["Block", "evidence_blocks", "evidence_facts"]

MAX_BLOCK = 4_000  # characters
MAX_FACT = 120
_FIRST = ("context", "expected", "actual", "candidates")


@dataclass(frozen=True)
class Block:
    title: str
    columns: list[tuple[str, str]]  # (label, text); one of them without a label, or several side by side
    is_main: bool  # one of those that people look at first


def evidence_facts(evidence: dict[str, Any]) -> list[tuple[str, str]]:
    """What fits on a line: case, request, position."""
    return [(name, str(value)) for name, value in evidence.items() if _is_fact(value)]


def evidence_blocks(evidence: dict[str, Any]) -> list[Block]:
    names = [name for name, value in evidence.items() if not _is_fact(value)]
    names.sort(key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    if {"expected", "actual"} <= set(names):
        names.remove("actual")
    blocks = []
    for name in names:
        value = evidence[name]
        if name == "expected" and not _is_fact(evidence.get("actual")):
            blocks.append(Block("", [(side, _text(evidence.get(side))) for side in ("expected", "actual")], True))
        elif isinstance(value, dict) and 1 < len(value) <= 3 and all(isinstance(item, list | dict) for item in value.values()):
            blocks.append(Block(name, [(label, _text(item)) for label, item in value.items()], name in _FIRST))
        else:
            blocks.append(Block(name, [("", _text(value))], name in _FIRST))
    return blocks


def _is_fact(value: Any) -> bool:
    return (
        value is None
        or isinstance(value, int | float)
        or (isinstance(value, str) and len(value) <= MAX_FACT and "\n" not in value)
    )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return clip(value, MAX_BLOCK)
    if isinstance(value, list) and value and all(isinstance(item, dict) and _is_flat(item) for item in value):
        return clip(_columns(value), MAX_BLOCK)
    if isinstance(value, list) and all(not isinstance(item, list | dict) for item in value):
        return clip(" ".join(map(str, value)), MAX_BLOCK)
    return clip(json.dumps(value, indent=1, ensure_ascii=False), MAX_BLOCK)


def _is_flat(item: dict[str, Any]) -> bool:
    return not any(isinstance(value, list | dict) for value in item.values())


def _columns(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names] + [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [min(max(len(line[column]) for line in cells), 40) for column in range(len(names))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6f}"
    return repr(value) if isinstance(value, str) else str(value)
