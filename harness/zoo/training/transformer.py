"""A Llama or Qwen3 decoder in plain PyTorch that can be trained: weights are arguments, so one compiled layer serves all.

Shapes: B rows of T tokens, D = hidden_size, H query heads and G key-value heads of size E, V words.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F

from engine.checkpoint import ModelConfig, expected_tensors

__all__ = [
    "Decoder",
    "Output",
    "compiled",
    "decoder_layer",
    "init_weights",
    "load_weights",
    "rms_norm",
    "rope_tables",
    "rotated",
]

LAYER_WEIGHTS = (
    "input_layernorm.weight",
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "post_attention_layernorm.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
)
QK_NORM_WEIGHTS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")

Tensors = Mapping[str, torch.Tensor]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Output:
    """What a forward pass gives; `hidden` has the layers' outputs [B, T, D] in order, the embedding first, if asked for."""

    logits: torch.Tensor  # [B, T, V]
    normed: torch.Tensor  # [B, T, D], after the last norm: what lm_head sees
    hidden: tuple[torch.Tensor, ...] = ()


def init_weights(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, torch.Tensor]:
    """float32 leaves that require gradients: norms 1, the two projections into the residual stream 0, others normal.

    Each tensor depends on the seed and the order of `shapes` alone.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            value = torch.ones(shape)
        else:
            std = 0.02 if "embed_tokens" in name or "lm_head" in name else 0.5 / math.sqrt(shape[1])
            value = torch.randn(shape, generator=generator) * std
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                value.zero_()
        weights[name] = value.requires_grad_()
    return weights


def load_weights(directory: Path, names: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """The named tensors of `directory/model.safetensors` in float32. `ValueError` where a shape differs."""
    from safetensors.torch import load_file

    tensors = load_file(directory / "model.safetensors")
    for name, shape in names.items():
        if name not in tensors or tuple(tensors[name].shape) != tuple(shape):
            raise ValueError(f"{directory}: {name} is missing or has another shape than {list(shape)}")
    return {name: tensors[name].float() for name in names}


def rope_tables(config: ModelConfig, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [length, E] of the rotate-half form."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.outer(torch.arange(length, dtype=torch.float32), 1.0 / config.rope_theta**half)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [..., E] turned by rotary embeddings of the rotate-half form; cos and sin [..., E] broadcast."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _qkv(
    config: ModelConfig, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries [B, H, T, E], keys and values [B, G, T, E] of the normed x [B, T, D]; cos and sin [T, E] or [B, 1, T, E]."""
    b, t, _ = x.shape
    h, g, e = config.num_heads, config.num_kv_heads, config.head_dim
    joined = F.linear(x, torch.cat((weights[1], weights[2], weights[3]))).view(b, t, h + 2 * g, e)
    q, k, v = joined[:, :, :h], joined[:, :, h : h + g], joined[:, :, h + g :]
    if config.qk_norm:
        q, k = rms_norm(q, weights[9], config.rms_norm_eps), rms_norm(k, weights[10], config.rms_norm_eps)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return rotated(q, cos, sin), rotated(k, cos, sin), v


def _after_attention(
    config: ModelConfig, x: torch.Tensor, attended: torch.Tensor, weights: Sequence[torch.Tensor]
) -> torch.Tensor:
    """The rest of a layer; attended [B, H, T, E]."""
    b, t, _ = x.shape
    x = x + F.linear(attended.transpose(1, 2).reshape(b, t, config.num_heads * config.head_dim), weights[4])
    y = rms_norm(x, weights[5], config.rms_norm_eps)
    gate, up = F.linear(y, torch.cat((weights[6], weights[7]))).chunk(2, dim=-1)
    return x + F.linear(F.silu(gate) * up, weights[8])


def decoder_layer(
    config: ModelConfig, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, weights: Sequence[torch.Tensor]
) -> torch.Tensor:
    """One layer over whole rows, causal: x [B, T, D] -> [B, T, D]; `weights` in the order of `LAYER_WEIGHTS`."""
    q, k, v = _qkv(config, rms_norm(x, weights[0], config.rms_norm_eps), cos, sin, weights)
    return _after_attention(config, x, _causal_attention(q, k, v), weights)


