"""Nightly pages, plots and summaries, from result records alone.

Only what the records need is imported here; `reports.build` and `reports.cli` bring pandas and matplotlib.
"""

from reports.coerce import coerce, coerce_mapping
from reports.schema import FAILING, OUTCOMES, SCHEMA_VERSION, Durations, Figure, RunHeader, RunTrailer, TestRecord
from reports.store import RECORDS_FILE, RecordError, RecordWriter, Run, read_run

__all__ = [
    "FAILING",
    "OUTCOMES",
    "RECORDS_FILE",
    "SCHEMA_VERSION",
    "Durations",
    "Figure",
    "RecordError",
    "RecordWriter",
    "Run",
    "RunHeader",
    "RunTrailer",
    "TestRecord",
    "coerce",
    "coerce_mapping",
    "read_run",
]
