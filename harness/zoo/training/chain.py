"""Drafters of one layer that chain: from the token after a place and a hidden state of it to the next token and hidden state.

Slot i is a chain of K draft steps that starts from the target's states for token i. Step j (from 0) takes token i + 1 + j and
the target's hidden state i for j = 0, its own last output for j > 0, stands at position i + j, attends to the slots' first
steps up to i and to its own steps, and predicts token i + 2 + j. That is what vLLM's proposer computes
(`llm_base_proposer.py`); that it is trained over several steps comes from HASS (arXiv 2408.15766) and EAGLE-3 (2503.01840).

Shapes: B rows of T tokens, S = T - 1 - K slots, D = hidden_size, H query heads and G key-value heads of size E, V words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from engine.checkpoint import ModelConfig
from harness.zoo.download import ZooError
from harness.zoo.training.documents import FewShot
from harness.zoo.training.drafting import DrafterRecipe, FrozenTarget, soft_cross_entropy
from harness.zoo.training.packing import Batch
from harness.zoo.training.transformer import (
    Decoder,
    Output,
    compiled,
    init_weights,
    load_weights,
    rms_norm,
    rope_tables,
    rotated,
)
from harness.zoo.writer import hf_config, write_json, write_safetensors

__all__ = [
    "ChainBatch",
    "ChainDrafter",
    "ChainNet",
    "ChainObjective",
    "chain_attention",
    "draft_config",
    "export_chain",
    "layer_config",
    "load_chain",
    "unroll",
]

Tensors = Mapping[str, torch.Tensor]
Past = list[tuple[torch.Tensor, torch.Tensor]]  # keys and values [B, G, ., E] of each step so far
FEW_SHOT = FewShot(share=0.1, min_examples=2, max_examples=2)
MORE_POSITIONS = 64  # than the target's: drafts reach beyond its last token


def draft_config(target: ModelConfig) -> ModelConfig:
    """One Llama layer of the target's sizes."""
    return replace(
        target, architecture="LlamaForCausalLM", num_layers=1, qkv_bias=False, output_bias=False, mlp_bias=False, qk_norm=False
    )


class ChainNet(ABC):
    """What one step computes. Weights are arguments, by their names in the file."""

    prefix: str  # of the layer's tensors
    head_name: str | None = None  # of the drafter's own output matrix; the target's if None

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.cos, self.sin = rope_tables(config, config.max_position_embeddings + MORE_POSITIONS)

    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every trained tensor."""

    @abstractmethod
    def features(self, states: Output) -> torch.Tensor:
        """What the first step takes of the target: [B, T, its size]."""

    def start(self, weights: Tensors, features: torch.Tensor) -> torch.Tensor:
        """The hidden state [B, T, D] for the first step."""
        return features

    @abstractmethod
    def step(
        self, weights: Tensors, embeds: torch.Tensor, hidden: torch.Tensor, position: int, past: Past
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(what the head reads, the next step's hidden state) [B, S, D] each; adds this step's keys and values to `past`.

        embeds, hidden: [B, S, D]; position: of the first slot in this step.
        """

    def layer(self, weights: Tensors, x: torch.Tensor, residual: torch.Tensor, position: int, past: Past) -> torch.Tensor:
        """The Llama layer after its input norm, with all residuals added: x [B, S, any], residual [B, S, D] -> [B, S, D]."""
        config, prefix = self.config, self.prefix
        b, s, _ = x.shape
        h, g, e = config.num_heads, config.num_kv_heads, config.head_dim
        names = [f"{prefix}self_attn.{name}_proj" for name in "qkv"]
        bias = torch.cat([weights[f"{name}.bias"] for name in names]) if config.qkv_bias else None
        joined = F.linear(x, torch.cat([weights[f"{name}.weight"] for name in names]), bias).view(b, s, h + 2 * g, e)
        cos, sin = self.cos[position : position + s], self.sin[position : position + s]
        q = rotated(joined[:, :, :h].transpose(1, 2), cos, sin)
        past.append((rotated(joined[:, :, h : h + g].transpose(1, 2), cos, sin), joined[:, :, h + g :].transpose(1, 2)))
        attended = chain_attention(q, past).transpose(1, 2).reshape(b, s, h * e)
        residual = residual + F.linear(attended, weights[f"{prefix}self_attn.o_proj.weight"])
        y = rms_norm(residual, weights[f"{prefix}post_attention_layernorm.weight"], config.rms_norm_eps)
        both = torch.cat((weights[f"{prefix}mlp.gate_proj.weight"], weights[f"{prefix}mlp.up_proj.weight"]))
        gate, up = F.linear(y, both).chunk(2, dim=-1)
        return residual + F.linear(F.silu(gate) * up, weights[f"{prefix}mlp.down_proj.weight"])