def _causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q [B, H, T, E], k and v [B, G, T, E] -> [B, H, T, E].

    In up to a few chunks of queries, each over the keys up to its end. On one core, compiled, this is faster than PyTorch's
    fused attention (7 % at T = 256, twice at T = 1024), whose backward pass is slow for small heads.
    """
    b, h, t, e = q.shape
    g = k.shape[1]
    q = q.reshape(b, g, h // g, t, e) * e**-0.5
    size = max(128, t // 4)
    outputs = []
    for start in range(0, t, size):
        end = min(start + size, t)
        chunk = q[:, :, :, start:end].reshape(b, g, h // g * (end - start), e)
        scores = (chunk @ k[:, :, :end].transpose(-1, -2)).view(b, g, h // g, end - start, end)
        visible = torch.arange(end) <= torch.arange(start, end)[:, None]
        probs = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        attended = probs.view(b, g, h // g * (end - start), end) @ v[:, :, :end]
        outputs.append(attended.view(b, g, h // g, end - start, e))
    return torch.cat(outputs, dim=3).view(b, h, t, e)


def compiled(function: Function) -> Function:
    """`function` through torch.compile, for fixed shapes; as it is, with one message, if the first call cannot be compiled."""
    fast = torch.compile(function, dynamic=False)
    state = {"function": fast, "sure": False}

    def call(*args: Any) -> Any:
        if state["sure"]:
            return cast(Function, state["function"])(*args)
        try:
            result = fast(*args)
        except Exception as error:  # noqa: BLE001 - the compiler fails in many ways, and the function works without it
            print(f"torch.compile does not work here, training goes on about half as fast ({error!r:.200})", file=sys.stderr)
            state["function"] = function
            result = function(*args)
        state["sure"] = True
        return result

    return call


class Decoder:
    """A model of `config` over `weights` (Hugging Face names; the mapping is read at each call, so it may be trained)."""

    def __init__(self, config: ModelConfig, weights: Tensors, *, compile_layers: bool = False) -> None:
        if set(weights) != set(expected_tensors(config)):
            raise ValueError(f"these are not the weights of the config: {sorted(set(weights) ^ set(expected_tensors(config)))}")
        self.config = config
        self.weights = weights
        self.cos, self.sin = rope_tables(config, config.max_position_embeddings)
        names = LAYER_WEIGHTS + (QK_NORM_WEIGHTS if config.qk_norm else ())
        self._names = [[f"model.layers.{i}.{name}" for name in names] for i in range(config.num_layers)]

        def layer(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
            return decoder_layer(config, x, cos, sin, weights)

        self._layer: Function = compiled(layer) if compile_layers else layer

    @property
    def head(self) -> torch.Tensor:
        """The output matrix [V, D]: the embedding if tied."""
        return self.weights["model.embed_tokens.weight" if self.config.tie_word_embeddings else "lm_head.weight"]

    def hidden(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """ids [B, T] -> the embedding and each layer's output, [B, T, D] each; the last norm is not applied."""
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        states = [F.embedding(ids, self.weights["model.embed_tokens.weight"])]
        for names in self._names:
            states.append(self._layer(states[-1], cos, sin, [self.weights[name] for name in names]))
        return tuple(states)

    def final_norm(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weights["model.norm.weight"], self.config.rms_norm_eps)

    def forward(self, ids: torch.Tensor, *, with_hidden: bool = False) -> Output:
        """ids [B, T] -> logits of the token after each, and the hidden states if asked for."""
        states = self.hidden(ids)
        normed = self.final_norm(states[-1])
        return Output(F.linear(normed, self.head), normed, states if with_hidden else ())

    def qkv(
        self, layer: int, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [B, H, T, E], keys and values [B, G, T, E] of a layer's input x [B, T, D], for a cache."""
        weights = [self.weights[name] for name in self._names[layer]]
        return _qkv(self.config, rms_norm(x, weights[0], self.config.rms_norm_eps), cos, sin, weights)

    def after_attention(self, layer: int, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """A layer's output from its input x [B, T, D] and what its heads attended to [B, H, T, E]."""
        return _after_attention(self.config, x, attended, [self.weights[name] for name in self._names[layer]])
