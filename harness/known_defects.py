"""Known defects as data: which cases of a suite may fail, of which engine and version, with which exception, and until when.

The format is explained at the top of `known_defects.toml`; `harness.known_defects_plugin` makes strict xfails of the entries.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from harness import errors
from reports.schema import TestRecord

__all__ = ["DEFECTS_FILE", "Case", "Defect", "DefectsFileError", "load_defects"]

DEFECTS_FILE = Path(__file__).with_suffix(".toml")
EXCUSABLE = [name for name in errors.__all__ if name != "ValidationError"]  # the base would excuse every kind
REQUIRED = ("id", "engine", "versions", "suite", "raises", "reason", "link", "since", "expires")
OPTIONAL = ("test", "cases", "parameters")
_HEADER = re.compile(r"\s*\[\[\s*defect\s*\]\]")


class DefectsFileError(ValueError):
    """A file of known defects that cannot be used: names the file, the entry, its line, and what to write instead."""


@dataclass(frozen=True)
class Case:
    """What an entry is held against, from a collected item or from a record."""

    suite: str
    test: str
    case_id: str
    parameters: Mapping[str, str]

    @classmethod
    def of(
        cls, suite: str, test: str, case_id: str, parameters: Mapping[str, object], parameter_ids: Mapping[str, str]
    ) -> Case:
        """A parameter is told by its readable id, or by the text of its value where pytest has no id of its own for it."""
        texts = {name: parameter_ids.get(name, str(value)) for name, value in parameters.items()}
        return cls(suite, test.rpartition("::")[2], case_id, texts)

    @classmethod
    def of_record(cls, record: TestRecord) -> Case:
        return cls.of(record.suite, record.test, record.case_id, record.parameters, record.parameter_ids)


@dataclass(frozen=True)
class Defect:
    """One entry. `test`, `cases` and `parameters` narrow it down where they are given."""

    id: str
    engine: str
    versions: SpecifierSet
    suite: str
    test: str | None
    cases: tuple[str, ...]
    parameters: tuple[tuple[str, tuple[str, ...]], ...]
    raises: tuple[type[errors.ValidationError], ...]
    reason: str
    link: str
    since: date
    expires: date
    source: str  # "FILE, line N", for messages

    @property
    def label(self) -> str:
        """By what the reason of an xfail tells of this entry; the colon keeps it from being part of another's."""
        return f"known defect {self.id}:"

    @property
    def fixed_label(self) -> str:
        return f"known defect {self.id} is fixed:"

    @property
    def excuse(self) -> str:
        return f"{self.label} {self.reason} ({self.link})"

    def concerns(self, engine: str, version: str) -> bool:
        """Whether the engine has the defect. A version that is not PEP 440 is in no range but "*"."""
        if engine != self.engine:
            return False
        try:
            # Without `prereleases`, a range would leave out the nightly builds that it was written for.
            return self.versions.contains(Version(version), prereleases=True)
        except InvalidVersion:
            return not len(self.versions)

    def covers(self, case: Case) -> bool:
        return (
            self.suite == case.suite
            and self.test in (None, case.test)
            and (not self.cases or any(fnmatchcase(case.case_id, glob) for glob in self.cases))
            and all(case.parameters.get(name) in values for name, values in self.parameters)
        )

    def is_expired(self, today: date) -> bool:
        return today >= self.expires


