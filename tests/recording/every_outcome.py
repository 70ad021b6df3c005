"""A suite in which every test ends in another way. Not collected here: the tests copy it into a project of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness import errors
from harness.recording import Notes

KINDS = [name for name in errors.__all__ if name != "ValidationError"]


@pytest.mark.parametrize("sampling", ["greedy", "hot"])
@pytest.mark.parametrize("executor", [{"backend": "mp"}], ids=["mp"])
@pytest.mark.tier("real")
def test_passes(record: Notes, executor: dict[str, str], sampling: str) -> None:
    record.config({"async_scheduling": np.bool_(True), "path": Path("a/b")})
    record.config({"rule": None})
    record.activity({"num_steps": np.int64(3), "per_pos": [1, 2], "finished": {"stop": 1}})
    record.activity({"num_steps": 4, "per_pos": [1, 1, 1], "finished": {"stop": 1, "length": 2}})
    record.figure("rate", np.float32(0.5), n=np.int64(10), interval=(np.float64(0.25), float("nan")), threshold=0.5, unit="1")
    record.count("requests_compared", np.int64(16))
    record.count("requests_compared")
    record.provenance({"prompts": "ab12", "seeds": {3, 1, 2}})


@pytest.mark.parametrize("kind", KINDS)
def test_fails(record: Notes, kind: str) -> None:
    record.count("requests_compared", 2)
    raise getattr(errors, kind)(
        f"{kind}: first line\nsecond line",
        case="c",
        request="r1",
        position=np.int64(3),
        expected=np.arange(3),
        actual={"text": b"\xff"},
        candidates={"sync": [(1, np.float32(-0.5))]},
    )


def test_hostile() -> None:
    print("\ud800 printed")
    text = "<script>\x00\x1b[31m\u202e\ud800" + "e\u0301" * 5
    raise errors.TextMismatchError(f"texts differ: {text}", expected=text, actual=text * 2)


def test_assertion() -> None:
    assert 1 + 1 == 3


def test_long_message() -> None:
    raise ValueError("\n".join(map(str, range(100))))


def test_broken_message() -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    raise BrokenError


def test_skips() -> None:
    pytest.skip("no checkpoint")


@pytest.mark.skip
def test_skips_without_a_reason() -> None:
    pass


@pytest.mark.xfail(raises=errors.TokenMismatchError, strict=True, reason="issue 1")
def test_known_defect() -> None:
    raise errors.TokenMismatchError("differs", position=4)


@pytest.mark.xfail(raises=errors.TokenMismatchError, strict=True, reason="issue 2")
def test_known_defect_that_is_gone() -> None:
    pass


@pytest.mark.xfail(raises=errors.TokenMismatchError, strict=True, reason="issue 3")
def test_another_defect() -> None:
    raise errors.ResourceLeakError("two slots are held", slots=[1, 2])


def test_expected_in_the_body() -> None:
    pytest.xfail("issue 4")


@pytest.fixture
def no_setup() -> None:
    raise OSError("no disk")


@pytest.fixture
def no_teardown(record: Notes):
    yield
    record.activity({"late": 1})
    raise errors.ResourceLeakError("blocks are held", blocks=3)


def test_setup_error(no_setup: None) -> None:
    pass


def test_teardown_error(no_teardown: None) -> None:
    pass


def test_subtests(subtests: pytest.Subtests) -> None:
    with subtests.test("fine"):
        pass
    with subtests.test("not fine"):
        raise errors.WorkBoundError("too many rows", rows=9)


def test_wrong_figure(record: Notes) -> None:
    record.figure("rate", 1, n="many")  # type: ignore[arg-type]
