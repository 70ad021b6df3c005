"""All injected faults, by id."""

from __future__ import annotations

from engine.errors import nearest_hint
from harness.faults import corruption
from harness.faults.fault import Fault, known_faults

__all__ = ["FAULT_MODULES", "all_faults", "find_fault"]

FAULT_MODULES = (corruption,)


def all_faults() -> dict[str, Fault]:
    return dict(known_faults())


def find_fault(fault_id: str) -> Fault:
    """`ValueError` names the nearest one for an id that is none."""
    faults = all_faults()
    if fault_id not in faults:
        raise ValueError(f"unknown fault {fault_id!r}.{nearest_hint(fault_id, faults)} See `lockstep faults list`.")
    return faults[fault_id]
