"""Many scenarios, on all cores: what failed, and what happened in all of them together."""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field

from harness.drafting import Drafting
from harness.errors import ValidationError
from harness.replay import Replay
from harness.scripted import METHOD
from harness.simulation.scenario import Scenario, check_scenario, draw_scenario

__all__ = ["ACTIVITY", "Campaign", "as_replay", "first_violation", "simulate"]

CHUNK = 200
ACTIVITY = (
    "num_steps",
    "num_overlapped_steps",
    "num_generated_tokens",
    "num_preemptions",
    "num_prefix_hits",
    "num_partial_prefills",
    "num_drafted_tokens",
    "num_accepted_tokens",
    "num_dropped_rows",
    "num_nan_rows",
)
"""Counters that must be above zero over any thousand scenarios, else the simulation tests less than it says."""


@dataclass
class Campaign:
    num_scenarios: int = 0
    activity: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, str, str]] = field(default_factory=list)
    """(seed of the scenario, exception, first lines)"""

    def add(self, other: Campaign) -> None:
        self.num_scenarios += other.num_scenarios
        self.activity.update(other.activity)
        self.endings.update(other.endings)
        self.violations.extend(other.violations)

    @property
    def idle(self) -> list[str]:
        """What never happened."""
        return [name for name in ACTIVITY if not self.activity[name]]


def simulate(
    seed: int,
    scenarios: int,
    *,
    num_processes: int = 1,
    plugins: Sequence[str] = (),
    progress: Callable[[int], object] = lambda done: None,
) -> Campaign:
    """The scenarios `seed`, `seed + 1`, ... in as many processes."""
    total = Campaign()
    chunks = [range(start, min(start + CHUNK, seed + scenarios)) for start in range(seed, seed + scenarios, CHUNK)]
    if num_processes == 1:
        for chunk in chunks:
            total.add(_run(chunk, plugins))
            progress(len(chunk))
        return total
    # Ctrl-C ends the workers at once; an engine that has to hold it off would set a handler twice in each step.
    die_at_once = (signal.SIGINT, signal.SIG_DFL)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, context, signal.signal, die_at_once) as pool:
        futures = {pool.submit(_run, chunk, plugins): chunk for chunk in chunks}
        for future in as_completed(futures):
            total.add(future.result())
            progress(len(futures[future]))
    total.violations.sort()
    return total


def _run(seeds: Sequence[int], plugins: Sequence[str]) -> Campaign:
    found = Campaign(len(seeds))
    for seed in seeds:
        try:
            stats = check_scenario(draw_scenario(seed), plugins)
        except ValidationError as error:
            found.violations.append((seed, type(error).__name__, str(error)))
            continue
        counters = asdict(stats)
        found.activity.update({name: counters[name] for name in ACTIVITY})
        found.endings.update(stats.num_finished)
    return found


def first_violation(seeds: Iterator[int], plugins: Sequence[str], most: int) -> tuple[int, ValidationError | None]:
    """(how many scenarios it took, what was seen); None after `most`."""
    for count in range(1, most + 1):
        try:
            check_scenario(draw_scenario(next(seeds)), plugins)
        except ValidationError as error:
            return count, error
    return most, None


def as_replay(scenario: Scenario, plugins: Sequence[str]) -> Replay:
    return Replay(
        "simulation",
        "hash model",
        {**scenario.options, "plugins": list(plugins)},
        scenario.items,
        Drafting(METHOD, METHOD, accept=scenario.accept),
        scenario.num_speculative_tokens,
        scenario.num_rounds,
        scenario.is_in_turn,
    )
