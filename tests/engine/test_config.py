"""Options of the engine: what is refused and how, what "auto" becomes, and the one warning."""

from __future__ import annotations

import dataclasses
import logging
import pickle
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from engine import EngineConfig, UnknownOptionError
from engine.async_scheduling import AsyncDecision, AsyncFacts, _warn_once
from engine.config import SpeculativeConfig
from engine.drafters.base import DraftContext, Drafter, Drafts
from engine.drafters.registry import drafter_class, known_methods, method_info, register_drafter
from engine.executor.registry import executor_class
from engine.options import check_options, is_int
from tests.engine.support import MODEL, make_config

BAD = [
    *[
        (name, value, "at least 1")
        for name in ("max_num_seqs", "block_size", "max_num_batched_tokens")
        for value in (0, -1, 1.5)
    ],
    *[(name, value, "at least 1") for name in ("num_kv_blocks", "max_model_len", "num_threads") for value in (0, "4", True)],
    ("max_num_seqs", None, "at least 1"),
    ("runner", "embed", "generate, pooling"),
    ("dtype", "float16", "auto, float32, bfloat16"),
    ("platform", "tpu", "cpu, cuda, rocm"),
    ("async_scheduling", "yes", "None, True or False"),
]


@pytest.mark.parametrize(("name", "value", "remedy"), BAD, ids=[f"{name}={value!r}" for name, value, _ in BAD])
def test_a_bad_value_is_refused(name: str, value: Any, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy) as caught:
        EngineConfig(model="none", **{name: value})
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("max_num_sequences", "max_num_seqs"),
        ("async_sheduling", "async_scheduling"),
        ("blocksize", "block_size"),
        ("speculative_conf", "speculative_config"),
    ],
)
def test_an_unknown_option_names_the_nearest(given: str, nearest: str) -> None:
    with pytest.raises(UnknownOptionError, match=rf"no option '{given}'\. Did you mean '{nearest}'\?"):
        EngineConfig(model="none", **{given: 1})


RESOLVE_ERRORS = [
    ({"max_model_len": 257}, r"above what the checkpoint was made for \(256\)"),
    ({"max_model_len": 1}, "at least 2"),
    ({"enable_chunked_prefill": False, "max_num_batched_tokens": 255}, "needs max_num_batched_tokens >= max_model_len"),
    ({"runner": "pooling"}, "not built in this version; use 'generate'"),
    ({"platform": "cuda"}, "not built in this version; use 'cpu'"),
    ({"tensor_parallel_size": 2}, "use 1"),
    ({"pipeline_parallel_size": 2}, "use 1"),
    ({"distributed_executor_backend": "ray"}, "use one of: mp, uni"),
    ({"distributed_executor_backend": "rya"}, "Did you mean 'ray'"),
    ({"distributed_executor_backend": "mpi"}, "Did you mean 'mp'"),
]


