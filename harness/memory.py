"""Peak memory of an engine in a process of its own, above what the imports cost. Linux only (reads /proc/self/status)."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

__all__ = ["PeakMemory", "measure_peak_memory"]


@dataclass(frozen=True)
class PeakMemory:
    """Bytes."""

    peak: int  # highest resident size while loading and generating, less that before
    weights: int
    kv_pool: int

    @property
    def ratio(self) -> float:
        """Peak above the KV pool, as a multiple of the weights."""
        return (self.peak - self.kv_pool) / self.weights


def measure_peak_memory(model: str, options: dict[str, object]) -> PeakMemory:
    """Load `model`, complete a few prompts, and report the peak. `RuntimeError` with its output if the process fails."""
    command = [sys.executable, "-m", "harness.memory", model, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"measuring the memory failed:\n{done.stderr}")
    return PeakMemory(**json.loads(done.stdout.splitlines()[-1]))


def _resident(field: str) -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(f"{field}:"))


def _main(model: str, options: dict[str, object]) -> None:
    from engine import LLM, SamplingParams
    from engine.checkpoint import expected_tensors, open_checkpoint, resolve_model
    from engine.tokenizer import load_tokenizer
    from harness.toy_model import toy_model_path

    load_tokenizer(toy_model_path())  # the modules that transformers imports for any tokenizer belong to the baseline
    checkpoint = open_checkpoint(resolve_model(model))
    size = checkpoint.tensor("model.norm.weight").element_size()
    weights = size * sum(_product(shape) for shape in expected_tensors(checkpoint.config).values())
    before = _resident("VmRSS")
    with LLM(model, **options) as llm:
        llm.generate([list(range(10, 200)), list(range(20, 90))], SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
        config = llm.config
        kv_entry = 2 * config.model.num_layers * config.model.num_kv_heads * config.model.head_dim * 4
        kv_pool = config.num_kv_blocks * config.options.block_size * kv_entry
    print(json.dumps({"peak": _resident("VmHWM") - before, "weights": weights, "kv_pool": kv_pool}))


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]))
