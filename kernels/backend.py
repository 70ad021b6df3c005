"""Backends by name."""

from __future__ import annotations

import functools
import warnings

from kernels.interface import Kernels
from kernels.native import HOW_TO_BUILD, ISAS, NativeKernels, supported_isas

__all__ = ["KERNEL_NAMES", "available_kernels", "create_kernels"]

KERNEL_NAMES = ("auto", "native", *(f"native-{isa}" for isa in ISAS), "reference")


def create_kernels(name: str = "auto", num_threads: int = 1) -> Kernels:
    """A new backend instance with its own threads.

    "native" is the best instruction set of this CPU, "auto" is "native" where it is built and else "reference", with one
    warning in a process. `NativeUnavailableError` if a native backend is asked for by name and cannot run here.
    """
    if name not in KERNEL_NAMES:
        raise ValueError(f"unknown kernels {name!r}; expected one of: {', '.join(KERNEL_NAMES)}")
    if name == "auto":
        name = "native" if supported_isas() else "reference"
        if name == "reference":
            _warn_slow()
    if name == "reference":
        from kernels.reference import ReferenceKernels

        return ReferenceKernels(num_threads)
    if name == "native":
        name = f"native-{next(iter(supported_isas()), 'portable')}"  # without any, the error of that one says why
    return NativeKernels(name.removeprefix("native-"), num_threads)


def available_kernels() -> list[str]:
    """The backends that run here, the fastest first."""
    return [*(f"native-{isa}" for isa in supported_isas()), "reference"]


@functools.cache
def _warn_slow() -> None:
    warnings.warn(
        "the native kernels are not built from these sources, so the slow reference kernels are used (the same results); "
        f"{HOW_TO_BUILD}",
        RuntimeWarning,
        stacklevel=3,
    )