@pytest.mark.parametrize(("options", "remedy"), RESOLVE_ERRORS, ids=[str(options) for options, _ in RESOLVE_ERRORS])
def test_what_cannot_work_is_refused_before_anything_is_loaded(options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        EngineConfig(model="none", **options).resolve(MODEL)


SPECULATIVE_ERRORS = [
    ({}, ValueError, "needs a method"),
    ("ngram", ValueError, "needs a method"),
    ({"num_speculative_tokens": 3}, ValueError, "needs a method"),
    ({"method": 5, "num_speculative_tokens": 3}, ValueError, "needs a method"),
    ({"method": "ngarm", "num_speculative_tokens": 3}, ValueError, "Did you mean 'ngram'"),
    ({"method": "mlp_speculator", "num_speculative_tokens": 3}, ValueError, "not built in this version; use one of: .*ngram"),
    *[
        ({"method": method, "num_speculative_tokens": 3}, ValueError, f"'{method}' needs a model")
        for method in ("draft_model", "eagle", "eagle3", "medusa", "dflash", "dspark")
    ],
    (
        {"method": "eagle", "model": "x", "num_speculative_tokens": 3, "tensor_parallel_size": 1},
        ValueError,
        "write draft_tensor_parallel_size",
    ),
    ({"method": "custom_class", "num_speculative_tokens": 3}, ValueError, "needs the drafter's class as its model"),
    (
        {"method": "custom_class", "model": "no_such_module.Drafter", "num_speculative_tokens": 3},
        ValueError,
        "cannot be imported",
    ),
    ({"method": "custom_class", "model": "json.JSONDecoder", "num_speculative_tokens": 3}, ValueError, "no subclass of"),
    (
        {"method": "draft_model", "model": "x", "num_speculative_tokens": 3, "parallel_drafting": 1},
        ValueError,
        "must be True or False",
    ),
    ({"method": "draft_model", "model": "x", "num_speculative_tokens": 3, "max_model_len": 0}, ValueError, "at least 1"),
    (
        {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 4, "prompt_lookup_max": 3},
        ValueError,
        "prompt_lookup_min <= prompt_lookup_max",
    ),
    ({"method": "ngram", "num_speculative_tokens": 3, "draft_sample_method": "probabilistic"}, ValueError, "use .*'greedy'"),
    ({"method": "ngram", "num_speculative_tokens": 3, "draft_sample_method": "gready"}, ValueError, "greedy, probabilistic"),
    *[
        ({"method": "ngram", "num_speculative_tokens": 3, **options}, ValueError, "either synthetic_acceptance_rates or")
        for options in (
            {"rejection_sample_method": "synthetic"},
            {"synthetic_acceptance_length": 2.0},
            {
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_length": 2.0,
                "synthetic_acceptance_rates": [0.9, 0.5, 0.1],
            },
        )
    ],
    *[
        (
            {
                "method": "ngram",
                "num_speculative_tokens": 3,
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_rates": rates,
            },
            ValueError,
            "3 numbers from 0 to 1 that do not grow",
        )
        for rates in ([0.5], [0.5, 0.6, 0.1], [1.5, 1, 0], ["a", 0, 0])
    ],
    (
        {
            "method": "ngram",
            "num_speculative_tokens": 3,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": 4.5,
        },
        ValueError,
        "a number from 1 to 4",
    ),
    *[
        (
            {"method": "ngram", "num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": schedule},
            ValueError,
            "a list of .first, last, drafts.",
        )
        for schedule in ([(1, 2)], [(3, 2, 1)], [(1, 2, 4)], [(0, 2, 1)])
    ],
    ({"method": "suffix", "num_speculative_tokens": 3, "suffix_decoding_min_token_prob": 2}, ValueError, "at most 1.0"),
    ({"method": "suffix", "num_speculative_tokens": 3, "suffix_decoding_max_tree_depth": 1}, ValueError, "at least 2"),
    *[
        ({"method": "ngram_gpu", "num_speculative_tokens": value}, ValueError, "1 to 16")
        for value in (0, -1, 17, 2.0, "3", None, True)
    ],
    ({"method": "ngram_gpu"}, ValueError, "1 to 16"),
    ({"method": "ngram_gpu", "num_speculative_token": 3}, UnknownOptionError, "Did you mean 'num_speculative_tokens'"),
    (
        {"method": "ngram_gpu", "num_speculative_tokens": 3, "prompt_lookup_mx": 3},
        UnknownOptionError,
        "Did you mean 'prompt_lookup_max'",
    ),
    (
        {"method": "ngram_gpu", "num_speculative_tokens": 3, "rejection_sample_method": "strict"},
        ValueError,
        "coupled, standard, synthetic",
    ),
]


@pytest.mark.parametrize(("config", "error", "remedy"), SPECULATIVE_ERRORS, ids=[str(c) for c, *_ in SPECULATIVE_ERRORS])
def test_a_bad_speculative_config_is_refused(config: Any, error: type[Exception], remedy: str) -> None:
    with pytest.raises(error, match=remedy):
        EngineConfig(model="none", speculative_config=config).resolve(MODEL)


def test_auto_values() -> None:
    config = EngineConfig(model="none").resolve(MODEL)
    assert config.max_model_len == 256
    assert config.num_kv_blocks == 256 // 16 * 32, "room for max_num_seqs full sequences"
    assert config.num_threads >= 1
    assert config.num_speculative_tokens == 0
    assert config.async_scheduling
    assert config.options.max_model_len is None, "what the user said stays readable"


def test_the_default_pool_holds_one_full_sequence_and_at_most_a_gibibyte_beyond() -> None:
    big = dataclasses.replace(MODEL, num_layers=40, num_kv_heads=64, head_dim=128, max_position_embeddings=4096)
    config = EngineConfig(model="none").resolve(big)
    assert config.num_kv_blocks == 4096 // 16


def test_frozen() -> None:
    config = make_config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_kv_blocks = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.options.block_size = 3


def test_a_resolved_config_travels() -> None:
    config = make_config(depth=3, plugins=["a", "b"])
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - our own bytes
    assert config.options.plugins == ("a", "b")


def test_a_record_says_what_was_asked_and_what_it_became() -> None:
    record = make_config(depth=2, async_scheduling=False).as_record()
    assert (record["async_scheduling"], record["async_scheduling_requested"]) == (False, False)
    assert record["async_scheduling_rule"] == "explicit_off"
    assert record["distributed_executor_backend"] == "uni"
    assert record["speculative_config"]["num_speculative_tokens"] == 2
    unset = make_config().as_record()
    assert (unset["async_scheduling"], unset["async_scheduling_requested"]) == (True, None)


# --- asynchronous scheduling ---------------------------------------------------------------------------------------------


@pytest.fixture
def fresh_warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """As in a process that has not warned yet."""
    _warn_once.cache_clear()
    with caplog.at_level(logging.DEBUG, logger="engine.async_scheduling"):
        yield caplog
    _warn_once.cache_clear()


NGRAM = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}


