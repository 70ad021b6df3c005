"""Drafters that fill in a whole block of mask tokens in one pass (DFlash, arXiv 2602.06036), and what DSpark shares with them.

A block is the last known token at its position p, the anchor, and masks at p + 1 ... p + L - 1; what the drafter gives at
p + j is a draft for that place. Hidden states of the target, joined, through `fc` and `hidden_norm`, are the context c. In
every layer the keys and values of the places before p are projections of the same c (no input norm, no update from layer to
layer); a block sees those and all of itself, also ahead. That is what vLLM computes (`qwen3_dflash.py`).

The layers are Qwen3's, whatever the target is. They have one k_norm in common, written once for each: of several, vLLM's
kernel for CPUs takes the first for the context of all (as in vllm-project/vllm-xpu-kernels issue 573).

Shapes: B rows of T tokens, A blocks a row, L places a block, D = hidden_size, H query heads and G key-value heads of size E, V
words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from engine.checkpoint import ModelConfig, expected_tensors
from harness.zoo.download import ZooError
from harness.zoo.training.documents import FewShot
from harness.zoo.training.drafting import DrafterRecipe, FrozenTarget, soft_cross_entropy
from harness.zoo.training.packing import Batch
from harness.zoo.training.transformer import Decoder, Output, compiled, init_weights, rms_norm, rope_tables, rotated
from harness.zoo.writer import hf_config, write_json, write_safetensors

__all__ = ["BlockBatch", "BlockDrafter", "BlockNet", "BlockObjective", "block_attention", "block_config", "export_block"]

Tensors = Mapping[str, torch.Tensor]
FEW_SHOT = FewShot(share=0.1, min_examples=2, max_examples=2)
MORE_POSITIONS = 64  # than the target's: blocks reach beyond its last token
NUM_DRAFTS = 3  # what the file recommends


def block_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past_k: torch.Tensor, past_v: torch.Tensor, anchors: torch.Tensor
) -> torch.Tensor:
    """Each block sees itself, both ways, and the places before its anchor.

    q [B, A, L, H, E], k and v [B, A, L, G, E], past_k and past_v [B, T, G, E], anchors [B, A] -> [B, A, L, H * E].
    """
    b, a, size, h, e = q.shape
    g, t = k.shape[3], past_k.shape[1]
    n = h // g * size
    q = (q * e**-0.5).view(b, a, size, g, h // g, e).permute(0, 3, 1, 4, 2, 5).reshape(b, g, a, n, e)
    before = (q.view(b, g, a * n, e) @ past_k.permute(0, 2, 3, 1)).view(b, g, a, n, t)
    before = before.masked_fill(torch.arange(t) >= anchors[:, None, :, None, None], float("-inf"))
    within = q @ k.permute(0, 3, 1, 4, 2)
    probs = torch.cat((before, within), dim=-1).softmax(-1)
    out = (probs[..., :t].reshape(b, g, a * n, t) @ past_v.transpose(1, 2)).view(b, g, a, n, e)
    out = out + probs[..., t:] @ v.permute(0, 3, 1, 2, 4)
    return out.view(b, g, a, h // g, size, e).permute(0, 2, 4, 1, 3, 5).reshape(b, a, size, h * e)


class BlockNet:
    """What one pass computes. Weights are arguments, by their names in the file."""

    def __init__(
        self, target: ModelConfig, *, num_layers: int, intermediate_size: int, layer_ids: Sequence[int], mask_token_id: int
    ) -> None:
        """layer_ids: which hidden states of the target are read, where 0 is the embedding and i the output of layer i - 1."""
        self.config = replace(
            target,
            architecture="Qwen3ForCausalLM",
            num_layers=num_layers,
            intermediate_size=intermediate_size,
            tie_word_embeddings=False,
            qkv_bias=False,
            output_bias=False,
            mlp_bias=False,
            qk_norm=True,
        )
        self.layer_ids, self.mask_token_id = tuple(layer_ids), mask_token_id
        self.cos, self.sin = rope_tables(self.config, target.max_position_embeddings + MORE_POSITIONS)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor in the file; the embedding and the output matrix are the target's."""
        d = self.config.hidden_size
        rest = {name.removeprefix("model."): shape for name, shape in expected_tensors(self.config).items()}
        return {
            "fc.weight": (d, len(self.layer_ids) * d),
            "hidden_norm.weight": (d,),
            **{name: shape for name, shape in rest.items() if "embed_tokens" not in name and "lm_head" not in name},
        }

    def initial(self, seed: int) -> dict[str, torch.Tensor]:
        """The parameters before training: leaves, without the copies of `k_norm`."""
        copies = [f"layers.{i}.self_attn.k_norm.weight" for i in range(1, self.config.num_layers)]
        return init_weights({name: shape for name, shape in self.shapes.items() if name not in copies}, seed)

    def complete(self, parameters: Tensors) -> dict[str, torch.Tensor]:
        """With the `k_norm` of the first layer for all of them: the tensors of the file."""
        shared = parameters["layers.0.self_attn.k_norm.weight"]
        return {**parameters, **{f"layers.{i}.self_attn.k_norm.weight": shared for i in range(self.config.num_layers)}}

    def features(self, states: Output) -> torch.Tensor:
        """What `fc` reads: [B, T, number of layer_ids * D]."""
        return torch.cat([states.hidden[i] for i in self.layer_ids], dim=-1)

    def forward(
        self,
        weights: Tensors,
        embedding: torch.Tensor,
        features: torch.Tensor,
        first: torch.Tensor,
        anchors: torch.Tensor,
        size: int,
    ) -> torch.Tensor:
        """What the output matrix reads at all places of all blocks: [B, A, L, D], after the last norm.

        features [B, T, .]: of the row's tokens, of which a block uses those before its anchor; first [B, A]: the token at
        the anchor; anchors [B, A]: its position; size: L.
        """
        eps = self.config.rms_norm_eps
        masks = torch.full((*first.shape, size - 1), self.mask_token_id)
        x = F.embedding(torch.cat((first[..., None], masks), dim=-1), embedding)
        context = rms_norm(F.linear(features, weights["fc.weight"]), weights["hidden_norm.weight"], eps)
        places = anchors[..., None] + torch.arange(size)
        for layer in range(self.config.num_layers):
            x = self._layer(weights, f"layers.{layer}.", x, context, anchors, places)
        return rms_norm(x, weights["norm.weight"], eps)

    def _layer(
        self, weights: Tensors, prefix: str, x: torch.Tensor, context: torch.Tensor, anchors: torch.Tensor, places: torch.Tensor
    ) -> torch.Tensor:
        """x [B, A, L, D] -> [B, A, L, D]; context [B, T, D], places [B, A, L]."""
        config, attention = self.config, f"{prefix}self_attn."
        h, g, e, eps = config.num_heads, config.num_kv_heads, config.head_dim, config.rms_norm_eps
        q_norm, k_norm = weights[f"{attention}q_norm.weight"], weights[f"{attention}k_norm.weight"]
        key_value = torch.cat((weights[f"{attention}k_proj.weight"], weights[f"{attention}v_proj.weight"]))
        t = context.shape[1]

        past = F.linear(context, key_value).view(*context.shape[:2], 2, g, e)
        past_k = rotated(rms_norm(past[:, :, 0], k_norm, eps), self.cos[:t, None], self.sin[:t, None])
        y = rms_norm(x, weights[f"{prefix}input_layernorm.weight"], eps)
        own = F.linear(y, torch.cat((weights[f"{attention}q_proj.weight"], key_value))).view(*x.shape[:3], h + 2 * g, e)
        cos, sin = self.cos[places][..., None, :], self.sin[places][..., None, :]
        q = rotated(rms_norm(own[..., :h, :], q_norm, eps), cos, sin)
        k = rotated(rms_norm(own[..., h : h + g, :], k_norm, eps), cos, sin)
        attended = block_attention(q, k, own[..., h + g :, :], past_k, past[:, :, 1], anchors)

        x = x + F.linear(attended, weights[f"{attention}o_proj.weight"])
        y = rms_norm(x, weights[f"{prefix}post_attention_layernorm.weight"], eps)
        both = torch.cat((weights[f"{prefix}mlp.gate_proj.weight"], weights[f"{prefix}mlp.up_proj.weight"]))
        gate, up = F.linear(y, both).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, weights[f"{prefix}mlp.down_proj.weight"])


