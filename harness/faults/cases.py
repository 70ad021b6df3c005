"""The cases that faults are put into: cells of the ordinary suites, and random scenarios of the simulation, by name.

Names are those of `_WORDS`, such as `cell:tight/whole/nocache/right/greedy` or `simulation:300`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from engine.drafters.pick import DRAFT_SAMPLE_METHODS
from engine.errors import nearest_hint
from harness.cells import ReferenceFor, conversation_cell, equivalence_cell, staggered_cell
from harness.config_resolution import assert_resolution, known_methods, resolve
from harness.draft_cells import EVENTS, FILTERS, bounds_cell, identity_cell, neighbours_cell, rejection_cell
from harness.drafting import DRAFTERS
from harness.errors import FaultNotReachedError, ValidationError
from harness.faults.fault import Fault
from harness.judge import Judge
from harness.simulation.campaign import as_replay
from harness.simulation.scenario import check_scenario, draw_scenario
from harness.spec_methods import METHODS
from harness.workloads import BUDGETS, CACHES, POOLS, PREFILLS, SAMPLING

__all__ = ["Finding", "judge_fault", "run_case", "scenarios_until_seen"]

Check = Callable[[Sequence[str], Sequence[str], Judge, ReferenceFor], object]
"""(words of the name, plugins, judge, references)"""


def run_case(name: str, plugins: Sequence[str], judge: Judge, reference_for: ReferenceFor) -> None:
    """`ValueError` for a name that is none; whatever the case's own oracles raise."""
    kind, words = _parse(name)
    _CHECKS[kind](words, plugins, judge, reference_for)


def _parse(name: str) -> tuple[str, list[str]]:
    kind, _, rest = name.partition(":")
    if kind not in _WORDS:
        raise ValueError(f"unknown case {name!r}.{nearest_hint(kind, _WORDS)}")
    words = rest.split("/")
    if len(words) != len(_WORDS[kind]):
        raise ValueError(f"case {name!r} must be {kind}:{'/'.join(_WORDS[kind])}.")
    for axis, word in zip(_WORDS[kind], words, strict=True):
        known = _KNOWN.get(axis)
        if known is not None and word not in known:
            raise ValueError(f"case {name!r}: unknown {axis} {word!r}.{nearest_hint(word, known)}")
        if axis in ("COUNT", "DEPTH") and not (word.isdigit() and int(word) > 0):
            raise ValueError(f"case {name!r}: {axis} must be a number above 0, got {word!r}.")
    return kind, words


@dataclass(frozen=True)
class Finding:
    """What a case says of a fault."""

    fault: Fault
    verdicts: tuple[ValidationError, ...]
    """In the order of the oracles."""
    num_reached: int
    seconds: float

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(type(error).__name__ for error in self.verdicts))

    @property
    def is_caught(self) -> bool:
        """By the oracle that must see it."""
        return self.fault.raises in self.kinds

    @property
    def error(self) -> ValidationError | None:
        """The verdict that counts: that of the oracle that must see it, if it is among them."""
        return next((e for e in self.verdicts if type(e).__name__ == self.fault.raises), next(iter(self.verdicts), None))


def judge_fault(fault: Fault, reference_for: ReferenceFor, case: str | None = None) -> Finding:
    """Run the fault's own case (or another) with the fault in the engine, and hear every oracle.

    `FaultNotReachedError` if the fault's code changed nothing, whatever was raised: then the case says nothing of it.
    """
    judge = Judge(collects=True)
    fault.num_reached = 0
    start = time.monotonic()
    try:
        run_case(case or fault.case, (fault.plugin,), judge, reference_for)
    except ValidationError as error:  # what ends a run is no oracle's to collect
        if error not in judge.verdicts:
            judge.verdicts.append(error)
    seconds = time.monotonic() - start
    if not fault.num_reached:
        raise FaultNotReachedError(
            f"fault {fault.id} was never reached in {case or fault.case}: its feature is off there, or nothing came to it",
            case=case or fault.case,
            actual=[type(error).__name__ for error in judge.verdicts],
        )
    return Finding(fault, tuple(judge.verdicts), fault.num_reached, seconds)


def scenarios_until_seen(fault: Fault, seed: int, most: int) -> int | None:
    """How many scenarios from `seed` on until the simulation sees it; None for more than `most`."""
    for number in range(most):
        try:
            check_scenario(draw_scenario(seed + number), (fault.plugin,))
        except ValidationError:
            return number + 1
    return None


def _simulation(words: Sequence[str], plugins: Sequence[str], judge: Judge, reference_for: ReferenceFor) -> None:
    """Scenarios until the first that fails."""
    for seed in range(int(words[0])):
        scenario = draw_scenario(seed)
        with judge, judge.for_replay(as_replay(scenario, plugins)):
            check_scenario(scenario, plugins)
        if judge.verdicts:
            return


def _resolution(words: Sequence[str], plugins: Sequence[str], judge: Judge, reference_for: ReferenceFor) -> None:
    """On by default, and on when asked for."""
    speculative = {"method": words[0], "num_speculative_tokens": 3}
    for requested in (None, True):
        options = {"speculative_config": speculative, "async_scheduling": requested, "plugins": plugins}
        with judge:
            assert_resolution(options, resolve(options), enabled=True, warns=False)


_WORDS = {
    "cell": ("POOL", "PREFILL", "CACHE", "DRAFTS", "SAMPLING"),
    "staggered": ("POOL", "DRAFTS"),
    "conversation": ("DRAFTS", "SAMPLING"),
    "bounds": ("METHOD",),
    "neighbours": ("METHOD",),
    "identity": ("EVENT", "DEPTH"),
    "distribution": ("FILTERS", "PICKS", "CLOSENESS"),
    "resolution": ("CONFIGURED",),
    "simulation": ("COUNT",),
}
_KNOWN: dict[str, Collection[str]] = {
    "POOL": POOLS,
    "PREFILL": PREFILLS | BUDGETS,
    "CACHE": CACHES,
    "DRAFTS": DRAFTERS,
    "SAMPLING": SAMPLING,
    "METHOD": METHODS,
    "EVENT": EVENTS,
    "FILTERS": FILTERS,
    "PICKS": DRAFT_SAMPLE_METHODS,
    "CLOSENESS": ("0.0", "0.7", "1.0"),
    "CONFIGURED": known_methods(),
}
_CHECKS: dict[str, Check] = {
    "cell": lambda w, plugins, judge, refs: equivalence_cell("uni", *w, reference_for=refs, plugins=plugins, judge=judge),
    "staggered": lambda w, plugins, judge, refs: staggered_cell("uni", *w, reference_for=refs, plugins=plugins, judge=judge),
    "conversation": lambda w, plugins, judge, refs: conversation_cell(*w, reference_for=refs, plugins=plugins, judge=judge),
    "bounds": lambda w, plugins, judge, refs: bounds_cell(w[0], plugins=plugins, judge=judge),
    "neighbours": lambda w, plugins, judge, refs: neighbours_cell(w[0], plugins=plugins, judge=judge),
    "identity": lambda w, plugins, judge, refs: identity_cell(w[0], int(w[1]), plugins=plugins, judge=judge),
    "distribution": lambda w, plugins, judge, refs: rejection_cell(w[0], w[1], float(w[2]), plugins=plugins, judge=judge),
    "resolution": _resolution,
    "simulation": _simulation,
}
