"""The zoo's own checkpoints, which come with Lockstep: a directory each, with a manifest of hashes and figures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.checkpoint import shipped_zoo
from engine.errors import CheckpointError, nearest_hint
from harness.zoo.catalog import CATALOG
from harness.zoo.download import ZooError
from harness.zoo.writer import write_json

__all__ = ["CARD", "MANIFEST", "damage", "read_manifest", "sha256_of", "shipped_path", "write_manifest"]

MANIFEST = "manifest.json"
CARD = "README.md"


def shipped_path(name: str) -> Path:
    """The directory of `name`, with or without `zoo:`, its hashes checked.

    Raises `CheckpointError` with the nearest name for an unknown one, `ZooError` for files that are not those of its manifest.
    """
    name = name.removeprefix("zoo:")
    known = shipped_zoo()
    if name not in known:
        raise CheckpointError(f"there is no model {name!r} in the zoo.{nearest_hint(name, [*known, *CATALOG])}")
    problem = damage(known[name])
    if problem is not None:
        raise ZooError(f"zoo:{name} is damaged: {problem}. Restore it from the repository, or run: lockstep zoo train {name}")
    return known[name]


def damage(directory: Path) -> str | None:
    """None if the files are those of the manifest; else what is wrong."""
    try:
        files: Mapping[str, str] = read_manifest(directory)["sha256"]
        for name, expected in files.items():
            found = sha256_of(directory / name)
            if found != expected:
                return f"{name} has the sha256 {found}, expected {expected}"
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} cannot be read ({error!r})"
    return None


def read_manifest(directory: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    return manifest


def write_manifest(directory: Path, facts: Mapping[str, Any]) -> None:
    """`facts`, with the hashes of all files but the manifest and the card, which may be worded anew."""
    files = sorted(path for path in directory.iterdir() if path.name not in (MANIFEST, CARD))
    write_json(directory / MANIFEST, {**facts, "sha256": {path.name: sha256_of(path) for path in files}})


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
