"""`lockstep faults list | run ID | matrix | scenarios`: known defects, put back into the engine, and what sees them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from statistics import median

from tqdm.auto import tqdm

from harness import errors
from harness.cli.arguments import positive
from harness.faults.cases import Finding, judge_fault, scenarios_until_seen
from harness.faults.catalog import NOT_INJECTED, ORACLES_THAT_STAY, all_faults, find_fault
from harness.reference import References
from harness.replay import Replay

__all__ = ["add_parser"]

SEED_STRIDE = 1_000_000


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "faults", help="put known defects back into the engine and see what sees them", description=__doc__
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="all faults, and the public defects that are none here")
    listing.set_defaults(handler=show_list)
    one = actions.add_parser("run", help="one fault in its case (or another one), and every oracle's verdict")
    one.add_argument("id", help="as `lockstep faults list` shows it, such as S-02/one")
    one.add_argument("--case", help="another case; see harness/faults/cases.py for their names")
    one.set_defaults(handler=run_one)
    matrix = actions.add_parser("matrix", help="which oracle sees which fault")
    matrix.set_defaults(handler=show_matrix)
    scenarios = actions.add_parser("scenarios", help="how many random scenarios it takes until the simulation sees each fault")
    scenarios.add_argument("--seeds", type=positive, default=20, metavar="N", help="the median of so many (default: 20)")
    scenarios.add_argument("--most", type=positive, default=1000, metavar="N", help="give up after so many (default: 1000)")
    scenarios.set_defaults(handler=show_scenarios)


def show_list(arguments: argparse.Namespace) -> int:
    for fault in all_faults().values():
        source = f" ({fault.source})" if fault.source else ""
        print(f"{fault.id:26} {fault.summary}{source}\n{'':26} {fault.part}, {fault.case} -> {fault.raises}")
    print(f"\nnot put back:\n{_reasons(NOT_INJECTED)}")
    return 0


def run_one(arguments: argparse.Namespace) -> int:
    fault = find_fault(arguments.id)
    try:
        finding = judge_fault(fault, References(), arguments.case)
    except errors.FaultNotReachedError as error:
        print(error)
        return 1
    print(f"{fault.id}: {fault.summary}\n  in {arguments.case or fault.case}, reached {finding.num_reached} times")
    for verdict in finding.verdicts:
        print(f"\n{type(verdict).__name__}: {verdict}")
    print(f"\n{'seen' if finding.is_caught else 'NOT seen'} by {fault.raises}, in {finding.seconds:.1f} s")
    if isinstance(finding.error and finding.error.replay, Replay) and fault.is_simulated:
        print(f"smaller: lockstep simulate --fault {fault.id} --scenarios 200, then lockstep replay FILE --shrink")
    return 0 if finding.is_caught else 1


def show_matrix(arguments: argparse.Namespace) -> int:
    references = References()
    findings = [
        judge_fault(fault, references) for fault in tqdm(all_faults().values(), desc="faults", dynamic_ncols=True, leave=False)
    ]
    for line in matrix(findings):
        print(line)
    return 0 if all(finding.is_caught for finding in findings) else 1


def show_scenarios(arguments: argparse.Namespace) -> int:
    unseen = 0
    for fault in all_faults().values():
        if not fault.is_simulated:
            continue
        # Seeds so far apart that no scenario counts twice.
        counts = [scenarios_until_seen(fault, SEED_STRIDE * seed, arguments.most) for seed in range(arguments.seeds)]
        never = counts.count(None)
        unseen += never > 0
        sorted_counts = sorted(arguments.most + 1 if count is None else count for count in counts)
        tail = f", {never} not within {arguments.most}" if never else ""
        print(
            f"{fault.id:24} median {median(sorted_counts):6g}, from {sorted_counts[0]} to {sorted_counts[-1]}{tail}", flush=True
        )
    return 1 if unseen else 0


def matrix(findings: Iterable[Finding]) -> list[str]:
    """Rows: faults. Columns: oracles. `#`: must see it and does; `+`: sees it too; `!`: must see it and does not."""
    findings = list(findings)
    oracles = [name for name in errors.__all__ if any(name in (f.fault.raises, *f.kinds) for f in findings)]
    width = max(len(finding.fault.id) for finding in findings)
    lines = [f"{'':{width}}  {' ' * (2 * i)}{name}" for i, name in enumerate(oracles)]
    for finding in findings:
        marks = " ".join(_mark(finding, oracle) for oracle in oracles)
        lines.append(f"{finding.fault.id:{width}}  {marks}  {finding.seconds:5.1f} s  {finding.fault.case}")
    alone = {f.kinds[0] for f in findings if len(f.kinds) == 1}
    caught = sum(finding.is_caught for finding in findings)
    lines.append(f"\n{caught} of {len(findings)} faults seen by the oracle that names them (#; +: by this one too; !: missed)")
    lines.append(f"{len(alone)} oracles are the only one for some fault; of the others:\n{_reasons(ORACLES_THAT_STAY)}")
    return lines


def _mark(finding: Finding, oracle: str) -> str:
    if oracle == finding.fault.raises:
        return "#" if oracle in finding.kinds else "!"
    return "+" if oracle in finding.kinds else "."


def _reasons(reasons: dict[str, str]) -> str:
    return "\n".join(f"  {name}: {reason}" for name, reason in reasons.items())