def chain_attention(q: torch.Tensor, past: Past) -> torch.Tensor:
    """Queries [B, H, S, E] of the last step in `past` -> [B, H, S, E].

    past[0] are the keys and values [B, G, N, E] of the first steps, of which the queries see those up to their own slot (they
    are the last S of N), past[1:] [B, G, S, E] those of later steps, of which a query sees its own slot's. In chunks of
    queries, as in `transformer`.
    """
    b, h, s, e = q.shape
    keys, values = past[0]
    g, n = keys.shape[1], keys.shape[2]
    q = q.reshape(b, g, h // g, s, e) * e**-0.5
    own = [(q * k[:, :, None]).sum(-1, keepdim=True) for k, _ in past[1:]]  # [B, G, H / G, S, 1]
    size = max(128, s // 4)
    outputs = []
    for start in range(0, s, size):
        end = min(start + size, s)
        last = n - s + end
        chunk = q[:, :, :, start:end].reshape(b, g, h // g * (end - start), e)
        scores = (chunk @ keys[:, :, :last].transpose(-1, -2)).view(b, g, h // g, end - start, last)
        visible = torch.arange(last) <= torch.arange(n - s + start, last)[:, None]
        scores = scores.masked_fill(~visible, float("-inf"))
        probs = torch.cat((scores, *(o[:, :, :, start:end] for o in own)), dim=-1).softmax(-1)
        attended = probs[..., :last].reshape(b, g, h // g * (end - start), last) @ values[:, :, :last]
        attended = attended.view(b, g, h // g, end - start, e)
        for j, (_, v) in enumerate(past[1:]):
            attended = attended + probs[..., last + j : last + j + 1] * v[:, :, None, start:end]
        outputs.append(attended)
    return torch.cat(outputs, dim=3).view(b, h, s, e)


def unroll(
    net: ChainNet, weights: Tensors, embedding: torch.Tensor, ids: torch.Tensor, features: torch.Tensor, num_steps: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For each of `num_steps` steps what `net.step` gives over all slots of the true ids [B, T]: [B, S, D] each."""
    slots = ids.shape[1] - 1 - num_steps
    hidden = net.start(weights, features[:, :slots])
    past: Past = []
    outputs = []
    for step in range(num_steps):
        embeds = F.embedding(ids[:, 1 + step : 1 + step + slots], embedding)
        state, hidden = net.step(weights, embeds, hidden, step, past)
        outputs.append((state, hidden))
    return outputs


@dataclass(frozen=True)
class ChainBatch:
    packed: Batch
    noise: torch.Tensor | None  # [B, T, D], for the first step's hidden states


class ChainObjective:
    """Soft cross entropy of every step, plus smooth L1 of its hidden state against the target's, over packed rows.

    Options of the recipe: `steps`, `regression` (the weight of the smooth L1, 0 for none), `noise` (half the width of the
    uniform noise on the first hidden states, 0 for none).
    """

    def __init__(self, recipe: DrafterRecipe, target: FrozenTarget, net: ChainNet, *, compile_layers: bool = True) -> None:
        self.identity = recipe.identity(target)
        self.recipe, self.target, self.net = recipe, target, net
        self.parameters = init_weights(net.shapes, recipe.seed)
        _start_from_target(self.parameters, net, target)
        self._stream = recipe.stream(target)
        self._frozen = Decoder(target.config, target.model.weights, compile_layers=compile_layers)
        self._loss = compiled(self._chain_loss) if compile_layers else self._chain_loss

    def batch(self, step: int) -> ChainBatch:
        packed = self._stream.batch(step, self.recipe.rows, self.recipe.length, FEW_SHOT)
        width = self.recipe.option("noise")
        if not width:
            return ChainBatch(packed, None)
        generator = torch.Generator().manual_seed(self.recipe.seed * 1_000_003 + step)
        noise = torch.rand(*packed.ids.shape, self.net.config.hidden_size, generator=generator)
        return ChainBatch(packed, (noise * 2 - 1) * width)

    def loss(self, batch: ChainBatch) -> tuple[torch.Tensor, int]:
        with torch.no_grad():
            states = self._frozen.forward(batch.packed.ids, with_hidden=True)
            features = self.net.features(states)
            if batch.noise is not None:
                features = features + batch.noise
        loss: torch.Tensor = self._loss(
            dict(self.parameters), batch.packed.ids, batch.packed.weights, features, states.normed, states.logits
        )
        return loss, batch.packed.num_tokens

    def _chain_loss(
        self,
        weights: Tensors,
        ids: torch.Tensor,
        token_weights: torch.Tensor,
        features: torch.Tensor,
        normed: torch.Tensor,
        logits: torch.Tensor,
    ) -> torch.Tensor:
        num_steps, regression = int(self.recipe.option("steps")), float(self.recipe.option("regression"))
        head = self.target.head if self.net.head_name is None else weights[self.net.head_name]
        total = torch.zeros(())
        for step, (state, hidden) in enumerate(unroll(self.net, weights, self.target.embedding, ids, features, num_steps)):
            slots = slice(1 + step, 1 + step + state.shape[1])
            counts = token_weights[:, 2 + step : 2 + step + state.shape[1]]
            total = total + soft_cross_entropy(F.linear(state, head), logits[:, slots], counts)
            if regression:
                distance = F.smooth_l1_loss(hidden, normed[:, slots], reduction="none").mean(-1)
                total = total + regression * (distance * counts).sum() / counts.sum()
        return total / num_steps


@torch.no_grad()
def _start_from_target(weights: dict[str, torch.Tensor], net: ChainNet, target: FrozenTarget) -> None:
    """Biases start at 0, an own output matrix as the target's."""
    for name, weight in weights.items():
        if name.endswith(".bias"):
            weight.zero_()
        if name == net.head_name:
            weight.copy_(target.head)


class ChainDrafter:
    """See `Drafter`: one first step over the whole prefix, then one slot at a time."""

    def __init__(self, net: ChainNet, weights: Tensors, target: FrozenTarget) -> None:
        self.net, self.weights, self.target = net, weights, target
        self.head = target.head if net.head_name is None else weights[net.head_name]

    @torch.no_grad()
    def propose(self, token_ids: Sequence[int], states: Output, num_drafts: int) -> list[int]:
        """See `Drafter.propose`. None for a single token: there is no hidden state to start from."""
        if len(token_ids) < 2:
            return []
        ids = torch.tensor([list(token_ids[1:])])
        hidden = self.net.start(self.weights, self.net.features(states))
        position, past = 0, list[tuple[torch.Tensor, torch.Tensor]]()
        drafts: list[int] = []
        for _ in range(num_drafts):
            embeds = F.embedding(ids, self.target.embedding)
            state, hidden = self.net.step(self.weights, embeds, hidden, position, past)
            drafts.append(int(F.linear(state[0, -1], self.head).argmax()))
            ids, hidden, position = torch.tensor([drafts[-1:]]), hidden[:, -1:], len(token_ids) - 2 + len(drafts)
        return drafts


def export_chain(net: ChainNet, weights: Tensors, directory: Path, config: Mapping[str, Any]) -> Path:
    """Write `weights` in bfloat16 and `config` as config.json; `directory` comes back. `ZooError` if the disk is full."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tensors = (weights[name].detach().to(torch.bfloat16) for name in net.shapes)
        write_safetensors(directory / "model.safetensors", net.shapes, tensors, torch.bfloat16)
        write_json(directory / "config.json", config)
    except OSError as error:
        raise ZooError(f"{directory} cannot be written ({error.strerror or error})") from error
    return directory


def load_chain(net: ChainNet, directory: Path, target: FrozenTarget) -> ChainDrafter:
    """The drafter that `export_chain` wrote, widened to float32."""
    return ChainDrafter(net, load_weights(directory, net.shapes), target)


def layer_config(config: ModelConfig) -> dict[str, Any]:
    """The fields of `config.json` for the layer."""
    return hf_config(config, torch.bfloat16)
