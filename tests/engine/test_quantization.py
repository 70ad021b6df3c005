"""Weights of one byte: a model with them is, bit for bit, the model with the dequantized ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine import LLM, SamplingParams
from engine.checkpoint import CheckpointError, open_checkpoint
from engine.checkpoint.quantization import QuantizedTensor, quantized
from engine.checkpoint.safetensors import read_json
from harness.quantized import dequantized_copy, fp8_block_copy, is_layer_matrix
from harness.toy_model import toy_model_path
from harness.zoo.writer import write_json

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
PROMPTS = ["The first line", "A longer prompt that goes on for some more bytes than one block holds", "x"]
ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
both = pytest.mark.parametrize("method", ["int8", "fp8"])


def ids(model: str | Path, **options: Any) -> list[tuple[int, ...]]:
    with LLM(model=str(model), num_threads=1, max_model_len=200, **options) as llm:
        return [tuple(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def logits(model: str | Path, **options: Any) -> torch.Tensor:
    """Of 40 tokens, behind a prefill in one piece: [40, vocab_size]"""
    from engine.layer import Batch
    from engine.model import Decoder
    from kernels.backend import create_kernels

    kernels = create_kernels("auto", 1)
    checkpoint = open_checkpoint(Path(model))
    decoder = Decoder(checkpoint, kernels, dtype="auto", max_model_len=64, num_kv_blocks=8, block_size=16, **options)
    places = torch.arange(40)
    table = torch.arange(8, dtype=torch.int32)[None]
    batch = Batch(places * 5 % 256, places, torch.zeros(40, dtype=torch.int64), places, table)
    return decoder.logits(decoder.forward(batch).normed)


@both
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rounded_when_it_is_loaded(architecture: str, method: str, tmp_path: Path) -> None:
    model = toy_model_path(architecture, hidden_size=136, intermediate_size=200)
    copy = dequantized_copy(str(model), tmp_path / "copy", method)
    expected = logits(copy)
    assert torch.equal(logits(model, quantization=method), expected)
    assert not torch.equal(logits(model), expected)
    assert ids(model, quantization=method) == ids(copy)


@pytest.mark.parametrize("keep", [(), ("o_proj",), ("k_proj", "up_proj")], ids=["all", "but-outputs", "mixed-stacks"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_checkpoint_with_blocks(architecture: str, keep: tuple[str, ...], tmp_path: Path) -> None:
    """Sizes that are no multiples of 128, and more than one block in both directions."""
    sizes = {"hidden_size": 300, "intermediate_size": 330, "num_heads": 6, "head_dim": 50}
    model = toy_model_path(architecture, **sizes)
    blocks = fp8_block_copy(str(model), tmp_path / "blocks", keep=keep)
    checkpoint = open_checkpoint(blocks)
    assert checkpoint.config.quantization == "fp8"
    quantized_names = {name for name in checkpoint.names() if checkpoint.quantized(name) is not None}
    assert quantized_names == {n for n in checkpoint.names() if is_layer_matrix(n) and not any(k in n for k in keep)}
    expected = logits(dequantized_copy(str(blocks), tmp_path / "copy", None))
    assert torch.equal(logits(blocks), expected)
    assert torch.equal(logits(blocks, quantization="fp8"), expected)
    assert not torch.equal(logits(model), expected)


def test_transformers_reads_the_same_weights(tmp_path: Path) -> None:
    """Its dequantization multiplies by the scales too, whatever their name says; it rounds to the model's bfloat16."""
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config

    model = toy_model_path("Qwen3ForCausalLM", hidden_size=256, intermediate_size=384, dtype="bfloat16")
    blocks = fp8_block_copy(str(model), tmp_path / "blocks")
    theirs = AutoModelForCausalLM.from_pretrained(
        blocks, dtype=torch.bfloat16, quantization_config=FineGrainedFP8Config(dequantize=True)
    ).state_dict()
    ours = open_checkpoint(blocks)
    for name in ours.names():
        assert torch.equal(ours.tensor(name).bfloat16(), theirs[name].bfloat16()), name


@both
def test_rounding(method: str) -> None:
    weight = torch.randn(9, 70, generator=torch.Generator().manual_seed(3)) * torch.logspace(-30, 30, 9)[:, None]
    weight[4] = 0
    part = quantized(weight, method)
    assert part.scales.shape == (9, 1)
    back = part.dequantized()
    step = part.scales if method == "int8" else (weight.abs() / 8).clamp_min(part.scales * 2**-9)
    assert ((back - weight).abs() <= step * 0.5001).all()
    assert torch.equal(back[4], torch.zeros(70))
    assert torch.equal(quantized(back, method).dequantized(), back)
    assert (weight.abs().amax(dim=1) - back.abs().amax(dim=1)).abs().le(1e-6 * weight.abs().amax(dim=1)).all()


