"""Stable slots: a request keeps its slot while it runs, and every stay in a slot has its own generation (law 4)."""

from __future__ import annotations

__all__ = ["SlotPool"]


class SlotPool:
    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._generations = [0] * num_slots
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def free(self) -> tuple[int, ...]:
        return tuple(self._free)

    def take(self) -> tuple[int, int]:
        """(slot, generation) of a stay that begins now."""
        slot = self._free.pop()
        self._generations[slot] += 1
        return slot, self._generations[slot]

    def release(self, slot: int) -> None:
        assert slot not in self._free, f"slot {slot} is released twice"
        self._free.append(slot)
