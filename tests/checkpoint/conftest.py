"""Small checkpoints, written by Transformers and by us."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoint import SUPPORTED_ARCHITECTURES, CheckpointError, open_checkpoint
from harness.toy_model import make_toy_checkpoint

TINY = {
    "vocab_size": 67,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(params=SUPPORTED_ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def hf_model(architecture: str) -> Callable[..., Any]:
    """A factory of tiny random models of Transformers."""

    def make(**overrides: Any) -> Any:
        import transformers

        torch.manual_seed(0)
        config_class = getattr(transformers, architecture.replace("ForCausalLM", "Config"))
        values = {**TINY, **({"head_dim": 10} if architecture == "Qwen3ForCausalLM" else {}), **overrides}
        model = getattr(transformers, architecture)(config_class(**values))
        with torch.no_grad():  # biases start as zeros and norms as ones; a mix-up of those must show
            for parameter in model.parameters():
                parameter.uniform_(-1.0, 1.0)
        return model

    return make


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A fresh toy checkpoint that a test may damage."""
    return make_toy_checkpoint(tmp_path / "toy")


@pytest.fixture
def edit_config() -> Callable[..., None]:
    """Changes keys of a checkpoint's config.json; None removes a key."""

    def edit(directory: Path, **changes: Any) -> None:
        file = directory / "config.json"
        values = {**json.loads(file.read_text()), **changes}
        file.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))

    return edit


@pytest.fixture
def error_of() -> Callable[[Path], str]:
    """The message of the CheckpointError that opening a path raises."""

    def get(path: Path) -> str:
        with pytest.raises(CheckpointError) as caught:
            open_checkpoint(path)
        assert isinstance(caught.value, ValueError)
        return str(caught.value)

    return get
