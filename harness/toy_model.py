"""A small random model that gives the same bytes on every machine, for tests that need no trained one.

Its tokenizer is one token for each byte, so every text has a known length and a random continuation often ends inside a
character. Scales are chosen so that it behaves like a model where it matters: greedy continuations wander instead of repeating
one token, the best token's probability is mostly between 0.1 and 0.9, and the end-of-text token turns up now and then.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.checkpoint import SUPPORTED_ARCHITECTURES, ModelConfig, cache_dir, expected_tensors
from engine.errors import nearest_hint
from harness.zoo.writer import hf_config, hf_generation_config, write_json, write_safetensors

__all__ = ["BOS_ID", "EOS_ID", "PAD_ID", "TOY_VOCAB_SIZE", "byte_characters", "make_toy_checkpoint", "toy_model_path"]

BOS_ID, EOS_ID, PAD_ID = 256, 257, 258
TOY_VOCAB_SIZE = 259  # not a multiple of 16: the last panel of the output layer is a part of one
RECIPE_VERSION = 2  # counts up when the bytes change
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
LIKELY_BYTES = range(32, 127)  # printable ASCII, so that most of the text can be read
# Standard deviation of each layer's outputs for inputs of variance 1. The embedding is large beside what the layers add, so the
# last token matters most and text repeats itself enough for n-gram drafts; attention adds enough for the same pair of tokens to
# go on differently elsewhere.
GAINS = {
    "embed_tokens": 0.65,
    "q_proj": 2.0,
    "k_proj": 2.0,
    "v_proj": 0.55,
    "o_proj": 0.55,
    "gate_proj": 0.6,
    "up_proj": 0.6,
    "down_proj": 0.6,
    "lm_head": 3.2,
}
QK_NORM_GAIN = 1.7  # sharpens Qwen3's attention, whose queries and keys are normalised
# Of the output rows outside of LIKELY_BYTES. The end of text comes within 100 tokens in about a fifth of the cases.
UNLIKELY_GAIN = 0.7
EOS_GAIN = {"LlamaForCausalLM": 1.0, "Qwen2ForCausalLM": 1.3, "Qwen3ForCausalLM": 1.15}


@dataclass(frozen=True)
class ToySizes:
    """Sizes of a toy model; all but head_dim as in `ModelConfig`. head_dim None: hidden_size / num_heads, and 16 for Qwen3."""

    vocab_size: int = TOY_VOCAB_SIZE
    hidden_size: int = 48
    intermediate_size: int = 80
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int | None = None
    max_position_embeddings: int = 512
    tie_word_embeddings: bool = False


def make_toy_checkpoint(
    directory: str | Path,
    *,
    architecture: str = "LlamaForCausalLM",
    seed: int = 0,
    dtype: str = "float32",
    **sizes: Any,
) -> Path:
    """Write config.json, model.safetensors and the tokenizer files into `directory` and return it.

    `sizes` are fields of `ToySizes`; `dtype` is "float32" or "bfloat16" (the float32 values rounded). Every tensor depends on
    the seed, its name, its shape and its scale only.
    """
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise ValueError(f"no toy model of architecture {architecture!r}.{nearest_hint(architecture, SUPPORTED_ARCHITECTURES)}")
    if dtype not in DTYPES:
        raise ValueError(f"no toy model of dtype {dtype!r}.{nearest_hint(dtype, DTYPES)}")
    config = _config(architecture, ToySizes(**sizes))
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    shapes = expected_tensors(config)

    def tensors() -> Iterator[torch.Tensor]:
        for name, shape in shapes.items():
            yield torch.from_numpy(_values(config, seed, name, shape)).to(DTYPES[dtype])

    write_safetensors(path / "model.safetensors", shapes, tensors(), DTYPES[dtype])
    write_json(path / "config.json", hf_config(config, DTYPES[dtype]))
    write_json(path / "generation_config.json", hf_generation_config(config))
    _write_tokenizer(path, config.max_position_embeddings)
    return path


def toy_model_path(architecture: str = "LlamaForCausalLM", *, seed: int = 0, dtype: str = "float32", **sizes: Any) -> Path:
    """The directory of that toy model in the cache, made on first use. Safe with parallel processes."""
    identity = [RECIPE_VERSION, architecture, seed, dtype, sorted(asdict(ToySizes(**sizes)).items())]
    key = hashlib.sha256(repr(identity).encode()).hexdigest()[:12]
    target = cache_dir() / "toy" / f"{architecture.removesuffix('ForCausalLM').lower()}-{seed}-{key}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".toy-", dir=target.parent))
    try:
        make_toy_checkpoint(scratch / "built", architecture=architecture, seed=seed, dtype=dtype, **sizes)
        (scratch / "built").rename(target)
    except OSError:
        if not target.exists():  # otherwise another process was faster, and its bytes are the same
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _config(architecture: str, sizes: ToySizes) -> ModelConfig:
    if sizes.vocab_size < TOY_VOCAB_SIZE:
        raise ValueError(f"vocab_size is {sizes.vocab_size}, but the tokenizer has {TOY_VOCAB_SIZE} ids")
    is_qwen3 = architecture == "Qwen3ForCausalLM"
    values = asdict(sizes)
    values["head_dim"] = sizes.head_dim or (16 if is_qwen3 else sizes.hidden_size // sizes.num_heads)
    return ModelConfig(
        architecture=architecture,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=None,
        qkv_bias=architecture == "Qwen2ForCausalLM",
        output_bias=False,
        mlp_bias=False,
        qk_norm=is_qwen3,
        bos_token_id=BOS_ID,
        eos_token_ids=(EOS_ID,),
        **values,
    )


def _values(config: ModelConfig, seed: int, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Uniform numbers of one tensor: drawn and scaled in float64, then rounded once."""
    # RandomState's streams are frozen by numpy's compatibility policy; a Generator's are not.
    unit = np.random.RandomState(zlib.crc32(f"{seed}/{name}".encode())).uniform(-1.0, 1.0, size=shape)
    if name.endswith("norm.weight"):
        gain = QK_NORM_GAIN if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0
        return (gain * (1.0 + 0.2 * unit)).astype(np.float32)
    if name.endswith(".bias"):
        return (0.5 * unit).astype(np.float32)
    is_head = name == "lm_head.weight" or (name == "model.embed_tokens.weight" and config.tie_word_embeddings)
    # A uniform number in [-a, a] has the standard deviation a / sqrt(3).
    gain = GAINS["lm_head"] if is_head else _gain(name)
    fan_in = 1 if name == "model.embed_tokens.weight" and not is_head else shape[1]
    values = math.sqrt(3.0 / fan_in) * gain * unit
    if is_head:
        likelihood = np.full(shape[0], UNLIKELY_GAIN)
        likelihood[LIKELY_BYTES.start : LIKELY_BYTES.stop] = 1.0
        likelihood[EOS_ID] = EOS_GAIN[config.architecture]
        values *= likelihood[:, None]
    return values.astype(np.float32)


def _gain(name: str) -> float:
    """Standard deviation of a layer's outputs for inputs of variance 1."""
    for part, gain in GAINS.items():
        if part in name:
            return gain
    raise AssertionError(f"no gain for {name}")


def _write_tokenizer(path: Path, max_length: int) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocab = {character: byte for byte, character in byte_characters().items()}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<s>", "</s>", "<pad>")])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", BOS_ID)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(str(path))


def byte_characters() -> dict[int, str]:
    """The printable character by which byte-level tokenizers write each byte: itself where it is one, else from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
