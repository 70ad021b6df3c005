"""All injected faults, by id."""

from __future__ import annotations

from engine.errors import nearest_hint
from harness.faults import caching, configuration, corruption, delivery, drafting, endings, sampling, scheduling
from harness.faults.fault import Fault, known_faults

__all__ = ["FAULT_MODULES", "NOT_INJECTED", "ORACLES_THAT_STAY", "all_faults", "find_fault"]

FAULT_MODULES = (scheduling, caching, sampling, drafting, endings, delivery, configuration, corruption)
NOT_INJECTED = {
    "P-01": "penalties and bad_words are not built, so no parameter here reads the history of what was said",
    "P-10": "grammars are not built, so there are no mask rows that could shift",
    "C-03": "pipeline parallelism and other platforms are refused, so nothing can be switched on into them",
    "M-06": "no latency is measured, and degenerate text is a matter of the workload (`harness/accuracy.py` counts it)",
    "H-02": "a matter of answer extraction, not of the engine: tests/harness/test_accuracy.py has the hand-made completions",
    "H-05": "a matter of marks and thresholds: tests/harness/test_known_defects_plugin.py breaks them one by one",
}
"""Public defects of `defects.md` without a fault here, and why."""

ORACLES_THAT_STAY = {
    "AccuracyError": "where tokens cannot be compared (another engine, another precision) answers are what is left; the "
    "corruptions that it must see are in suites/test_accuracy.py",
    "BluntCheckError": "judges checks, not engines",
    "FaultNotReachedError": "judges this suite, not engines",
}
"""Oracles that no fault here needs, and why they stay."""


def all_faults() -> dict[str, Fault]:
    return dict(sorted(known_faults().items()))


def find_fault(fault_id: str) -> Fault:
    """`ValueError` names the nearest one for an id that is none."""
    faults = all_faults()
    if fault_id not in faults:
        raise ValueError(f"unknown fault {fault_id!r}.{nearest_hint(fault_id, faults)} See `lockstep faults list`.")
    return faults[fault_id]