def load_defects(path: Path) -> tuple[Defect, ...]:
    """The entries of a file. Raises DefectsFileError for the first thing that is wrong."""
    shown = _shown(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
        content = tomllib.loads(text)
    except OSError as error:
        raise DefectsFileError(f"{shown}: {error.strerror}; give a file of known defects.") from error
    except UnicodeDecodeError as error:
        raise DefectsFileError(f"{shown}: is not UTF-8 text ({error}); save it as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise DefectsFileError(f"{shown}: is not TOML: {error}.") from error
    tables = _tables(content, shown)
    lines = [number for number, line in enumerate(text.split("\n"), start=1) if _HEADER.match(line)]
    if len(lines) != len(tables):  # written as inline tables, or a header inside of a text: which is which cannot be told
        lines = []
    defects: list[Defect] = []
    for index, table in enumerate(tables):
        entry = _Entry(shown, index + 1, lines[index] if lines else None, table)
        defect = entry.defect()
        if known := next((other for other in defects if other.id == defect.id), None):
            raise entry.wrong(f"the id is taken by {known.source}; give each entry an id of its own")
        defects.append(defect)
    return tuple(defects)


def _tables(content: dict[str, Any], shown: str) -> list[dict[str, Any]]:
    for name in content:
        if name != "defect":
            raise DefectsFileError(
                f"{shown}: unknown key {name!r}.{_hint(name, ['defect'])} Each entry begins with [[defect]]."
            )
    tables = content.get("defect", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise DefectsFileError(f"{shown}: `defect` is not a list of tables; begin each entry with [[defect]].")
    return tables


def _shown(path: Path) -> str:
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)


def _hint(name: str, known: list[str] | tuple[str, ...]) -> str:
    # NOTE: importing the engine takes seconds, which a run with a sound file need not wait for.
    from engine.errors import nearest_hint

    return nearest_hint(name, known)


class _Entry:
    """Checks one table, field by field."""

    def __init__(self, shown: str, number: int, line: int | None, table: dict[str, Any]) -> None:
        self.table = table
        self.number = number
        self.source = shown if line is None else f"{shown}, line {line}"

    def wrong(self, what: str) -> DefectsFileError:
        name = self.table.get("id")
        named = f" ({name!r})" if name is not None else ""
        return DefectsFileError(f"{self.source}: entry {self.number}{named}: {what}.")

    def defect(self) -> Defect:
        self._check_names()
        since, expires = self._day("since"), self._day("expires")
        if expires <= since:
            raise self.wrong(f"expires ({expires}) does not lie after since ({since}); write a later day")
        return Defect(
            id=self._matching("id", r"[\w.#/-]+", "letters, digits and . _ - # /, such as vllm-12345"),
            engine=self._text("engine"),
            versions=self._versions(),
            suite=self._matching("suite", r"\w+", "the module's name, without directory and suffix, such as test_golden"),
            test=self._matching("test", r"\w+", "the function's name, without its case") if "test" in self.table else None,
            cases=self._texts("cases") if "cases" in self.table else (),
            parameters=self._parameters(),
            raises=self._raises(),
            reason=self._text("reason"),
            link=self._matching("link", r"https?://\S+", "an address, such as https://github.com/OWNER/NAME/issues/1"),
            since=since,
            expires=expires,
            source=self.source,
        )

    def _check_names(self) -> None:
        known = (*REQUIRED, *OPTIONAL)
        for name in self.table:
            if name not in known:
                raise self.wrong(f"unknown field {name!r}.{_hint(name, known)}".removesuffix("."))
        missing = [name for name in REQUIRED if name not in self.table]
        if missing:
            raise self.wrong(f"missing: {', '.join(missing)}; an entry needs {', '.join(REQUIRED)}")

    def _text(self, field: str) -> str:
        value = self.table[field]
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(f"{field} = {value!r} is not a text; write it in quotes, and not empty")
        return value.strip()

    def _matching(self, field: str, pattern: str, wanted: str) -> str:
        value = self._text(field)
        if not re.fullmatch(pattern, value, re.ASCII):
            raise self.wrong(f"{field} = {value!r}: write {wanted}")
        return value

    def _texts(self, field: str) -> tuple[str, ...]:
        """A text or a list of texts; nothing empty, which would match no case or, taken for none, all of them."""
        value = self.table[field]
        values = value if isinstance(value, list) else [value]
        if not values or not all(isinstance(text, str) and text.strip() for text in values):
            raise self.wrong(f"{field} = {value!r}: write one text or a list of them, none of them empty")
        return tuple(values)

    def _versions(self) -> SpecifierSet:
        text = self._text("versions")
        try:
            return SpecifierSet("" if text == "*" else text)
        except InvalidSpecifier:
            raise self.wrong(
                f'versions = {text!r} is not a PEP 440 specifier; write one such as ">=0.10,<0.12", or "*"'
            ) from None

    def _raises(self) -> tuple[type[errors.ValidationError], ...]:
        names = self._texts("raises")
        for name in names:
            if name == "ValidationError":
                raise self.wrong("raises = 'ValidationError' would excuse every kind of failure; name those that are known")
            if name not in EXCUSABLE:
                raise self.wrong(f"unknown exception {name!r}.{_hint(name, EXCUSABLE)}".removesuffix("."))
        return tuple(getattr(errors, name) for name in names)

    def _day(self, field: str) -> date:
        value = self.table[field]
        if not isinstance(value, date) or isinstance(value, datetime):
            raise self.wrong(f"{field} = {str(value)!r} is not a date; write it without quotes and time, such as 2026-07-15")
        return value

    def _parameters(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        table = self.table.get("parameters", {})
        if not isinstance(table, dict):
            raise self.wrong(
                "parameters is not a table; write parameters = { name = value } or a [defect.parameters] of its own"
            )
        pairs = []
        for name, value in table.items():
            values = value if isinstance(value, list) else [value]
            if not values or not all(isinstance(one, str | int | float) and str(one).strip() for one in values):
                raise self.wrong(f"parameters.{name} = {value!r}: write one value or a list of them, none of them empty")
            pairs.append((name, tuple(map(str, values))))
        return tuple(pairs)
