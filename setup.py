"""Builds the native kernels: plain shared libraries that `kernels/native.py` loads with ctypes, one for each instruction set.

`pip install .`, `pip install -e .` and, in a checkout, `python setup.py build_ext --inplace`. The compiler is $CXX, else g++,
else c++; without a working one the install goes on, and the (slow) reference kernels are used.
"""

from __future__ import annotations

import os
import platform
import runpy
import shlex
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Not by an import: the project's folder need not be on the path of a build, and torch need not be there.
source_digest = runpy.run_path("kernels/source_digest.py")["source_digest"]

SOURCE_DIR = Path("kernels/csrc")
SOURCES = sorted(str(path) for path in SOURCE_DIR.glob("*.cpp"))
HEADERS = sorted(str(path) for path in SOURCE_DIR.glob("*.h"))

# -ffp-contract=off: a multiply-add is fused only where the source says so, on every machine. No -ffast-math, no -march=native.
# Without errno and traps, selects and square roots vectorise; no value changes.
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-ffp-contract=off"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", f'-DLS_SOURCE_DIGEST="{source_digest()}"']
ISA_FLAGS: dict[str, list[str]] = {"portable": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    ISA_FLAGS["avx2"] = ["-mavx2", "-mfma"]


class BuildKernels(build_ext):
    """Compiles each library with one command, and only if a source is newer than the library."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", os.sep) + ".so"

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        inputs = [Path(path) for path in (*ext.sources, *ext.depends)]
        if not self.force and target.exists() and all(path.stat().st_mtime <= target.stat().st_mtime for path in inputs):
            return
        compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("g++") or "c++"]
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}.tmp")  # renamed when complete: a process may have the old one loaded
        command = [*compiler, *FLAGS, *ext.extra_compile_args, *ext.sources, "-o", str(partial)]
        try:
            subprocess.run(command, check=True)
            partial.replace(target)
        except (OSError, subprocess.CalledProcessError) as error:
            partial.unlink(missing_ok=True)
            print(
                f"NOTE: {ext.name} was not built ({error}). Lockstep works without it, with slow kernels; for the fast ones "
                "install a C++17 compiler (or set CXX) and install again."
            )


setup(
    ext_modules=[
        Extension(
            f"kernels._native_{isa}",
            SOURCES,
            depends=[*HEADERS, "setup.py"],
            extra_compile_args=flags,
            language="c++",
            optional=True,
        )
        for isa, flags in ISA_FLAGS.items()
    ],
    cmdclass={"build_ext": BuildKernels},
)
