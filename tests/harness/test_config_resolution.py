"""The check of one cell of the table of asynchronous scheduling can fail in every way that it claims to."""

from __future__ import annotations

import pytest

from harness.config_resolution import NoAsyncExecutor, Resolution, assert_resolution, resolve
from harness.errors import ConfigResolutionError

CELL = {"method": "x"}
ON, OFF_WITH_WARNING, REFUSED = Resolution(True), Resolution(False, warning="off: ngram"), Resolution(None, error="no: ngram")


@pytest.mark.parametrize(
    ("actual", "enabled", "warns", "mentions"),
    [(ON, True, False, ()), (OFF_WITH_WARNING, False, True, ("ngram", "off")), (REFUSED, None, False, ("ngram",))],
    ids=["on", "off", "refused"],
)
def test_what_the_table_says(actual: Resolution, enabled: bool | None, warns: bool, mentions: tuple[str, ...]) -> None:
    assert_resolution(CELL, actual, enabled=enabled, warns=warns, mentions=mentions)


@pytest.mark.parametrize(
    ("actual", "enabled", "warns", "mentions"),
    [
        (ON, False, False, ()),
        (ON, True, True, ()),
        (ON, None, False, ()),
        (OFF_WITH_WARNING, False, False, ()),
        (OFF_WITH_WARNING, True, True, ()),
        (OFF_WITH_WARNING, False, True, ("ngram", "eagle")),
        (REFUSED, False, False, ()),
        (REFUSED, None, False, ("eagle",)),
        (Resolution(False), False, True, ()),
    ],
)
def test_what_it_does_not_say(actual: Resolution, enabled: bool | None, warns: bool, mentions: tuple[str, ...]) -> None:
    with pytest.raises(ConfigResolutionError) as caught:
        assert_resolution(CELL, actual, enabled=enabled, warns=warns, mentions=mentions)
    assert caught.value.case == str(CELL)


def test_the_engine_is_asked() -> None:
    assert resolve({}) == ON
    assert resolve({"distributed_executor_backend": NoAsyncExecutor}).enabled is False
    refused = resolve({"distributed_executor_backend": NoAsyncExecutor, "async_scheduling": True})
    assert refused.enabled is None
    assert "NoAsyncExecutor" in (refused.error or "")