@dataclass(frozen=True)
class BlockBatch:
    packed: Batch
    anchors: torch.Tensor  # int64 [B, A], ascending; each has a whole block after it in its row
    size: int  # L


class BlockObjective:
    """Soft cross entropy at the masks of blocks at random anchors of packed rows, a place further on weighing less.

    Options of the recipe: `block_sizes` (L of the steps in turn, such as "4,8": a block at inference may be short),
    `queries` (A * L), `gamma` (place j weighs exp(-(j - 1) / gamma)), and the net's `layers` and `intermediate_size`.
    """

    def __init__(self, recipe: DrafterRecipe, target: FrozenTarget, net: BlockNet, *, compile_layers: bool = True) -> None:
        self.identity = recipe.identity(target)
        self.recipe, self.target, self.net = recipe, target, net
        self.parameters = net.initial(recipe.seed)
        self.block_sizes = [int(size) for size in recipe.option("block_sizes").split(",")]
        self._stream = recipe.stream(target)
        self._frozen = Decoder(target.config, target.model.weights, compile_layers=compile_layers)
        # One for each size, as `compiled` falls back only at its first call.
        self._losses = {size: compiled(self._block_loss) if compile_layers else self._block_loss for size in self.block_sizes}

    def batch(self, step: int) -> BlockBatch:
        """Anchors are drawn without repetition by what predicting the token after them counts."""
        packed = self._stream.batch(step, self.recipe.rows, self.recipe.length, FEW_SHOT)
        size = self.block_sizes[step % len(self.block_sizes)]
        chances = packed.weights[:, 1 : self.recipe.length - size + 2] + 1e-9  # of the anchors 0 ... T - L
        generator = torch.Generator().manual_seed(self.recipe.seed * 1_000_003 + step)
        anchors = torch.multinomial(chances, self.recipe.option("queries") // size, generator=generator)
        return BlockBatch(packed, anchors.sort(dim=1).values, size)

    def loss(self, batch: BlockBatch) -> tuple[torch.Tensor, int]:
        with torch.no_grad():
            states = self._frozen.forward(batch.packed.ids, with_hidden=True)
            features = self.net.features(states)
        loss: torch.Tensor = self._losses[batch.size](
            dict(self.parameters), batch.packed.ids, batch.packed.weights, features, states.logits, batch.anchors, batch.size
        )
        return loss, batch.packed.num_tokens

    def _block_loss(
        self,
        parameters: Tensors,
        ids: torch.Tensor,
        token_weights: torch.Tensor,
        features: torch.Tensor,
        target_logits: torch.Tensor,
        anchors: torch.Tensor,
        size: int,
    ) -> torch.Tensor:
        rows = torch.arange(ids.shape[0])[:, None, None]
        places = anchors[..., None] + torch.arange(size)
        tokens = ids[rows, places]  # [B, A, L]
        hidden = self.net.forward(self.net.complete(parameters), self.target.embedding, features, tokens[..., 0], anchors, size)
        counts = token_weights[rows, places[..., 1:]]
        counts = counts * (counts > 0).cumprod(-1)  # nothing behind the end of a document
        counts = counts * torch.exp(-torch.arange(size - 1) / self.recipe.option("gamma"))
        return self.masks_loss(parameters, hidden[:, :, 1:], tokens[..., :-1], target_logits[rows, places[..., :-1]], counts)

    def masks_loss(
        self,
        parameters: Tensors,
        hidden: torch.Tensor,
        previous: torch.Tensor,
        target_logits: torch.Tensor,
        counts: torch.Tensor,
    ) -> torch.Tensor:
        """The loss of the masks: hidden [B, A, L - 1, D], true tokens before them, target's logits for them, and weights."""
        return soft_cross_entropy(F.linear(hidden, self.target.head), target_logits, counts)


class BlockDrafter:
    """See `Drafter`: one pass over one block, whose context is computed anew."""

    def __init__(self, net: BlockNet, weights: Tensors, target: FrozenTarget, block_size: int) -> None:
        self.net, self.weights, self.target, self.block_size = net, weights, target, block_size

    def propose(self, token_ids: Sequence[int], states: Output, num_drafts: int) -> list[int]:
        """See `Drafter.propose`; not more than the block has masks."""
        hidden = self.block_hidden(token_ids, states, num_drafts)
        return [int(draft) for draft in F.linear(hidden, self.target.head).argmax(-1)]

    @torch.no_grad()
    def block_hidden(self, token_ids: Sequence[int], states: Output, num_drafts: int) -> torch.Tensor:
        """What the output matrix reads for each draft: [min(num_drafts, block_size - 1), D]."""
        size = min(num_drafts + 1, self.block_size)
        first, anchors = torch.tensor([[token_ids[-1]]]), torch.tensor([[len(token_ids) - 1]])
        features = self.net.features(states)
        return self.net.forward(self.weights, self.target.embedding, features, first, anchors, size)[0, 0, 1:]


def block_config(objective: BlockObjective, algorithm: str, architecture: str) -> dict[str, Any]:
    """`config.json` in the format of the speculators library.

    NOTE: without `sliding_window_non_causal`, on purpose: vLLM takes its default value, false, as causal for all layers.
    """
    net, recipe = objective.net, objective.recipe
    return {
        "architectures": [architecture],
        "speculators_model_type": algorithm,
        "speculators_version": "0.3.0",
        "dtype": "bfloat16",
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": NUM_DRAFTS}],
            "verifier": {"name_or_path": recipe.target, "architectures": [objective.target.config.architecture]},
        },
        "transformer_layer_config": hf_config(net.config, torch.bfloat16),
        "draft_vocab_size": net.config.vocab_size,
        "block_size": max(objective.block_sizes),
        "mask_token_id": net.mask_token_id,
        "aux_hidden_state_layer_ids": list(net.layer_ids),
        "sample_from_anchor": False,
    }


