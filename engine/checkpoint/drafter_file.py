"""Checkpoints of drafters that are no models of their own: config.json and safetensors, in vLLM's or the speculators layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint.config import ModelConfig
from engine.checkpoint.fields import Fields
from engine.checkpoint.quantization import QuantizedTensor, checkpoint_method
from engine.checkpoint.safetensors import TensorFiles, read_json
from engine.checkpoint.weights import Shape
from engine.errors import CheckpointError, nearest_hint

__all__ = ["DrafterFile"]

LAYER_SECTION = "transformer_layer_config"  # the speculators format's, for the shapes of the drafter's layers


class DrafterFile:
    """An opened drafter. Raises `CheckpointError` for whatever is wrong with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_dir():
            raise CheckpointError(f"{path}: a drafter of this method is a directory with config.json and safetensors")
        self.values = read_json(path / "config.json")
        self.fields = Fields(str(path / "config.json"), self.values)
        self._files = TensorFiles(path, with_indices=True, quantized=checkpoint_method(self.fields) is not None)

    def layer_config(self, architecture: str) -> ModelConfig:
        """The shapes of the drafter's layers, which are `architecture`'s: of their own section, or of the whole config."""
        section = self.values.get(LAYER_SECTION, self.values)
        if not isinstance(section, Mapping):
            raise self.fields.error(f"{LAYER_SECTION} is {section!r}, expected an object")
        return ModelConfig.from_hf({**section, "architectures": [architecture]}, source=self.fields.source)

    def require(self, shapes: Mapping[str, Shape]) -> None:
        """Raise unless each of these tensors is there and has its shape."""
        entries = self._files.entries
        for name, shape in shapes.items():
            if name not in entries:
                raise CheckpointError(f"{self.path}: tensor {name!r} {list(shape)} is missing.{nearest_hint(name, entries)}")
            actual = entries[name].shape
            if actual != shape:
                raise CheckpointError(
                    f"{entries[name].file}: tensor {name!r} has the shape {list(actual)}, but this target and config ask for "
                    f"{list(shape)}"
                )

    def has(self, name: str) -> bool:
        return name in self._files.entries

    def tensor(self, name: str) -> torch.Tensor:
        return self._files.tensor(name)

    def quantized(self, name: str) -> QuantizedTensor | None:
        return self._files.quantized(name)

    def check_target(self, target: ModelConfig, *, hidden_size: Any, vocab_size: Any) -> None:
        """Refuse a drafter of another target: what its config says of the target's two sizes."""
        for what, said, actual in (
            ("hidden states", hidden_size, target.hidden_size),
            ("a vocabulary", vocab_size, target.vocab_size),
        ):
            if said != actual:
                raise CheckpointError(
                    f"{self.path}: this drafter is for {what} of {said}, but the target has {actual}; "
                    "use a drafter that was trained for this target"
                )
