"""What a drafter is: it sees the runner's token table and proposes the tokens that may come next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from engine.step import NewSlot

__all__ = ["DraftContext", "Drafter"]


@dataclass(frozen=True)
class DraftContext:
    """The rows that want drafts, after their step was accepted."""

    slots: npt.NDArray[np.int64]  # [rows]
    tokens: npt.NDArray[np.int32]  # [max_num_seqs, max_model_len + K + 1], the runner's table: read only
    num_tokens: npt.NDArray[np.int64]  # [rows], known tokens of each row
    max_drafts: npt.NDArray[np.int64]  # [rows], at most this many proposals count


class Drafter(ABC):
    """One instance lives in each runner. `option_names` are the keys of `speculative_config` that the method understands."""

    option_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, num_speculative_tokens: int, vocab_size: int, options: Mapping[str, Any]) -> None:
        self.num_speculative_tokens = num_speculative_tokens
        self.vocab_size = vocab_size

    def admit(self, new: NewSlot) -> None:  # noqa: B027 - most drafters keep nothing for each slot
        """A request takes a slot; whatever was kept for the slot before is void."""

    @abstractmethod
    def propose(self, context: DraftContext) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Returns (drafts [rows, K] int32, how many of them count [rows]), each draft an id in [0, vocab_size)."""
