"""`python -m kernels.bench`: how fast the native kernels are here, beside torch's.

The two run in turn on the same machine at the same time, so the ratios hold on a busy machine too; the best time of each
counts. Each call takes the next of several weights, as the layers of a model do.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from kernels.backend import create_kernels
from kernels.interface import DrawPurpose, Kernels

ROWS = (1, 4, 8, 16, 64, 512)
SHAPES = ((576, 576), (1536, 576), (49152, 576))  # [out_features, in_features] of SmolLM2-135M


def best_times(functions: list[Callable[[], object]], repeats: int) -> list[float]:
    """Seconds of the fastest call of each function, called in turn."""
    best = [float("inf")] * len(functions)
    for _ in range(repeats):
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def for_each(function: Callable[[Any], object], items: Iterable[Any]) -> None:
    for item in items:
        function(item)


def weight_formats(kernels: Kernels) -> dict[str, Callable[[torch.Tensor], Any]]:
    """Name of each format of weights -> packs a float32 weight [N, K] in it."""

    def in_bytes(dtype: torch.dtype, columns: int | None) -> Callable[[torch.Tensor], Any]:
        def pack(weight: torch.Tensor) -> Any:
            groups = 1 if columns is None else -(-weight.shape[1] // columns)
            return kernels.pack(torch.ones(weight.shape).to(dtype), torch.rand(weight.shape[0], groups))

        return pack

    return {
        "float32": kernels.pack,
        "bfloat16": lambda weight: kernels.pack(weight.bfloat16()),
        "int8, a scale for each row": in_bytes(torch.int8, None),
        "fp8, a scale for 128 columns": in_bytes(torch.float8_e4m3fn, 128),
    }


def bench_linear(kernels: Kernels, name: str, pack: Callable[[torch.Tensor], Any], repeats: int) -> None:
    print(f"\nlinear, {kernels.name}, {kernels.num_threads} threads, weights in {name}: GFLOP/s (ratio to torch in fp32)")
    print("  out x in  " + "".join(f"{f'M = {m}':>16}" for m in ROWS))
    for n, k in SHAPES:
        count = max(1, 32_000_000 // (4 * n * k))  # weights of 32 MB: beyond the private caches
        weights = [torch.randn(n, k) for _ in range(count)]
        packed = [pack(weight) for weight in weights]
        cells = []
        for m in ROWS:
            x = torch.randn(m, k)
            ours = partial(for_each, partial(kernels.linear, x), packed)
            theirs = partial(for_each, partial(torch.nn.functional.linear, x), weights)
            our_time, their_time = best_times([ours, theirs], repeats)
            cells.append(f"{2e-9 * m * n * k * count / our_time:9.1f} ({their_time / our_time:4.2f})")
        print(f"{n:>6} x {k} " + "".join(f"{cell:>16}" for cell in cells))


def bench_rest(kernels: Kernels, repeats: int) -> None:
    print(f"\nother operations, {kernels.name}, {kernels.num_threads} threads: microseconds a call")
    one, logits = torch.randn(1, 8), torch.randn(8, 49152) * 4
    row = torch.ones(8)
    query, cache = torch.randn(1000, 9, 64), torch.randn(64, 16, 3, 64)
    table = torch.arange(64, dtype=torch.int32)[None]
    decode, prefill = torch.tensor([999]), torch.arange(1000)
    tiny = kernels.pack(torch.randn(8, 8))

    def sample(top_k: int, top_p: float) -> torch.Tensor:
        limits = (torch.full((8,), top_k, dtype=torch.int32), row * top_p, row * 0)
        address = (torch.arange(8), torch.zeros(8, dtype=torch.int32), torch.arange(8))
        return kernels.sample(logits, row, *limits, *address, DrawPurpose.TARGET)

    def attend(positions: torch.Tensor) -> torch.Tensor:
        tokens = len(positions)
        return kernels.paged_attention(query[:tokens], cache, cache, table, torch.zeros(tokens).long(), positions, 0.125)

    operations: dict[str, Callable[[], object]] = {
        "rms_norm 1 x 8 (the overhead of a call)": lambda: kernels.rms_norm(one, one[0], 1e-5),
        "linear 1 x 8 x 8 (the overhead of a call)": lambda: kernels.linear(one, tiny),
        "attention, decode at 1000, 9 heads of 64": lambda: attend(decode),
        "attention, prefill of 1000, 9 heads of 64": lambda: attend(prefill),
        "argmax 8 x 49152": lambda: kernels.argmax(logits),
        "log_sum_exp 8 x 49152": lambda: kernels.log_sum_exp(logits),
        "sample 8 x 49152": lambda: sample(0, 1.0),
        "sample 8 x 49152, top_k 50": lambda: sample(50, 1.0),
        "sample 8 x 49152, top_p 0.9": lambda: sample(0, 0.9),
        "sample 8 x 49152, top_k 50, top_p 0.9": lambda: sample(50, 0.9),
    }
    for name, operation in operations.items():
        print(f"  {name:45} {1e6 * best_times([operation], 20 * repeats)[0]:10.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", default="native")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        kernels = create_kernels(arguments.kernels, threads)
        for name, pack in weight_formats(kernels).items():
            bench_linear(kernels, name, pack, arguments.repeats)
        bench_rest(kernels, arguments.repeats)


if __name__ == "__main__":
    main()
