"""Do the checks check? Every public defect of this field that this engine can have is put back, one at a time.

Each runs in a case of the ordinary suites, or in the simulation, and must be seen by the oracle that names it; the same case
passes without it. What is put in and never runs is an error, not a pass.
"""

from __future__ import annotations

from typing import Any

import pytest

from harness import errors
from harness.cells import ReferenceFor
from harness.faults.cases import Finding, judge_fault, run_case
from harness.faults.catalog import ORACLES_THAT_STAY, all_faults
from harness.faults.fault import Fault
from harness.judge import Judge
from harness.recording import Notes

FAULTS = all_faults()


def under_each_fault() -> list[Any]:
    return [
        pytest.param(fault, id=fault.id, marks=pytest.mark.xfail(raises=getattr(errors, fault.raises), strict=True))
        for fault in FAULTS.values()
    ]


@pytest.mark.parametrize("fault", under_each_fault())
def test_fault_is_seen(fault: Fault, reference_for: ReferenceFor, record: Notes) -> None:
    """By the exception that names it; any other exception, or none, fails the test."""
    finding = judge_fault(fault, reference_for)
    note(record, finding)
    if finding.error is not None:
        raise finding.error


@pytest.mark.parametrize("case", sorted({fault.case for fault in FAULTS.values()}))
def test_the_same_case_passes_without_a_fault(case: str, reference_for: ReferenceFor) -> None:
    run_case(case, (), Judge(), reference_for)


def test_every_oracle_is_needed(reference_for: ReferenceFor, record: Notes) -> None:
    """Each oracle is the only one that sees some fault in its case; where none needs it, the catalog says why it stays."""
    findings = [judge_fault(fault, reference_for) for fault in FAULTS.values()]
    missed = [finding.fault.id for finding in findings if not finding.is_caught]
    assert not missed
    alone = {finding.kinds[0] for finding in findings if len(finding.kinds) == 1}
    oracles = set(errors.__all__) - {"ValidationError"}
    assert alone.isdisjoint(ORACLES_THAT_STAY)
    assert oracles - alone == set(ORACLES_THAT_STAY)
    record.figure("faults caught", len(findings) - len(missed), n=len(findings))
    record.figure("oracles that alone see a fault", len(alone), n=len(oracles))


def note(record: Notes, finding: Finding) -> None:
    record.activity({"num_reached": finding.num_reached, "seen_by": list(finding.kinds)})
    record.provenance({"fault": finding.fault.id, "source": finding.fault.source, "fault_case": finding.fault.case})
