"""Checkpoints as Hugging Face writes them: a directory of `config.json` and safetensors files.

The files are read with plain reads: the library's loader maps the whole file and hands out views of it, so that one tensor
would keep all of it in memory.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint.config import ModelConfig
from engine.checkpoint.quantization import BLOCK, QuantizedTensor
from engine.checkpoint.weights import Checkpoint, Shape, check_tensors, expected_tensors, file_fingerprint
from engine.errors import CheckpointError

__all__ = ["SafetensorsCheckpoint", "TensorFiles", "read_header", "read_json"]

SCALES_SUFFIX = "_scale_inv"  # of the tensor that a quantized one is multiplied with, in spite of the name
QUANTIZED_DTYPES = {"F8_E4M3": torch.float8_e4m3fn}
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
INDEX_DTYPES = {"I64": torch.int64, "I32": torch.int32, "BOOL": torch.bool}  # of maps between vocabularies
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies."""

    file: Path
    dtype: torch.dtype
    shape: Shape
    begin: int  # bytes from the start of the file
    end: int


class TensorFiles:
    """The tensors of a directory, wherever they lie in its files. Opening reads the headers only."""

    def __init__(self, path: Path, *, with_indices: bool = False, quantized: bool = False) -> None:
        """with_indices, quantized: integers and booleans, or fp8 matrices with their scales, are allowed too."""
        self.path = path
        dtypes = DTYPES | (INDEX_DTYPES if with_indices else {}) | (QUANTIZED_DTYPES if quantized else {})
        self.headers: dict[Path, int] = {}  # file -> bytes before the data
        self.entries: dict[str, Entry] = {}
        for file in _weight_files(path):
            entries, self.headers[file] = read_header(file, dtypes)
            for name, entry in entries.items():
                if name in self.entries:
                    raise CheckpointError(f"{file}: tensor {name!r} is also in {self.entries[name].file.name}")
                self.entries[name] = entry
        self._scales = self._take_scales()

    def tensor(self, name: str) -> torch.Tensor:
        """See `Checkpoint.tensor`; also for integers, as they are."""
        part = self.quantized(name)
        return self._read(name, self.entries[name]) if part is None else part.dequantized()

    def quantized(self, name: str) -> QuantizedTensor | None:
        """See `Checkpoint.quantized`."""
        if name not in self._scales:
            return None
        values = self._read(name, self.entries[name])
        scales = self._read(name + SCALES_SUFFIX, self._scales[name]).float()
        if values.float().isnan().any() or not scales.isfinite().all():
            raise CheckpointError(f"{self.entries[name].file}: tensor {name!r} or its scales have a NaN or an infinity")
        return QuantizedTensor.of_blocks(values, scales)

    def _take_scales(self) -> dict[str, Entry]:
        """The scales of each quantized tensor, no longer among the others."""
        scales = {}
        for name, entry in list(self.entries.items()):
            if entry.dtype not in QUANTIZED_DTYPES.values():
                continue
            found = self.entries.pop(name + SCALES_SUFFIX, None)
            wanted = tuple(-(-size // BLOCK) for size in entry.shape)
            if len(wanted) != 2 or found is None or found.shape != wanted or found.dtype in QUANTIZED_DTYPES.values():
                raise CheckpointError(
                    f"{entry.file}: the fp8 tensor {name!r} {list(entry.shape)} needs scales {name + SCALES_SUFFIX!r} "
                    f"{list(wanted)}, one for each block of {BLOCK} x {BLOCK}; "
                    + ("there are none" if found is None else f"found {found.dtype} {list(found.shape)}")
                )
            scales[name] = found
        return scales

    def _read(self, name: str, entry: Entry) -> torch.Tensor:
        tensor = torch.empty(entry.shape, dtype=entry.dtype)
        buffer = tensor.reshape(-1).view(torch.uint8).numpy().data
        with entry.file.open("rb") as stream:
            stream.seek(entry.begin)
            if stream.readinto(buffer) != entry.end - entry.begin:
                raise CheckpointError(f"{entry.file}: ends inside of tensor {name!r}; the file has changed since it was opened")
        return tensor.to(torch.float32) if entry.dtype == torch.float16 else tensor


class SafetensorsCheckpoint(Checkpoint):
    """See `Checkpoint`. Opening reads the JSON files and the headers only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        config_file = path / "config.json"
        generation_file = path / "generation_config.json"
        generation = read_json(generation_file) if generation_file.exists() else None
        self.config = ModelConfig.from_hf(read_json(config_file), generation, source=config_file)
        self._files = TensorFiles(path, quantized=self.config.quantization is not None)
        self._drop_redundant_tensors()
        check_tensors(self.config, {name: (e.file, e.shape) for name, e in self._files.entries.items()}, path)

    def names(self) -> list[str]:
        return list(expected_tensors(self.config))

    def tensor(self, name: str) -> torch.Tensor:
        return self._files.tensor(name)

    def quantized(self, name: str) -> QuantizedTensor | None:
        return self._files.quantized(name)

    @functools.cached_property
    def fingerprint(self) -> str:
        return file_fingerprint(self.config, self._files.headers)

    def _drop_redundant_tensors(self) -> None:
        """Forget what some checkpoints carry without need: RoPE buffers, and a second copy of a tied embedding."""
        entries = self._files.entries
        for name in [n for n in entries if n.endswith(".rotary_emb.inv_freq")]:
            del entries[name]
        head, embedding = "lm_head.weight", "model.embed_tokens.weight"
        if self.config.tie_word_embeddings and head in entries and embedding in entries:
            if not torch.equal(self.tensor(head), self.tensor(embedding)):
                raise CheckpointError(
                    f"{entries[head].file}: {head!r} differs from {embedding!r}, but {self.path / 'config.json'} says "
                    "that they are tied. Set tie_word_embeddings to false, or remove the tensor"
                )
            del entries[head]


def read_header(file: Path, dtypes: Mapping[str, torch.dtype] = DTYPES) -> tuple[dict[str, Entry], int]:
    """The tensors of one safetensors file and the number of bytes before its data; `CheckpointError` if it is damaged."""
    if sys.byteorder != "little":
        raise CheckpointError(f"{file}: safetensors are little-endian, and this machine is not")
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise _damaged(file, f"its header would take {length} bytes, and the file has {size}")
            header = json.loads(stream.read(length))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise error if isinstance(error, CheckpointError) else _damaged(file, f"its header is no JSON ({error})") from error
    if not isinstance(header, dict):
        raise _damaged(file, "its header is no JSON object")
    header.pop("__metadata__", None)
    begin = 8 + length
    return {name: _entry(file, name, fields, begin, size, dtypes) for name, fields in header.items()}, begin


def _entry(file: Path, name: str, fields: Any, begin: int, file_size: int, dtypes: Mapping[str, torch.dtype]) -> Entry:
    try:
        dtype_name, shape, (first, last) = fields["dtype"], tuple(fields["shape"]), fields["data_offsets"]
        well_formed = all(type(n) is int and n >= 0 for n in (*shape, first, last))
    except (KeyError, TypeError, ValueError):
        well_formed = False
    if not well_formed:
        raise _damaged(file, f"the entry of tensor {name!r} is {fields!r}")
    if dtype_name not in dtypes:
        raise CheckpointError(
            f"{file}: tensor {name!r} has the dtype {dtype_name}, which is not supported. Supported: {', '.join(dtypes)}"
        )
    dtype = dtypes[dtype_name]
    if last - first != math.prod(shape) * dtype.itemsize:
        raise _damaged(file, f"tensor {name!r} {dtype_name} {list(shape)} cannot take {last - first} bytes")
    if begin + last > file_size:
        raise _damaged(file, f"tensor {name!r} ends at byte {begin + last}, and the file has {file_size}: it is truncated")
    return Entry(file, dtype, shape, begin + first, begin + last)


def _damaged(file: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{file}: not a whole safetensors file: {what}. Fetch it again")


def _weight_files(path: Path) -> list[Path]:
    if (path / SINGLE_FILE).exists():
        return [path / SINGLE_FILE]
    index = path / INDEX_FILE
    if not index.exists():
        others = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in path.glob(pattern))
        pickles = f" {others[0]} is a pickle, which is never loaded: convert it with save_pretrained." if others else ""
        raise CheckpointError(f"{path}: there is neither {SINGLE_FILE} nor {INDEX_FILE}.{pickles}")
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index}: 'weight_map' must map tensor names to file names")
    files = [path / name for name in sorted(set(weight_map.values()))]
    for file in files:
        if file.parent != path or file.suffix != ".safetensors":
            raise CheckpointError(f"{index}: {file.name!r} is not a safetensors file beside it")
        if not file.exists():
            raise CheckpointError(f"{file}: is missing, but {index.name} names it. Fetch the checkpoint again")
    return files


def read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{file}: is missing. A checkpoint is a directory with config.json and safetensors") from error
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise CheckpointError(f"{file}: is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: is no JSON object")
    return value
