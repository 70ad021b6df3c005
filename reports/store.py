"""Files of records: writing them so that a crash loses nothing, reading them so that damage costs only what is damaged."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.coerce import Json
from reports.schema import OUTCOMES, SCHEMA_VERSION, Line, RunHeader, RunTrailer, TestRecord, from_json, to_json

__all__ = ["RECORDS_FILE", "RecordError", "RecordWriter", "Run", "read_run"]

RECORDS_FILE = "records.jsonl"


class RecordError(Exception):
    """Records that cannot be read at all."""


class RecordWriter:
    """Appends records to `directory/records.jsonl`.

    The file that a former run left there is replaced in one step, when this run's header is on the disk. Every line is one
    `os.write` to an append-only descriptor: a crash can cut the last line, never mix two.
    """

    def __init__(self, directory: Path, header: RunHeader) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / RECORDS_FILE
        temporary = directory / f".{RECORDS_FILE}.{os.getpid()}"
        self._descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        try:
            self.write(header)
            os.replace(temporary, self.path)
        except BaseException:
            self.close()
            temporary.unlink(missing_ok=True)
            raise

    def write(self, line: Line) -> None:
        """Append one line. Raises OSError when the disk does not take it."""
        data = json.dumps(to_json(line), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        written = os.write(self._descriptor, data)
        while written < len(data):  # a signal or a nearly full disk; the next call says which
            written += os.write(self._descriptor, data[written:])

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(frozen=True)
class Run:
    """What could be read of a run, and what is wrong with it."""

    path: Path
    header: RunHeader
    records: list[TestRecord]
    trailer: RunTrailer | None
    problems: list[str]
    complete: bool  # it finished, every test has a result, and every result could be read


def read_run(path: Path | str) -> Run:
    """The run in a directory or in a file. Raises RecordError when there is nothing to read."""
    path = Path(path)
    file = path / RECORDS_FILE if path.is_dir() else path
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise RecordError(
            f"{file}: no such file (a run leaves its records there; --records=DIR chooses the directory)"
        ) from None
    except OSError as error:
        raise RecordError(f"{file}: {error.strerror}") from error
    if not data.strip():
        raise RecordError(f"{file}: the file is empty")
    reader = _Reader()
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        reader.take(number, line, last=number == len(lines))
    return reader.run(file)


class _Reader:
    def __init__(self) -> None:
        self.header: RunHeader | None = None
        self.trailer: RunTrailer | None = None
        self.records: dict[str, TestRecord] = {}
        self.problems: list[str] = []
        self.lost = False

    def take(self, number: int, line: bytes, *, last: bool) -> None:
        if not line.strip():
            return
        data = _parse(line)
        if data is None:
            self.lost = True
            # Every complete line ends with a newline.
            self.problems.append(f"line {number}: {'cut short' if last else 'not a JSON object'}, left out")
            return
        wrong: list[str] = []
        kind = data.get("kind")
        if kind == RunHeader.kind:
            self._take_header(data, wrong)
        elif kind == TestRecord.kind:
            self._take_record(data, wrong)
        elif kind == RunTrailer.kind:
            self.trailer = from_json(RunTrailer, data, wrong) or self.trailer
        else:
            wrong.append(f"unknown kind of record, {str(kind)[:40]!r}, left out")
        self.problems += [f"line {number}: {text}" for text in wrong]

    def _take_header(self, data: dict[str, Any], wrong: list[str]) -> None:
        header = from_json(RunHeader, data, wrong)
        if header is None:
            return
        if header.schema_version != SCHEMA_VERSION:
            wrong.append(f"schema version {header.schema_version}, this program knows {SCHEMA_VERSION}; what it knows was read")
        if self.header is None:
            self.header = header
        else:
            same = "the same run id" if header.run_id == self.header.run_id else "another run id"
            wrong.append(f"a second run header with {same}, {header.run_id!r}; its records are added to the first")

    def _take_record(self, data: dict[str, Any], wrong: list[str]) -> None:
        record = from_json(TestRecord, data, wrong)
        if record is None:
            wrong.append("left out")
            self.lost = True
            return
        if record.outcome not in OUTCOMES:
            wrong.append(f"unknown outcome {record.outcome!r}, taken for an error")
            record = dataclasses.replace(record, outcome="error")
        if self.header is not None and record.run_id != self.header.run_id:
            wrong.append(f"a record of another run, {record.run_id!r}")
        if record.nodeid in self.records:
            wrong.append(f"a second record of {record.nodeid}; {_prefer(self.records[record.nodeid], record)}")
            if self.records[record.nodeid].failing and not record.failing:
                return
        self.records[record.nodeid] = record

    def run(self, file: Path) -> Run:
        header = self.header
        if header is None:
            if not self.records and self.trailer is None:
                raise RecordError(f"{file}: no records in it ({'; '.join(self.problems[:3]) or 'no lines'})")
            self.problems.append("no run header: where these results come from is unknown")
            header = RunHeader(run_id=next((record.run_id for record in self.records.values()), "unknown"), schema_version=0)
        records = list(self.records.values())
        return Run(file, header, records, self.trailer, self.problems, complete=self._complete() and not self.lost)

    def _complete(self) -> bool:
        if self.trailer is None:
            self.problems.append("the run did not finish: no trailer")
            return False
        counted = sum(self.trailer.totals.values())
        if counted != len(self.records):
            self.problems.append(f"the trailer counts {counted} results, {len(self.records)} could be read")
        self.problems += self.trailer.problems
        self.problems += [f"no result: {nodeid}" for nodeid in self.trailer.missing]
        return counted == len(self.records) and not self.trailer.missing and self.trailer.exit_status in (0, 1)


def _parse(line: bytes) -> dict[str, Json] | None:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _prefer(first: TestRecord, second: TestRecord) -> str:
    return "the failing one counts" if first.failing != second.failing else "the later one counts"
