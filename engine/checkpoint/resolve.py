"""From what a user writes as a model to a checkpoint on disk."""

from __future__ import annotations

import os
import re
from pathlib import Path

from engine.checkpoint.gguf import GgufCheckpoint
from engine.checkpoint.safetensors import SafetensorsCheckpoint
from engine.checkpoint.weights import Checkpoint
from engine.errors import CheckpointError, nearest_hint

__all__ = ["cache_dir", "open_checkpoint", "resolve_model", "shipped_zoo", "zoo_names"]

FETCHED_ZOO = ("smollm2-135m",)  # the harness's catalog, which tests hold equal to this
SHIPPED_ZOO = Path(__file__).resolve().parents[2] / "harness" / "zoo" / "checkpoints"  # data that comes with this package
ZOO_PREFIX = "zoo:"
HUB_FILES = ("*.safetensors", "*.json", "tokenizer.model", "merges.txt", "vocab.txt", "*.jinja")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def shipped_zoo() -> dict[str, Path]:
    """The checkpoints that come with Lockstep: name -> directory."""
    return {path.parent.name: path.parent for path in sorted(SHIPPED_ZOO.glob("*/config.json"))}


def zoo_names() -> tuple[str, ...]:
    """What may follow `zoo:`."""
    return (*shipped_zoo(), *FETCHED_ZOO)


def cache_dir() -> Path:
    """Where checkpoints that Lockstep makes are kept: `LOCKSTEP_CACHE`, or `~/.cache/lockstep`."""
    configured = os.environ.get("LOCKSTEP_CACHE")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "lockstep"


def resolve_model(model: str) -> Path:
    """The directory or GGUF file of `model`, fetched from the hub if it is a hub id.

    `model` is a directory, a file ending in `.gguf`, `zoo:NAME` (made by `lockstep zoo fetch NAME`) or a Hugging Face id
    (`HF_HUB_OFFLINE=1` restricts these to what the hub's cache has). Raises `CheckpointError` with what to do instead.
    """
    if model.startswith(ZOO_PREFIX):
        return _zoo_path(model.removeprefix(ZOO_PREFIX))
    path = Path(model).expanduser()
    if model and path.is_dir():  # "" would be the current directory
        return path
    is_gguf = path.suffix.lower() == ".gguf"
    if path.is_file():
        if is_gguf:
            return path
        raise CheckpointError(f"{model}: is a file. A model is a directory of safetensors, a .gguf file, zoo:NAME or a hub id")
    if is_gguf or not HUB_ID.fullmatch(model):
        raise CheckpointError(
            f"{model!r}: there is no such directory or file. A model is a directory with safetensors, a .gguf file, "
            f"zoo:NAME (known: {', '.join(zoo_names())}) or a Hugging Face id like 'Qwen/Qwen3-0.6B'"
        )
    return _fetch_from_hub(model)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a directory or a GGUF file that `resolve_model` gave. Raises `CheckpointError` for whatever is wrong with it."""
    path = Path(path)
    if path.suffix.lower() == ".gguf" and not path.is_dir():
        return GgufCheckpoint(path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: there is no such directory or .gguf file")
    return SafetensorsCheckpoint(path)


def _zoo_path(name: str) -> Path:
    shipped = shipped_zoo().get(name)
    if shipped is not None:
        return shipped
    path = cache_dir() / "zoo" / name
    if re.fullmatch(r"[\w.-]+", name) and (path / "config.json").exists():
        return path
    if name not in zoo_names():
        raise CheckpointError(f"{ZOO_PREFIX}{name}: there is no such model in the zoo.{nearest_hint(name, zoo_names())}")
    raise CheckpointError(f"{ZOO_PREFIX}{name} is not in {path.parent}. Run: lockstep zoo fetch {name}")


def _fetch_from_hub(model: str) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        return Path(huggingface_hub.snapshot_download(model, allow_patterns=list(HUB_FILES)))
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        refused = isinstance(error, HfHubHTTPError) and not isinstance(error, LocalEntryNotFoundError)
        reason = "the hub refused it" if refused else "the hub cannot be reached, and its cache does not have it"
        raise CheckpointError(
            f"{model!r} is neither a directory nor a file here, and as a Hugging Face id it cannot be had: {reason} ({error}). "
            f"Give a directory or a .gguf file, or one of: {', '.join(ZOO_PREFIX + name for name in zoo_names())}"
        ) from error