def export_block(objective: BlockObjective, config: Mapping[str, Any], directory: Path) -> Path:
    """Write the weights in bfloat16 and `config` as config.json; `directory` comes back. `ZooError` if the disk is full."""
    weights, shapes = objective.net.complete(objective.parameters), objective.net.shapes
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tensors = (weights[name].detach().to(torch.bfloat16) for name in shapes)
        write_safetensors(directory / "model.safetensors", shapes, tensors, torch.bfloat16)
        write_json(directory / "config.json", config)
    except OSError as error:
        raise ZooError(f"{directory} cannot be written ({error.strerror or error})") from error
    return directory


def net_arguments(recipe: DrafterRecipe, target: FrozenTarget) -> dict[str, Any]:
    """What a recipe says about its `BlockNet`."""
    num_layers = target.config.num_layers
    return {
        "num_layers": recipe.option("layers"),
        "intermediate_size": recipe.option("intermediate_size"),
        # Near the start, the middle, and the last; each once, as vLLM would drop a repeated one.
        "layer_ids": sorted({1, (num_layers + 1) // 2, num_layers}),
        "mask_token_id": int(target.tokenizer.hf.pad_token_id),
    }


def read_config(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """`config.json` of a drafter, and what it says about its `BlockNet`."""
    config: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    layer = config["transformer_layer_config"]
    return config, {
        "num_layers": layer["num_hidden_layers"],
        "intermediate_size": layer["intermediate_size"],
        "layer_ids": config["aux_hidden_state_layer_ids"],
        "mask_token_id": config["mask_token_id"],
    }
