"""The streaming writer of safetensors, against the library."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from harness.zoo.writer import write_safetensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_library_reads_what_was_written(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"a.weight": torch.randn(3, 5).to(dtype), "b": torch.randn(7).to(dtype), "empty": torch.empty(0, 4, dtype=dtype)}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    write_safetensors(tmp_path / "x.safetensors", shapes, iter(tensors.values()), dtype)
    with safe_open(tmp_path / "x.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(tensors)
        assert file.metadata() == {"format": "pt"}
        for name, tensor in tensors.items():
            assert torch.equal(file.get_tensor(name), tensor)


@pytest.mark.parametrize("wrong", [torch.zeros(3), torch.zeros(2, dtype=torch.float64)], ids=["shape", "dtype"])
def test_a_tensor_that_does_not_fit_its_entry(tmp_path: Path, wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="b: "):
        write_safetensors(tmp_path / "x", {"a": (2,), "b": (2,)}, [torch.zeros(2), wrong])


def test_a_missing_tensor(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shorter"):
        write_safetensors(tmp_path / "x", {"a": (2,), "b": (2,)}, [torch.zeros(2)])
