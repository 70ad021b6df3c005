"""What a checkpoint says about its model, in one frozen dataclass, whichever format it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gguf import GGUFReader

__all__ = ["SUPPORTED_ARCHITECTURES", "Llama3RopeScaling", "ModelConfig"]

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True)
class Llama3RopeScaling:
    """The frequency scaling of Llama 3.1 and later (`rope_type: llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class ModelConfig:
    """Shapes and constants of one dense decoder. Everything the engine needs of `config.json` and nothing else."""

    architecture: str  # one of SUPPORTED_ARCHITECTURES
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int  # divides num_heads
    head_dim: int  # even; num_heads * head_dim need not be hidden_size
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Llama3RopeScaling | None
    max_position_embeddings: int
    tie_word_embeddings: bool  # then lm_head is the embedding and has no tensor of its own
    qkv_bias: bool
    output_bias: bool  # of the attention's o_proj
    mlp_bias: bool
    qk_norm: bool  # RMSNorm over head_dim of each query and key head, before RoPE
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]  # config.json and generation_config.json united, in order of appearance
    quantization: str | None = None  # of the file's matrices, those that are quantized: None or "fp8"
    num_mtp_layers: int = 0  # modules `model.mtp_layers.*` that draft (MiMo's layout); the decoder does not read them

    @classmethod
    def from_hf(
        cls,
        config: Mapping[str, Any],
        generation_config: Mapping[str, Any] | None = None,
        *,
        source: str | Path = "config.json",
    ) -> ModelConfig:
        """From the contents of `config.json` and, where there is one, `generation_config.json`.

        Reads what Transformers 5 writes (`rope_parameters`) and what came before (`rope_theta`, `rope_scaling`). `source` is
        the file that errors name. Raises `CheckpointError` for anything that this engine would compute differently.
        """
        from engine.checkpoint.hf_config import parse_hf_config

        return parse_hf_config(config, generation_config, str(source))

    @classmethod
    def from_gguf(cls, reader: GGUFReader, *, source: str | Path = "GGUF file") -> ModelConfig:
        """From the metadata and the tensor list of an open GGUF file. Raises `CheckpointError` as `from_hf` does."""
        from engine.checkpoint.gguf_config import parse_gguf_config

        return parse_gguf_config(reader, str(source))