def test_the_warning_comes_once_in_a_process(fresh_warnings: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert not EngineConfig(model="none", **NGRAM).resolve(MODEL).async_scheduling
    messages = [record.getMessage() for record in fresh_warnings.records if record.levelno == logging.WARNING]
    assert len(messages) == 1
    assert "'ngram'" in messages[0]
    EngineConfig(model="none", pipeline_parallel_size=2).resolve_async_scheduling()
    assert len(fresh_warnings.records) == 2, "another reason is another warning"


@pytest.mark.parametrize("options", [NGRAM | {"async_scheduling": False}, {}, {"async_scheduling": True}], ids=str)
def test_silence(options: dict[str, Any], fresh_warnings: pytest.LogCaptureFixture) -> None:
    EngineConfig(model="none", **options).resolve_async_scheduling()
    assert not fresh_warnings.records


def test_pooling_is_off_without_a_warning(fresh_warnings: pytest.LogCaptureFixture) -> None:
    decision = EngineConfig(model="none", runner="pooling").resolve_async_scheduling()
    assert (decision.enabled, decision.rule, decision.warning) == (False, "pooling", None)
    assert [record.levelno for record in fresh_warnings.records] == [logging.DEBUG]


def test_an_explicit_true_that_is_impossible_is_an_error_and_no_warning(fresh_warnings: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match=r"'ngram' does not support.*supported: .*ngram_gpu.*Leave it unset or say False"):
        EngineConfig(model="none", async_scheduling=True, **NGRAM).resolve_async_scheduling()
    assert not fresh_warnings.records


def test_the_message_lists_exactly_the_supported_methods() -> None:
    """C-01: the list in the text is the real one."""
    warning = EngineConfig(model="none", **NGRAM).resolve_async_scheduling().warning
    assert warning is not None
    listed = set(warning.partition("supported: ")[2].rstrip(").").split(", "))
    assert listed == {name for name in known_methods() if method_info(name).supports_async_scheduling}


# --- registries and helpers ----------------------------------------------------------------------------------------------


def test_a_method_is_registered_once() -> None:
    register_drafter("ngram_gpu", "engine.drafters.ngram:NgramDrafter", supports_async_scheduling=True)
    with pytest.raises(ValueError, match="already registered"):
        register_drafter("ngram_gpu", "somewhere:Else", supports_async_scheduling=True)
    assert drafter_class("ngram_gpu").__name__ == "NgramDrafter"


def test_executors_by_name_or_class() -> None:
    uni = executor_class("uni")
    assert uni.__name__ == "UniExecutor"
    assert executor_class(uni) is uni


def test_a_bool_is_no_integer() -> None:
    assert is_int(3)
    assert not any(is_int(value) for value in (True, 3.0, "3", None))


def test_check_options_names_the_first_unknown_one() -> None:
    check_options("this", {"a": 1}, {"a", "b"})
    with pytest.raises(UnknownOptionError, match=r"this has no option 'bb'\. Known: a, cdef"):
        check_options("this", {"a": 1, "bb": 2}, {"a", "cdef"})


# --- edges ---------------------------------------------------------------------------------------------------------------


def spec(**options: Any) -> SpeculativeConfig:
    return SpeculativeConfig.from_dict({"method": "ngram", "num_speculative_tokens": 3, **options})


@pytest.mark.parametrize("option", ["options", "model"])
def test_what_belongs_to_no_or_to_another_method_is_unknown(option: str) -> None:
    with pytest.raises(UnknownOptionError, match=f"speculative_config for 'ngram' has no option '{option}'"):
        spec(**{option: "x"})


SYNTHETIC = {"rejection_sample_method": "synthetic"}


def test_the_largest_and_smallest_values_are_allowed() -> None:
    assert spec(num_speculative_tokens=16).num_speculative_tokens == 16
    assert spec(num_speculative_tokens=1).num_speculative_tokens == 1
    assert spec(**SYNTHETIC, synthetic_acceptance_rates=[1, 0.5, 0.5]).synthetic_rates == (1, 0.5, 0.5)
    assert spec(**SYNTHETIC, synthetic_acceptance_rates=[0, 0, 0]).synthetic_rates == (0, 0, 0)
    assert spec(**SYNTHETIC, synthetic_acceptance_length=1).synthetic_rates == (0, 0, 0)
    assert spec(**SYNTHETIC, synthetic_acceptance_length=4).synthetic_rates == (1, 1, 1)
    assert make_config(max_model_len=2).max_model_len == 2


def test_a_synthetic_length_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="a number from 1 to 4, got 0"):
        spec(**SYNTHETIC, synthetic_acceptance_length=0)


