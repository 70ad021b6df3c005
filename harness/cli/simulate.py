"""`lockstep simulate`: random scenarios of the real scheduler, KV cache and runner on a hash model, against its closed form."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from tqdm.auto import tqdm

from harness.cli.arguments import positive
from harness.faults.catalog import find_fault
from harness.replay import write_replay
from harness.shrink import run_replay
from harness.simulation.campaign import Campaign, as_replay, simulate
from harness.simulation.scenario import draw_scenario

__all__ = ["add_parser"]

SHOWN = 5


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("simulate", help="random scenarios against the closed form", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first scenario; the others follow (default: 0)")
    parser.add_argument("--scenarios", type=positive, default=1000, metavar="N", help="how many (default: 1000)")
    parser.add_argument("--processes", type=positive, default=len(os.sched_getaffinity(0)), metavar="N", help="default: cores")
    parser.add_argument("--fault", metavar="ID", help="with this injected fault; see `lockstep faults list`")
    parser.add_argument(
        "--replays", type=Path, default=Path("runs/replays"), metavar="DIR", help="where failing scenarios are written"
    )
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    plugins = (find_fault(arguments.fault).plugin,) if arguments.fault else ()
    start = time.monotonic()
    with tqdm(total=arguments.scenarios, desc="scenarios", dynamic_ncols=True) as bar:
        campaign = simulate(
            arguments.seed, arguments.scenarios, num_processes=arguments.processes, plugins=plugins, progress=bar.update
        )
    for line in describe(campaign, time.monotonic() - start):
        print(line)
    for seed, exception, message in campaign.violations[:SHOWN]:
        replay = as_replay(draw_scenario(seed), plugins)
        error = run_replay(replay)
        path = arguments.replays / f"simulation-{seed}.json"
        write_replay(replay.after(error) if error else replay, path)
        print(f"\nseed {seed}: {exception}: {message}\n  lockstep replay {path} --shrink")
    return 1 if campaign.violations else 0


def describe(campaign: Campaign, seconds: float) -> list[str]:
    happened = ", ".join(f"{name.removeprefix('num_')} {campaign.activity[name]:,}" for name in campaign.activity)
    ended = ", ".join(f"{reason} {count:,}" for reason, count in sorted(campaign.endings.items()))
    lines = [
        f"{campaign.num_scenarios:,} scenarios in {seconds:.0f} s: {len(campaign.violations)} violations",
        f"  happened: {happened}",
        f"  requests ended by: {ended}",
    ]
    if campaign.idle and campaign.num_scenarios >= 1000:
        lines.append(f"  never happened: {', '.join(campaign.idle)}")
    return lines
