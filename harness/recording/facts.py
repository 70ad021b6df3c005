"""What the process that runs a test knows and a report does not: sent along as an attribute of the report.

It travels as ASCII JSON text, because xdist kills a worker whose report holds anything else (a NumPy scalar, a lone surrogate).
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

import pytest

from reports.coerce import Json, coerce, coerce_mapping, without_addresses

__all__ = ["attach", "attached", "failure_facts", "identity", "is_suite", "item_facts", "make_sendable"]

_ATTRIBUTE = "lockstep"
MESSAGE_LINES = 12
_NOT_FAILURES = (pytest.skip.Exception, pytest.xfail.Exception, pytest.exit.Exception)


def is_suite(nodeid: str) -> bool:
    return nodeid.startswith("suites/")


def attach(report: pytest.TestReport, facts: dict[str, Json]) -> None:
    setattr(report, _ATTRIBUTE, json.dumps(facts))


def attached(report: pytest.TestReport | pytest.CollectReport) -> dict[str, Any]:
    """What the worker attached; nothing when it died."""
    facts: dict[str, Any] = json.loads(getattr(report, _ATTRIBUTE, "{}"))
    return facts


def identity(nodeid: str) -> dict[str, Json]:
    """Suite, test and case from a node id: they are known even for a test whose worker died at once."""
    path, _, rest = nodeid.partition("::")
    test, bracket, case = rest.partition("[")
    case = case.removesuffix("]") if bracket else test
    return {"suite": PurePosixPath(path).stem, "test": test, "case_id": case or PurePosixPath(path).stem}


def item_facts(item: pytest.Item) -> dict[str, Json]:
    """Tier and parameters."""
    marker = item.get_closest_marker("tier")
    tier = marker.args[0] if marker is not None and marker.args else "default"
    callspec = getattr(item, "callspec", None)
    parameters = coerce_mapping(callspec.params) if callspec is not None else {}
    return {"tier": str(tier), "parameters": parameters, "parameter_ids": _parameter_ids(callspec, parameters)}


def _parameter_ids(callspec: Any, parameters: dict[str, Json]) -> dict[str, str]:
    """The id of each parameter, where each has a `parametrize` of its own. pytest keeps them apart, but not in public."""
    ids = list(getattr(callspec, "_idlist", ()))
    return dict(zip(parameters, map(str, ids), strict=True)) if len(ids) == len(parameters) else {}


def failure_facts(call: pytest.CallInfo[Any], report: pytest.TestReport) -> dict[str, Json]:
    """Exception, message, full text and evidence; empty when nothing (or only a skip) was raised."""
    if report.failed and str(report.longrepr).startswith("[XPASS(strict)]"):
        return {"exception": "XPASS(strict)", "message": coerce(str(report.longrepr))}
    if call.excinfo is None or isinstance(call.excinfo.value, _NOT_FAILURES):
        return {}
    error = call.excinfo.value
    evidence = getattr(error, "evidence", None)
    return {
        "exception": type(error).__name__,
        "message": coerce(first_lines(_message(error))),
        "traceback": coerce(without_addresses(report.longreprtext)),
        "evidence": coerce_mapping(evidence) if isinstance(evidence, dict) else {},
    }


def make_sendable(report: pytest.TestReport) -> None:
    """Lone surrogates (a byte-level tokenizer makes them) in a failure or in captured output would kill an xdist worker."""
    text = report.longreprtext
    if (clean := coerce(text)) != text and not isinstance(report.longrepr, tuple):
        report.longrepr = clean
    report.sections = [(coerce(title), coerce(content)) for title, content in report.sections]


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - a broken __str__ must not lose the record
        return f"<no message: its __str__ raises {type(broken).__name__}>"


def first_lines(text: str) -> str:
    lines = text.splitlines()
    more = len(lines) - MESSAGE_LINES
    return "\n".join(lines[:MESSAGE_LINES]) + (f"\n... ({more} more lines)" if more > 0 else "")