def test_other_methods_have_no_synthetic_rates() -> None:
    assert spec().synthetic_rates == (0, 0, 0)


def test_a_schedule_of_drafts_includes_both_ends() -> None:
    config = spec(num_speculative_tokens_per_batch_size=[(2, 3, 1), (5, 5, 0)])
    assert [config.drafts_for(size) for size in range(1, 7)] == [3, 1, 1, 3, 0, 3]


def test_one_plugin_may_be_a_string() -> None:
    assert EngineConfig(model="none", plugins="a.b").plugins == ("a.b",)


def test_a_plugin_may_bring_another_judge_of_asynchronous_scheduling() -> None:
    def never(requested: bool | None, facts: AsyncFacts) -> AsyncDecision:
        assert (requested, facts.executor) == (None, "uni")
        return AsyncDecision(False, "never")

    assert EngineConfig(model="none").resolve(MODEL, never).async_decision.rule == "never"


class Remembers(Drafter):
    """A drafter of a user, which looks at what it is made with."""

    seen: ClassVar[list[tuple[object, ...]]] = []
    option_names = ("shade",)

    def __init__(self, num_speculative_tokens: int, vocab_size: int, options: Any) -> None:
        super().__init__(num_speculative_tokens, vocab_size, options)
        self.seen.append((num_speculative_tokens, vocab_size, options["shade"]))

    def propose(self, context: DraftContext) -> Drafts:
        raise NotImplementedError


def test_a_drafter_is_made_on_trial_with_the_values_that_it_will_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "remembering", SimpleNamespace(Remembers=Remembers))
    config = {"method": "custom_class", "model": "remembering.Remembers", "num_speculative_tokens": 2, "shade": "green"}
    EngineConfig(model="none", speculative_config=config).resolve(MODEL)
    assert Remembers.seen == [(2, MODEL.vocab_size, "green")]


def test_the_default_pool_is_the_number_of_whole_blocks_in_a_gibibyte() -> None:
    """A block of 16 tokens: 40 layers of keys and values, 8 heads of 128 values of 4 bytes, so 5 MiB."""
    big = dataclasses.replace(MODEL, num_layers=40, num_kv_heads=8, head_dim=128)
    blocks = EngineConfig(model="none").resolve(big).num_kv_blocks
    assert (blocks, type(blocks)) == (204, int)


@pytest.mark.parametrize(
    ("method", "lookahead", "drops"), [(None, 0, False), ("ngram", 0, False), ("eagle", 4, True), ("draft_model", 4, False)]
)
def test_what_a_drafter_writes_and_reads_ahead(method: str | None, lookahead: int, drops: bool) -> None:
    """Its own entries stand at the drafts' positions and one more; EAGLE's state pairs each token with the next one."""
    config = make_config()
    if method is not None:
        options = {} if method == "ngram" else {"model": "x"}
        speculative = SpeculativeConfig.from_dict({"method": method, "num_speculative_tokens": 3, **options})
        config = dataclasses.replace(config, speculative=speculative)
    assert (config.num_lookahead_tokens, config.drops_last_cached_block) == (lookahead, drops)


def test_a_record_has_every_option_and_what_auto_became() -> None:
    config = make_config(plugins=["a"], num_threads=3)
    record = config.as_record()
    asked = {field.name for field in dataclasses.fields(EngineConfig)}
    assert record.keys() == asked | {"async_scheduling_requested", "async_scheduling_rule"}
    assert (record["plugins"], record["num_threads"]) == (["a"], 3)
    assert (record["max_model_len"], record["num_kv_blocks"]) == (config.max_model_len, config.num_kv_blocks)
    given_as_class = make_config(distributed_executor_backend=executor_class("uni")).as_record()
    assert given_as_class["distributed_executor_backend"] == "UniExecutor", "a name, which a record can hold"


@pytest.mark.parametrize(
    ("options", "rule"),
    [({}, "supported"), ({"async_scheduling": False}, "explicit_off"), (NGRAM, "speculative_method")],
    ids=["on", "asked", "method"],
)
def test_a_decision_names_its_rule(options: dict[str, Any], rule: str) -> None:
    assert EngineConfig(model="none", **options).resolve_async_scheduling().rule == rule
