"""What a drafter is: it sees the runner's token table and proposes the tokens that may come next.

After each step the runner calls `advance`, for all rows, and then `propose`, for those that want drafts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from engine.drafters.pick import DraftPicker
from engine.model import Decoder, Hidden
from engine.slot_table import SlotTable
from engine.step import NewSlot

__all__ = ["AcceptedStep", "DraftContext", "Drafter", "Drafts", "Target"]

Ints = npt.NDArray[np.int64]
Drafts = tuple[npt.NDArray[np.int32], Ints]
"""(drafts [rows, K], how many of them count [rows]), each draft an id in [0, vocab_size)."""


@dataclass(frozen=True)
class Target:
    """The engine that a drafter drafts for, as far as drafters may use it. They read the table and never write to it."""

    model_name: str  # as the user wrote it
    model: Decoder
    table: SlotTable
    num_kv_blocks: int
    block_size: int
    dtype: str
    padded: bool
    """Whether `advance` runs over all tokens of a step's rows, so that its shapes do not depend on what was accepted."""
    pick: DraftPicker


@dataclass(frozen=True)
class AcceptedStep:
    """A step of the target, accepted and committed to the table. All arrays have one entry for each of its rows."""

    slots: Ints
    starts: Ints  # position of the first token that the row put through the target
    offsets: Ints  # where that token stands in `hidden`
    query_lens: Ints  # how many tokens it put through; those behind `num_computed` were rejected
    num_computed: Ints  # leading positions whose tokens are known and whose states are final
    num_tokens: Ints  # known tokens: one more than that, or more in the middle of a prompt
    max_drafts: Ints  # what `propose` will be asked for
    hidden: Hidden  # of the whole step; `layers` are the drafter's `layer_ids`


@dataclass(frozen=True)
class DraftContext:
    """The rows that want drafts."""

    slots: Ints  # [rows]
    tokens: npt.NDArray[np.int32]  # [max_num_seqs, max_model_len + K + 1], the runner's table: read only
    num_tokens: Ints  # [rows], known tokens of each row
    max_drafts: Ints  # [rows], at most this many proposals count; at least 1


class Drafter(ABC):
    """One instance lives in each runner."""

    option_names: ClassVar[tuple[str, ...]] = ()
    """The keys of `speculative_config` that the method understands."""
    keeps_kv: ClassVar[bool] = False
    """It writes entries of its own to the sequences' blocks, so that these must reach K + 1 positions further."""
    reads_next_token: ClassVar[bool] = False
    """Its entry for a position depends on the token after it, so a cached block serves only if the one behind it matches."""
    has_distribution: ClassVar[bool] = False
    """Its proposals come from logits, so they can be drawn; it picks them with `Target.pick`."""
    layer_ids: tuple[int, ...] = ()
    """Which of the target's states `advance` reads; see `Decoder.forward`."""

    def __init__(self, num_speculative_tokens: int, vocab_size: int, options: Mapping[str, Any]) -> None:
        """Raises `ValueError` for an option's bad value."""
        self.num_speculative_tokens = num_speculative_tokens
        self.vocab_size = vocab_size
        self.options = options

    def load(self, target: Target) -> None:  # noqa: B027 - most drafters have no weights
        """Read the weights, once. `ValueError` (`CheckpointError`) for a checkpoint that does not fit the target."""

    def admit(self, new: NewSlot) -> None:  # noqa: B027 - most drafters keep nothing for each slot
        """A request takes a slot; whatever was kept for the slot before is void."""

    def advance(self, step: AcceptedStep) -> None:  # noqa: B027 - most drafters keep nothing for each slot
        """Take in what the target has just settled, for all rows, those that want no drafts among them."""

    @abstractmethod
    def propose(self, context: DraftContext) -> Drafts:
        """Proposals behind the known tokens of each row."""
