"""A self-contained LLM engine: `from engine import LLM, SamplingParams`."""

from engine.async_scheduling import AsyncDecision, AsyncFacts, resolve_async_scheduling
from engine.config import EngineConfig, ResolvedConfig
from engine.errors import (
    CheckpointError,
    EngineDeadError,
    EngineError,
    IntegrityError,
    InvalidRequestError,
    NanLogitsError,
    RequestError,
    RequestFailedError,
    StalledEngineError,
    UnknownOptionError,
)
from engine.llm import LLM
from engine.metrics import DEFINITIONS, EngineStats
from engine.outputs import CompletionOutput, Logprob, RequestOutput
from engine.sampling_params import SamplingParams

__all__ = [
    "DEFINITIONS",
    "LLM",
    "AsyncDecision",
    "AsyncFacts",
    "CheckpointError",
    "CompletionOutput",
    "EngineConfig",
    "EngineDeadError",
    "EngineError",
    "EngineStats",
    "IntegrityError",
    "InvalidRequestError",
    "Logprob",
    "NanLogitsError",
    "RequestError",
    "RequestFailedError",
    "RequestOutput",
    "ResolvedConfig",
    "SamplingParams",
    "StalledEngineError",
    "UnknownOptionError",
    "resolve_async_scheduling",
]
