"""Checkpoints: what they say about the model, and their weights one tensor at a time."""

from engine.checkpoint.config import SUPPORTED_ARCHITECTURES, Llama3RopeScaling, ModelConfig
from engine.checkpoint.drafter_file import DrafterFile
from engine.checkpoint.resolve import cache_dir, open_checkpoint, resolve_model, shipped_zoo
from engine.checkpoint.weights import Checkpoint, expected_tensors, layer_tensors
from engine.errors import CheckpointError

__all__ = [
    "SUPPORTED_ARCHITECTURES",
    "Checkpoint",
    "CheckpointError",
    "DrafterFile",
    "Llama3RopeScaling",
    "ModelConfig",
    "cache_dir",
    "expected_tensors",
    "layer_tensors",
    "open_checkpoint",
    "resolve_model",
    "shipped_zoo",
]