def test_scales_of_blocks() -> None:
    values = torch.ones(130, 260, dtype=torch.float8_e4m3fn)
    scales = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    weight = QuantizedTensor.of_blocks(values, scales).dequantized()
    assert weight[0, [0, 127, 128, 255, 256, 259]].tolist() == [1, 1, 2, 2, 3, 3]
    assert weight[[127, 128, 129], 259].tolist() == [3, 6, 6]


def draft(model: Path, **more: Any) -> dict[str, Any]:
    return {"method": "draft_model", "model": str(model), "num_speculative_tokens": 3, **more}


@both
def test_a_quantized_draft_model(method: str, tmp_path: Path) -> None:
    """The same proposals as from its dequantized copy; the target keeps its own weights."""
    model = toy_model_path()
    copy = dequantized_copy(str(model), tmp_path / "copy", method)

    def run(**config: Any) -> tuple[list[tuple[int, ...]], dict[str, int]]:
        with LLM(model=str(model), num_threads=1, max_model_len=200, speculative_config=draft(**config)) as llm:
            outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
            stats = llm.stats
            counts = {"drafted": stats.num_drafted_tokens, "accepted": stats.num_accepted_tokens}
            return [tuple(output.outputs[0].token_ids) for output in outputs], counts

    texts, counts = run(model=model, quantization=method)
    assert texts == ids(model)
    assert (texts, counts) == run(model=copy)
    assert counts["accepted"] < counts["drafted"]  # the unquantized draft is the target, and would have all accepted


def test_a_quantized_target_does_not_quantize_its_draft_model() -> None:
    model = toy_model_path()
    options: dict[str, Any] = {"model": str(model), "num_threads": 1, "max_model_len": 200, "quantization": "int8"}
    accepted = []
    for config in (draft(model, quantization="int8"), draft(model)):
        with LLM(**options, speculative_config=config) as llm:
            llm.generate(PROMPTS, GREEDY, use_tqdm=False)
            accepted.append(llm.stats.num_accepted_tokens == llm.stats.num_drafted_tokens)
    assert accepted == [True, False]


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    return fp8_block_copy(str(toy_model_path(hidden_size=136)), tmp_path / "blocks")


def rewritten(path: Path, change: Any) -> Path:
    from safetensors.torch import load_file, save_file

    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")
    return path


NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(f"{NAME}_scale_inv"), r"up_proj.weight' .* needs scales .* \[1, 2\].*there are none"),
        (
            lambda tensors: tensors.update({f"{NAME}_scale_inv": torch.ones(2, 1)}),
            r"needs scales .*found torch.float32 \[2, 1\]",
        ),
        (lambda tensors: tensors.update({f"{NAME}_scale_inv": torch.full((1, 2), torch.nan)}), "NaN or an infinity"),
        (lambda tensors: tensors.update({"model.norm.weight_scale_inv": torch.ones(1)}), "unexpected tensor"),
    ],
    ids=["no-scales", "transposed-scales", "nan-scales", "scales-of-nothing"],
)
def test_scales_that_do_not_fit(blocks: Path, change: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        LLM(model=str(rewritten(blocks, change)), num_threads=1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weight_block_size": [64, 64]}, r"weight_block_size \[64, 64\].*Supported: .*\[128, 128\]"),
        ({"fmt": "e5m2"}, "e5m2"),
        ({"quant_method": "gptq"}, "gptq.*Supported"),
    ],
)
def test_formats_that_are_not_read(blocks: Path, changed: dict[str, Any], message: str) -> None:
    config = read_json(blocks / "config.json")
    config["quantization_config"] |= changed
    write_json(blocks / "config.json", config)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(blocks)


def test_fp8_without_a_word_in_the_config(blocks: Path) -> None:
    config = read_json(blocks / "config.json")
    del config["quantization_config"]
    write_json(blocks / "config.json", config)
    with pytest.raises(CheckpointError, match="F8_E4M3, which is not supported"):
        open_checkpoint(blocks)


def test_options_that_do_not_fit(blocks: Path) -> None:
    model = toy_model_path()
    with pytest.raises(ValueError, match="quantization must be one of None, int8, fp8, got 'int4'"):
        LLM(model=str(model), quantization="int4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"but the weights of .* are fp8 already; leave quantization out"):
        LLM(model=str(blocks), quantization="int8")
    with pytest.raises(ValueError, match="speculative_config: quantization must be one of int8, fp8, got 'awq'"):
        LLM(model=str(model), speculative_config=draft(model, quantization="awq"))
    with pytest.raises(ValueError, match="leave quantization out"):
        LLM(model=str(model), num_threads=1, speculative_config=draft(blocks, quantization="int8"))
