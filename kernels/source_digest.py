"""What the native libraries are built from, so that a library of older sources is noticed and not used."""

from __future__ import annotations

import hashlib
from pathlib import Path

SOURCE_DIR = Path(__file__).with_name("csrc")


def source_digest() -> str:
    """A hash over the names and contents of `csrc/`."""
    digest = hashlib.sha256()
    for path in sorted(SOURCE_DIR.glob("*.*")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
