"""EAGLE (arXiv 2401.15077) and EAGLE-3 (2503.01840): a layer that reads the target's states and its own.

EAGLE in vLLM's layout (`llama_eagle.py`): `fc` of the token's embedding and the state (the target's after its last norm), then
a layer without an input norm, whose output is what the target's LM head reads, without a norm, and the next state.

EAGLE-3 in the layout of the speculators library, as vLLM reads it (`llama_eagle3.py`): `fc` of three of the target's states
gives the first state; the layer's attention reads the embedding and the state, a norm on each, beside one another. Its output
before the last norm is the next state, and the drafter's own LM head reads it after that norm. A head may have a vocabulary of
its own; `d2t` then holds, for each of its ids, what to add to get the target's.

Shapes: M places, D = the target's hidden size.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from engine.checkpoint import layer_tensors
from engine.checkpoint.weights import Shape
from engine.drafters.base import AcceptedStep, Target
from engine.drafters.chain import ChainDrafter, drafter_file, layer_loader
from engine.layer import Batch, Layer

__all__ = ["Eagle3Drafter", "EagleDrafter"]

PREFIX = "layers.0."


class EagleDrafter(ChainDrafter):
    method: ClassVar[str] = "eagle"

    def load_weights(self, target: Target) -> None:
        file = drafter_file(self.method, self.options)
        self.config = config = file.layer_config("LlamaForCausalLM")
        file.check_target(target.model.config, hidden_size=config.hidden_size, vocab_size=config.vocab_size)
        size = config.hidden_size
        file.require({"fc.weight": (size, 2 * size), **layer_tensors(config, PREFIX, norms=())})
        loader = layer_loader(file, target)
        self.fc = loader.packed("fc.weight")
        self.layer = Layer(loader, PREFIX, config)

    def first_states(self, step: AcceptedStep, places: torch.Tensor) -> torch.Tensor:
        return step.hidden.normed[places]

    def compute(self, embeds: torch.Tensor, carried: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.kernels.linear(torch.cat((embeds, carried), dim=1), self.fc)
        residual = x.clone()
        output = self.run_layer(x, residual, batch) + residual
        return output, output


class Eagle3Drafter(ChainDrafter):
    method: ClassVar[str] = "eagle3"

    def load_weights(self, target: Target) -> None:
        file = drafter_file(self.method, self.options)
        fields = file.fields
        self.config = config = file.layer_config("LlamaForCausalLM")
        hidden = fields.integer("target_hidden_size", config.hidden_size)
        file.check_target(target.model.config, hidden_size=hidden, vocab_size=config.vocab_size)
        self.norm_before_residual = fields.flag("norm_before_residual")
        if fields.flag("norm_before_fc"):
            raise fields.error("norm_before_fc is true, which is not supported")
        self.layer_ids = target_layer_ids(fields.get("eagle_aux_hidden_state_layer_ids"), target, file.fields.source)
        size, draft_vocab = config.hidden_size, fields.integer("draft_vocab_size", config.vocab_size)
        shapes: dict[str, Shape] = {
            "fc.weight": (size, len(self.layer_ids) * hidden),
            **layer_tensors(config, PREFIX, input_size=2 * size, norms=("input_layernorm", "hidden_norm")),
            "norm.weight": (size,),
            "lm_head.weight": (draft_vocab, size),
        }
        if draft_vocab != config.vocab_size:
            shapes["d2t"] = (draft_vocab,)
        file.require(shapes)
        loader = layer_loader(file, target)
        self.fc, self.head = loader.packed("fc.weight"), loader.packed("lm_head.weight")
        self.input_norm, self.hidden_norm, self.norm = (
            loader.vector(f"{name}.weight") for name in (f"{PREFIX}input_layernorm", f"{PREFIX}hidden_norm", "norm")
        )
        self.layer = Layer(loader, PREFIX, config)
        if "d2t" in shapes:
            self.target_ids = torch.arange(draft_vocab) + file.tensor("d2t")
            if not 0 <= int(self.target_ids.min()) <= int(self.target_ids.max()) < config.vocab_size:
                raise fields.error("d2t leads outside of the target's vocabulary")

    def first_states(self, step: AcceptedStep, places: torch.Tensor) -> torch.Tensor:
        return self.kernels.linear(torch.cat([layer[places] for layer in step.hidden.layers], dim=1), self.fc)

    def compute(self, embeds: torch.Tensor, carried: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        kernels, eps = self.kernels, self.config.rms_norm_eps
        normed = kernels.rms_norm(carried, self.hidden_norm, eps)
        x = torch.cat((kernels.rms_norm(embeds, self.input_norm, eps), normed), dim=1)
        residual = normed if self.norm_before_residual else carried.clone()
        output = self.run_layer(x, residual, batch)
        return kernels.add_rms_norm(output, residual, self.norm, eps), residual


def target_layer_ids(given: object, target: Target, source: str) -> tuple[int, ...]:
    """Which states a drafter's file names; vLLM's default where it names none. `CheckpointError` for ids that do not exist."""
    from engine.errors import CheckpointError

    num_layers = target.model.config.num_layers
    if given is None:
        given = [2, num_layers // 2, num_layers - 3]
    if not isinstance(given, list) or not given or not all(type(i) is int and 0 <= i <= num_layers for i in given):
        raise CheckpointError(f"{source}: the ids of the target's layers are {given!r}, expected some of 0 to {num_layers}")
    return tuple(given)
