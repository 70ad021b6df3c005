"""When asynchronous scheduling is on, off or refused: every cell of the table, for the default and for the explicit path.

The table below is written by hand from the definition (six rules, the first that matches decides), not read from the engine.
In the field the default and the explicit path had lists of their own, and drifted apart for `draft_model` and `dflash`
(vLLM #38929).
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from harness.config_resolution import NoAsyncExecutor, assert_resolution, known_executors, known_methods, resolve
from harness.recording import Notes

# Speculative method -> whether asynchronous scheduling supports it.
METHODS = {
    None: True,
    "eagle": True,
    "eagle3": True,
    "mtp": True,
    "deepseek_mtp": True,
    "ernie_mtp": True,
    "exaone_moe_mtp": True,
    "glm4_moe_mtp": True,
    "longcat_flash_mtp": True,
    "mimo_mtp": True,
    "nemotron_h_mtp": True,
    "pangu_ultra_moe_mtp": True,
    "qwen3_next_mtp": True,
    "draft_model": True,
    "ngram_gpu": True,
    "dflash": True,
    "dspark": True,
    "ngram": False,
    "medusa": False,
    "mlp_speculator": False,
    "suffix": False,
    "custom_class": False,
}
SUPPORTED = tuple(method for method, supported in METHODS.items() if supported and method)
EXECUTORS: dict[Any, bool] = {"uni": True, "mp": True, "external_launcher": True, "ray": False, NoAsyncExecutor: False}
PLATFORMS = {
    "cpu": {"platform": "cpu"},
    "cuda-dbo": {"platform": "cuda", "enable_dbo": True, "all2all_backend": "deepep_high_throughput"},
    "rocm": {"platform": "rocm", "all2all_backend": "deepep_high_throughput"},
    "rocm-dbo": {"platform": "rocm", "enable_dbo": True, "all2all_backend": "deepep_high_throughput"},
}


def blocking_rule(cell: dict[str, Any]) -> tuple[str, ...] | None:
    """What the message of the first rule that forbids the cell must name; None if none does (rule 1, pooling, never does)."""
    if not METHODS[cell["method"]]:
        return (cell["method"], *SUPPORTED)  # rule 2
    if cell["method"] and cell["unpadded"]:
        return ("disable_padded_drafter_batch",)  # rule 3
    if not EXECUTORS[cell["executor"]]:
        return (cell["executor"] if isinstance(cell["executor"], str) else cell["executor"].__name__,)  # rule 4
    if cell["platform"] == "rocm-dbo":
        return ("ROCm", "DeepEP", "DBO")  # rule 5
    if cell["pipeline"] > 1:
        return (f"pipeline_parallel_size={cell['pipeline']}",)  # rule 6
    return None


def options_of(cell: dict[str, Any], requested: bool | None) -> dict[str, Any]:
    speculative = {"method": cell["method"], "num_speculative_tokens": 3, "disable_padded_drafter_batch": cell["unpadded"]}
    return {
        "async_scheduling": requested,
        "speculative_config": speculative if cell["method"] else None,
        "distributed_executor_backend": cell["executor"],
        "pipeline_parallel_size": cell["pipeline"],
        "runner": "pooling" if cell["pooling"] else "generate",
        **PLATFORMS[cell["platform"]],
    }


@pytest.mark.parametrize("executor", EXECUTORS, ids=lambda e: e if isinstance(e, str) else e.__name__)
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_every_cell(method: str | None, executor: Any, record: Notes) -> None:
    """padded drafting x pipeline size x pooling x platform x {unset, True, False}, for one method on one executor."""
    for unpadded, pipeline, pooling, platform in product((False, True), (1, 2), (False, True), PLATFORMS):
        cell = {
            "method": method,
            "executor": executor,
            "unpadded": unpadded,
            "pipeline": pipeline,
            "pooling": pooling,
            "platform": platform,
        }
        names = blocking_rule(cell)

        def check(requested: bool | None, **expected: Any) -> None:
            assert_resolution(cell | {"requested": requested}, resolve(options_of(cell, requested)), **expected)  # noqa: B023
            record.count("cells")

        check(False, enabled=False, warns=False)  # explicit False is always off and silent
        if names is not None:
            check(True, enabled=None, warns=False, mentions=names)
        else:
            check(True, enabled=True, warns=False)
        if pooling:
            check(None, enabled=False, warns=False)  # the one reason for which unset differs from a legal True
        elif names is not None:
            check(None, enabled=False, warns=True, mentions=names)
        else:
            check(None, enabled=True, warns=False)  # unset equals explicit wherever explicit is legal


@pytest.mark.parametrize("requested", [None, True])
def test_draft_model_is_on_by_default(requested: bool | None) -> None:
    """Was on when asked for, but off with a warning by default (vLLM #38929, #48341)."""
    options = {"speculative_config": {"method": "draft_model", "num_speculative_tokens": 3}, "async_scheduling": requested}
    assert_resolution(options, resolve(options), enabled=True, warns=False)


@pytest.mark.parametrize("requested", [None, True])
def test_dflash_is_on_by_default(requested: bool | None) -> None:
    """Was refused when asked for and off by default, although it works (vLLM #38929, #58065)."""
    options = {"speculative_config": {"method": "dflash", "num_speculative_tokens": 3}, "async_scheduling": requested}
    assert_resolution(options, resolve(options), enabled=True, warns=False)


def test_the_table_is_complete() -> None:
    """A method or an executor that the engine knows and the table does not would be a cell that nobody checks."""
    builtin = [method for method in known_methods() if method != "scripted"]  # the harness's own, a plugin
    assert set(builtin) == {method for method in METHODS if method}
    assert set(known_executors()) == {executor for executor in EXECUTORS if isinstance(executor, str)}
