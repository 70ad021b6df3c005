"""Where a run comes from."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from reports.coerce import Json

__all__ = ["run_provenance"]

PACKAGES = ("lockstep", "torch", "transformers", "tokenizers", "safetensors", "numpy", "pytest", "pytest-xdist")
FLAGS = ("fma", "avx2", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve", "bf16")
ENVIRONMENT = ("OMP_", "LOCKSTEP_")


def run_provenance(root: Path) -> dict[str, Json]:
    """Commit, versions and machine. What cannot be found out is None."""
    model, flags = _cpu()
    return {
        "commit": _git(root, "rev-parse", "HEAD"),
        "dirty": bool(changes) if (changes := _git(root, "status", "--porcelain")) is not None else None,
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "cpu": {"model": model, "flags": flags},
        "cores": _cores(),
        "platform": platform.platform(),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(ENVIRONMENT)},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cores() -> int | None:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _cpu() -> tuple[str | None, list[str]]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine() or None, []
    fields = dict(reversed([_field(line) for line in text.splitlines() if ":" in line]))
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return fields.get("model name") or platform.machine() or None, [flag for flag in FLAGS if flag in flags]


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
