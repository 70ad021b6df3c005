"""A failing case as a file: everything that is needed to run it again exactly, and to make it smaller."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from engine import SamplingParams
from engine.checkpoint import resolve_model
from engine.errors import nearest_hint
from harness import errors
from harness.drafting import Drafting
from harness.errors import ValidationError
from harness.workload import WorkItem
from reports.coerce import coerce_mapping

__all__ = ["CHECKS", "Replay", "ReplayError", "read_replay", "write_replay"]

SCHEMA_VERSION = 1
CHECKS = ("simulation", "async_equals_sync")


class ReplayError(ValueError):
    """A replay file that cannot be run here; says what differs."""


@dataclass(frozen=True)
class Replay:
    check: str
    """One of `CHECKS`: the function of the harness that failed."""
    model: str
    options: Mapping[str, Any]
    """Of the engine, plugins (an injected fault) among them."""
    items: tuple[WorkItem, ...]
    drafting: Drafting = field(default_factory=Drafting)
    num_speculative_tokens: int = 0
    num_rounds: int = 1
    is_in_turn: bool = False
    exception: str = ""
    """What it raised."""
    message: str = ""
    model_sha256: str = ""

    @property
    def num_tokens(self) -> int:
        """Of all prompts, and the most that may come."""
        return sum(len(i.prompt_token_ids) + i.params.n * (i.params.max_tokens or 0) for i in self.items)

    def after(self, error: ValidationError) -> Replay:
        return replace(self, exception=type(error).__name__, message=str(error))


# --- the file ---------------------------------------------------------------------------------------------------------


def write_replay(replay: Replay, path: Path) -> None:
    content = asdict(replay) | {
        "items": [_item_to_json(item) for item in replay.items],
        "model_sha256": replay.model_sha256 or _fingerprint(replay),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {"lockstep_replay": SCHEMA_VERSION, **coerce_mapping(content)}
    path.write_text(json.dumps(plain, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")


def read_replay(path: Path) -> Replay:
    """Raises `ReplayError` for what is no replay file, has another schema version, or belongs to another checkpoint."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ReplayError(f"{path} is no replay file: {error}") from error
    version = content.pop("lockstep_replay", None) if isinstance(content, dict) else None
    if version is None:
        raise ReplayError(f"{path} is no replay file: it has no field 'lockstep_replay'; `lockstep simulate` writes such files")
    if version != SCHEMA_VERSION:
        raise ReplayError(f"{path} has schema version {version}, this Lockstep reads {SCHEMA_VERSION}; write it anew")
    unknown = sorted(set(content) - {f.name for f in fields(Replay)})
    if unknown:
        hint = nearest_hint(unknown[0], [f.name for f in fields(Replay)])
        raise ReplayError(f"{path}: unknown field {unknown[0]!r}.{hint}")
    try:
        drafting = content.get("drafting") or {}
        replay = Replay(
            **content
            | {
                "items": tuple(map(_item_from_json, content["items"])),
                "drafting": Drafting(**drafting | {"accept": tuple(drafting.get("accept", ()))}),
            }
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ReplayError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    if replay.check not in CHECKS:
        raise ReplayError(f"{path}: unknown check {replay.check!r}.{nearest_hint(replay.check, CHECKS)}")
    if replay.exception and replay.exception not in errors.__all__:
        raise ReplayError(f"{path}: unknown exception {replay.exception!r}.{nearest_hint(replay.exception, errors.__all__)}")
    here = _fingerprint(replay)
    if replay.model_sha256 != here:
        raise ReplayError(
            f"{path} was written with another checkpoint: {replay.model} had the sha256 {replay.model_sha256[:12]}, here it "
            f"has {here[:12]}; name the right model in the file's field 'model'"
        )
    return replay


def _fingerprint(replay: Replay) -> str:
    """Of all files of the checkpoint; the hash model has none."""
    if replay.check == "simulation":
        return ""
    path = resolve_model(replay.model)
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file() and file.suffix in (".json", ".safetensors", ".gguf"):
            digest.update(file.name.encode())
            with file.open("rb") as stream:
                while chunk := stream.read(1 << 22):
                    digest.update(chunk)
    return digest.hexdigest()


_DEFAULTS = SamplingParams()


def _item_to_json(item: WorkItem) -> dict[str, Any]:
    """Sampling parameters that are not the defaults; a script is made anew from the drafting."""
    params = {
        f.name: getattr(item.params, f.name)
        for f in fields(SamplingParams)
        if f.name != "extra_args" and getattr(item.params, f.name) != getattr(_DEFAULTS, f.name)
    }
    return asdict(replace(item, params=_DEFAULTS)) | {"prompt_token_ids": list(item.prompt_token_ids), "params": params}


def _item_from_json(content: Mapping[str, Any]) -> WorkItem:
    params = SamplingParams(**content["params"])
    return WorkItem(**dict(content) | {"params": params, "prompt_token_ids": tuple(map(int, content["prompt_token_ids"]))})
