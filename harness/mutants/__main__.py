"""`python -m harness.mutants [FILES]`: kills what it can; the exit status is 1 if a goal is missed."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from harness.mutants.report import Report, Result, load_equivalents, summarize, table
from harness.mutants.session import MutantSession
from harness.mutants.sources import Mutant, mutants_of

MODULES = [
    *[
        f"engine/{name}.py"
        for name in (
            *("scheduler", "kv_cache", "accept", "config", "async_scheduling", "slots", "slot_table", "core", "request"),
            *("metrics", "stop", "detokenizer", "admission", "runner", "sampler", "distribution", "verify"),
        )
    ],
    *[
        f"engine/drafters/{name}.py"
        for name in (
            *("base", "block", "chain", "draft_model", "eagle", "medusa", "mtp", "ngram"),
            *("options", "paged", "pick", "registry", "suffix"),
        )
    ],
]
GOALS = {f"engine/{name}.py": 0.85 for name in ("scheduler", "kv_cache", "accept", "config")}
OVERALL = 0.75
OUT = Path("runs/mutants")
# Without the tests that start a process, where the mutant is not, and those that need seconds for what quicker ones see.
TESTS = [
    "tests/engine",
    "suites/test_config_resolution.py",
    "harness/mutants/scenarios.py",
    "--ignore=tests/engine/test_executor.py",
    "--ignore=tests/engine/test_quantization.py",
    "--ignore=tests/engine/test_model.py",
    "--deselect=tests/engine/test_random_workloads.py::test_every_request_equals_itself_alone",
    "--deselect=tests/engine/test_parts.py::test_a_plugin_changes_its_own_engine_in_every_process[mp]",
    "--deselect=tests/engine/test_model_drafters.py::test_nothing_but_the_tokens_decides_what_is_proposed",
    "--deselect=tests/engine/test_detokenizer.py::test_the_text_is_that_of_all_ids",
]
# Slow, and of no use to any other module.
TESTS_OF_DRAFTERS = ("tests/engine/test_model_drafters.py", "tests/engine/test_drafter_files.py")
PYTEST_ARGS = ["--records=", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "tmp_path_retention_policy=none"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.mutants", description=__doc__)
    parser.add_argument("files", nargs="*", default=MODULES, metavar="FILE", help="modules to mutate, all if none is named")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="only the survivors of the last run; judges nothing")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every N-th mutant of each module: a quick estimate")
    arguments = parser.parse_args()
    if unknown := set(arguments.files) - set(MODULES):
        parser.error(f"not among the modules that are mutated: {', '.join(sorted(unknown))}")

    results: list[Result] = []
    start = time.perf_counter()

    def report(mutant: Mutant, outcome: str) -> None:
        results.append(Result(mutant.file, mutant.function, mutant.before, mutant.after, outcome, mutant.diff))
        if len(results) % 50 == 0:
            alive = sum(result.lives for result in results)
            _write(results)  # a run may be cut off
            print(f"[{time.perf_counter() - start:5.0f} s] {mutant.file}: {len(results)} mutants, {alive} alive", flush=True)

    mutants = _mutants(arguments.files, arguments.every, arguments.again)
    session = MutantSession(arguments.files, mutants, arguments.processes, report)
    drafters = any("/drafters/" in file for file in arguments.files)
    left_out = [] if drafters else [f"--ignore={test}" for test in TESTS_OF_DRAFTERS]
    with TemporaryDirectory(prefix="mutants-") as scratch:  # pytest's own directory is cleared by later sessions
        status = pytest.main([*PYTEST_ARGS, f"--basetemp={scratch}/pytest", *TESTS, *left_out], plugins=[session])
    if not results:
        print("no mutant ran" if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else "see above")
        return 2
    return _finish(results, complete=arguments.every == 1 and not arguments.again)


def _mutants(files: list[str], every: int, again: bool) -> Iterator[Mutant]:
    alive: set[tuple[str, str]] | None = None
    if again:
        alive = {(r["file"], r["diff"]) for r in json.loads((OUT / "mutants.json").read_text()) if r["alive"]}
    for file in files:
        for mutant in islice(mutants_of(file), 0, None, every):
            if alive is None or (file, mutant.diff) in alive:
                yield mutant


def _write(results: list[Result]) -> Report:
    report = summarize(results, load_equivalents(Path(__file__).with_name("equivalent.toml")))
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "survivors.txt").write_text("\n\n".join(f"{r.function}: {r.outcome}\n{r.diff}" for r in report.survivors) + "\n")
    alive = set(map(id, report.survivors))
    records = [asdict(result) | {"alive": id(result) in alive} for result in results]
    (OUT / "mutants.json").write_text(json.dumps(records, indent=1) + "\n")
    return report


def _finish(results: list[Result], complete: bool) -> int:
    order = {file: index for index, file in enumerate(MODULES)}
    report = _write(sorted(results, key=lambda result: order[result.file]))
    print(table(report))
    print(f"survivors: {OUT / 'survivors.txt'}")
    if not complete:
        return 0
    for entry in report.stale:
        print(f"equivalent.toml names a mutant that does not live: {entry.file} {entry.function}: {entry.after!r}")
    missed = report.missed(GOALS, OVERALL)
    for line in missed:
        print(f"goal missed: {line}")
    return 1 if missed or report.stale else 0


if __name__ == "__main__":
    sys.exit(main())
