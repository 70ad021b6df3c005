"""GGUF files give the same tensors as the checkpoint that they were made from, bit for bit where nothing was quantized."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from engine.checkpoint import CheckpointError, open_checkpoint
from harness.toy_model import make_toy_checkpoint
from tests.checkpoint.gguf_writer import write_gguf

Q8_0 = gguf.GGMLQuantizationType.Q8_0


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_float32_round_trip_is_exact(architecture: str, tmp_path: Path, tied: bool) -> None:
    source = open_checkpoint(make_toy_checkpoint(tmp_path / "toy", architecture=architecture, tie_word_embeddings=tied))
    copy = open_checkpoint(write_gguf(tmp_path / "toy.gguf", source))
    assert copy.config == source.config
    assert copy.names() == source.names()
    for name in source.names():
        assert torch.equal(copy.tensor(name), source.tensor(name)), name


def test_half_types(tmp_path: Path) -> None:
    source = open_checkpoint(make_toy_checkpoint(tmp_path / "toy"))

    def store(writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor) -> None:
        if tensor.ndim == 1:
            writer.add_tensor(name, tensor.numpy())
        elif "ffn" in name:
            writer.add_tensor(name, tensor.half().numpy())
        else:
            packed = tensor.bfloat16().view(torch.int16).numpy().view(np.uint8)
            writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.BF16)

    copy = open_checkpoint(write_gguf(tmp_path / "toy.gguf", source, store))
    for name in source.names():
        values, tensor = source.tensor(name), copy.tensor(name)
        if values.ndim == 1:
            assert torch.equal(tensor, values)
        elif "mlp" in name:
            assert torch.equal(tensor, values.half().float())
        else:
            assert tensor.dtype == torch.bfloat16
            assert torch.equal(tensor, values.bfloat16()), name


def test_packed_types_are_what_the_gguf_package_dequantizes(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_heads": 4}
    source = open_checkpoint(make_toy_checkpoint(tmp_path / "toy", architecture="Qwen2ForCausalLM", **sizes))

    def store(writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor) -> None:
        if tensor.ndim == 1:
            writer.add_tensor(name, tensor.numpy())
        else:
            writer.add_tensor(name, gguf.quants.quantize(tensor.numpy(), Q8_0), raw_dtype=Q8_0)

    copy = open_checkpoint(write_gguf(tmp_path / "toy.gguf", source, store))
    for name in source.names():
        values = source.tensor(name)
        if values.ndim == 2:
            packed = gguf.quants.quantize(values.numpy(), Q8_0)
            assert torch.equal(copy.tensor(name), torch.from_numpy(gguf.quants.dequantize(packed, Q8_0))), name
        else:
            assert torch.equal(copy.tensor(name), values), name


def test_a_32_bit_constant_reads_as_it_was_written(toy: Path, tmp_path: Path) -> None:
    assert open_checkpoint(write_gguf(tmp_path / "toy.gguf", open_checkpoint(toy))).config.rms_norm_eps == 1e-5


REFUSED: dict[str, tuple[Callable[[gguf.GGUFWriter], Any], str]] = {
    "rope-scaling": (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "scaled rotary embeddings"),
    "rope-freqs": (lambda w: w.add_tensor("rope_freqs.weight", np.ones(6, np.float32)), "scaled rotary embeddings"),
    "partial-rope": (lambda w: w.add_rope_dimension_count(6), "a part of the head"),
    "window": (lambda w: w.add_sliding_window(16), "sliding-window"),
    "experts": (lambda w: w.add_expert_count(4), "mixtures of experts"),
    "extra-tensor": (lambda w: w.add_tensor("blk.0.attn_sinks.weight", np.ones(4, np.float32)), "blk.0.attn_sinks.weight"),
    "bias": (lambda w: w.add_tensor("blk.1.attn_q.bias", np.ones(48, np.float32)), "layers.1.self_attn.q_proj.bias"),
}


@pytest.mark.parametrize(("extra", "wanted"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_supported_is_refused(
    toy: Path, tmp_path: Path, error_of: Callable[[Path], str], extra: Callable[[gguf.GGUFWriter], Any], wanted: str
) -> None:
    path = write_gguf(tmp_path / "toy.gguf", open_checkpoint(toy), extra=extra)
    message = error_of(path)
    assert str(path) in message
    assert wanted in message


def test_the_file_is_not_mapped_while_it_is_open(toy: Path, tmp_path: Path) -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc to see what is mapped")
    path = write_gguf(tmp_path / "toy.gguf", open_checkpoint(toy))
    checkpoint = open_checkpoint(path)
    kept = [checkpoint.tensor(name) for name in checkpoint.names()]
    assert kept
    assert str(path) not in maps.read_text()


def test_another_architecture(toy: Path, tmp_path: Path, error_of: Callable[[Path], str]) -> None:
    message = error_of(write_gguf(tmp_path / "toy.gguf", open_checkpoint(toy), family="gemma3"))
    assert "'gemma3' is not supported. Supported: llama, qwen2, qwen3" in message


@pytest.mark.parametrize("keep", [0, 3, 40, 400, -64], ids=["empty", "magic", "metadata", "more-metadata", "tensors"])
def test_truncated_file(toy: Path, tmp_path: Path, error_of: Callable[[Path], str], keep: int) -> None:
    path = write_gguf(tmp_path / "toy.gguf", open_checkpoint(toy))
    path.write_bytes(path.read_bytes()[:keep])
    message = error_of(path)
    assert str(path) in message
    assert "Fetch it again" in message


def test_not_a_gguf_file(tmp_path: Path, error_of: Callable[[Path], str]) -> None:
    (tmp_path / "x.gguf").write_bytes(b"something else entirely")
    assert "not a whole GGUF file" in error_of(tmp_path / "x.gguf")
    assert "is missing" in error_of(tmp_path / "y.gguf")


def test_file_that_shrinks_after_opening(toy: Path, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "toy.gguf", open_checkpoint(toy))
    checkpoint = open_checkpoint(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(CheckpointError, match=r"ends inside of tensor 'lm_head\.weight'"):
        checkpoint.tensor("lm_head.weight")
