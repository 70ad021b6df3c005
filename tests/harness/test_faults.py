"""What is put in is found by name, reaches every process, and is never taken for seen when it did not run."""

from __future__ import annotations

import re

import pytest

from harness import errors
from harness.cells import equivalence_cell
from harness.cli import main
from harness.cli.faults import matrix
from harness.errors import FaultNotReachedError, TokenMismatchError, ValidationError
from harness.faults.cases import Finding, judge_fault, run_case, scenarios_until_seen
from harness.faults.catalog import NOT_INJECTED, all_faults, find_fault
from harness.faults.fault import fault
from harness.judge import Judge
from harness.reference import References


@pytest.fixture(scope="module")
def references() -> References:
    return References()


def test_each_fault_names_what_exists() -> None:
    for id, one in all_faults().items():
        assert id == one.id
        assert issubclass(getattr(errors, one.raises), ValidationError)
        assert one.source or id.startswith("own/")
        assert id.split("/")[0] not in NOT_INJECTED


def test_an_unknown_fault_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown fault 'S-02/onne'\. Did you mean 'S-02/one'\?"):
        find_fault("S-02/onne")


def test_two_faults_cannot_have_one_id() -> None:
    with pytest.raises(ValueError, match=r"there are two faults 'S-10'"):
        fault("S-10", "again", part="scheduler", case="simulation:1", raises="TokenMismatchError")(object)


def test_a_fault_whose_feature_is_off_is_an_error(references: References) -> None:
    """Nothing is drafted in a plain cell, so a dead drafter says nothing there."""
    with pytest.raises(FaultNotReachedError, match=r"fault D-06 was never reached in cell:.*its feature is off"):
        judge_fault(find_fault("D-06"), references, "cell:roomy/whole/nocache/plain/greedy")


def test_an_expected_exception_without_the_fault_is_no_detection(references: References) -> None:
    """The case fails for a reason of its own (the pool is roomy: nobody is preempted), and the fault did not run."""
    with pytest.raises(FaultNotReachedError):
        judge_fault(find_fault("S-10"), references, "cell:roomy/whole/nocache/plain/greedy")


def test_all_oracles_are_heard(references: References) -> None:
    finding = judge_fault(find_fault("P-12/unverified"), references)
    assert finding.is_caught
    assert finding.kinds == ("TokenMismatchError", "AcceptanceRateError")
    assert isinstance(finding.error, TokenMismatchError)


def test_a_fault_reaches_the_worker_process(references: References) -> None:
    with pytest.raises(TokenMismatchError):
        equivalence_cell(
            *("mp", "roomy", "whole", "nocache", "plain", "temperature"),
            reference_for=references,
            plugins=(find_fault("own/noise-by-row").plugin,),
        )


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("cel:roomy", "unknown case 'cel:roomy'. Did you mean 'cell'?"),
        ("cell:roomy", "must be cell:POOL/PREFILL/CACHE/DRAFTS/SAMPLING"),
        ("staggered:roomi/plain", "unknown POOL 'roomi'. Did you mean 'roomy'?"),
        ("simulation:0", "COUNT must be a number above 0"),
    ],
)
def test_a_bad_case_says_what_to_write(case: str, message: str, references: References) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        run_case(case, (), Judge(), references)


def test_the_matrix_shows_what_was_missed() -> None:
    one = find_fault("S-10")
    seen = Finding(one, (errors.StalledEngineError("x"),), 1, 0.5)
    missed = Finding(one, (errors.TokenMismatchError("x"),), 1, 0.5)
    assert any(line.startswith("S-10") and "# ." in line for line in matrix([seen, missed]))
    assert any(line.startswith("S-10") and "! +" in line for line in matrix([seen, missed]))
    assert any("1 of 2 faults seen" in line for line in matrix([seen, missed]))


def test_the_simulation_sees_a_fault_after_some_scenarios() -> None:
    assert scenarios_until_seen(find_fault("own/buffer-shared"), 0, 300) is not None
    assert scenarios_until_seen(find_fault("P-08/raw"), 0, 3) is None  # no log-probabilities there


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", "run", "S-10"]) == 0
    out = capsys.readouterr().out
    assert "StalledEngineError" in out
    assert "seen by StalledEngineError" in out
    assert main(["faults", "run", "S-10", "--case", "cell:roomy/whole/nocache/plain/greedy"]) == 1
    assert "never reached" in capsys.readouterr().out
    assert main(["faults", "run", "S-1"]) == 2
    assert "Did you mean 'S-10'?" in capsys.readouterr().err
    assert main(["faults", "list"]) == 0
    listing = capsys.readouterr().out
    assert all(id in listing for id in (*all_faults(), *NOT_INJECTED))
