"""Backends by name, their errors, and life with threads, forks and floating-point modes."""

from __future__ import annotations

import os
import threading
import warnings
from pathlib import Path

import pytest
import torch

from kernels import backend, native
from kernels.backend import KERNEL_NAMES, create_kernels
from kernels.interface import DrawPurpose, Kernels
from kernels.native import NativeUnavailableError
from tests.kernels.support import BACKENDS, NATIVE, assert_same_bits, kernels_of, normal

needs_native = pytest.mark.skipif(not NATIVE, reason="the native kernels are not built")


@pytest.fixture(params=BACKENDS, scope="module")
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return kernels_of(request.param)


@pytest.fixture
def without_libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "library_path", lambda isa: tmp_path / f"_native_{isa}.so")
    monkeypatch.setattr(native, "load_library", native.load_library.__wrapped__)
    backend._warn_slow.cache_clear()


def test_names_and_the_choice_of_native(kernels: Kernels) -> None:
    assert kernels.name in BACKENDS
    if NATIVE:
        assert create_kernels("native").name == create_kernels("auto").name == NATIVE[0]


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown kernels 'cuda'.*" + ", ".join(KERNEL_NAMES)):
        create_kernels("cuda")


@pytest.mark.parametrize("name", BACKENDS)
def test_num_threads_is_checked(name: str) -> None:
    with pytest.raises(ValueError, match="num_threads"):
        create_kernels(name, 0)


@pytest.mark.usefixtures("without_libraries")
def test_auto_without_a_library_warns_once_and_gives_the_reference() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert create_kernels().name == "reference"
        assert create_kernels().name == "reference"
    assert [str(w.message) for w in caught if "pip install" in str(w.message)] != []
    assert len(caught) == 1


@pytest.mark.usefixtures("without_libraries")
@pytest.mark.parametrize("name", ["native", "native-avx2", "native-portable"])
def test_native_without_a_library_is_an_error(name: str) -> None:
    with pytest.raises(NativeUnavailableError, match="build_ext"):
        create_kernels(name)


@needs_native
def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load_library", native.load_library.__wrapped__)
    monkeypatch.setattr(native, "source_digest", lambda: "other")
    assert native.supported_isas() == []
    with pytest.raises(NativeUnavailableError, match="other sources"):
        create_kernels("native-portable")


@pytest.mark.skipif("native-avx2" not in NATIVE, reason="needs the AVX2 library")
def test_an_instruction_set_that_the_cpu_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    class OldCpu:
        @staticmethod
        def ls_cpu_has_avx2() -> int:
            return 0

    real = native.load_library.__wrapped__
    monkeypatch.setattr(native, "load_library", lambda isa: OldCpu() if isa == "portable" else real(isa))
    with pytest.raises(NativeUnavailableError, match="AVX2"):
        create_kernels("native-avx2")
    assert native.supported_isas() == ["portable"]


def test_bad_indices_are_index_errors_and_write_nothing(kernels: Kernels) -> None:
    weight = kernels.pack(normal(0, 20, 8))
    for bad in (-1, 20, 2**40):
        with pytest.raises(IndexError, match=f"row 1: token id {bad}"):
            kernels.embedding(weight, torch.tensor([0, bad]))

    x, table = normal(1, 2, 1, 8), normal(2, 5, 4)
    before = x.clone()
    for bad in (-1, 5):
        with pytest.raises(IndexError, match=f"row 1: position {bad}"):
            kernels.rope(x, torch.tensor([0, bad]), table, table)
    assert_same_bits(x, before)

    caches = torch.zeros(3, 4, 1, 8), torch.zeros(3, 4, 1, 8)
    for bad in (-1, 12):
        with pytest.raises(IndexError, match=f"row 1: slot {bad}"):
            kernels.store_kv(x, x, *caches, torch.tensor([0, bad]))
    assert not torch.cat(caches).any()


@pytest.mark.parametrize(
    ("rows", "positions", "tables"),
    [
        ([0, 2], [0, 0], [[0, 1], [2, 0]]),
        ([0, -1], [0, 0], [[0, 1], [2, 0]]),
        ([0, 0], [0, 8], [[0, 1], [2, 0]]),
        ([0, 0], [0, -1], [[0, 1], [2, 0]]),
        ([0, 1], [0, 4], [[0, 1], [2, 3]]),
        ([0, 1], [0, 4], [[0, 1], [2, -1]]),
    ],
)
def test_attention_outside_of_table_or_cache(
    kernels: Kernels, rows: list[int], positions: list[int], tables: list[list[int]]
) -> None:
    cache = normal(0, 3, 4, 1, 8)
    arguments = (torch.tensor(tables, dtype=torch.int32), torch.tensor(rows), torch.tensor(positions))
    with pytest.raises(IndexError, match="query 1"):
        kernels.paged_attention(normal(1, 2, 1, 8), cache, cache, *arguments, 1.0)


def test_blocks_that_no_token_sees_may_be_anything(kernels: Kernels) -> None:
    cache = normal(0, 3, 4, 1, 8)
    tables = torch.tensor([[0, 1], [2, -1]], dtype=torch.int32)
    out = kernels.paged_attention(normal(1, 2, 1, 8), cache, cache, tables, torch.tensor([0, 1]), torch.tensor([7, 3]), 1.0)
    assert out.isfinite().all()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p", "position"),
    [
        (-1.0, 0, 1.0, 0.0, 0),
        (torch.nan, 0, 1.0, 0.0, 0),
        (torch.inf, 0, 1.0, 0.0, 0),
        (1.0, -1, 1.0, 0.0, 0),
        (1.0, 0, 0.0, 0.0, 0),
        (1.0, 0, 1.1, 0.0, 0),
        (1.0, 0, torch.nan, 0.0, 0),
        (1.0, 0, 1.0, -0.1, 0),
        (1.0, 0, 1.0, 1.1, 0),
        (1.0, 0, 1.0, 0.0, -1),
        (1.0, 0, 1.0, 0.0, 2**56),
    ],
)
def test_sampling_parameters_are_checked(
    kernels: Kernels, temperature: float, top_k: int, top_p: float, min_p: float, position: int
) -> None:
    with pytest.raises(ValueError, match="row 1: expected"):
        kernels.sample(
            normal(0, 2, 5),
            torch.tensor([1.0, temperature]),
            torch.tensor([0, top_k], dtype=torch.int32),
            torch.tensor([1.0, top_p]),
            torch.tensor([0.0, min_p]),
            torch.zeros(2, dtype=torch.int64),
            torch.zeros(2, dtype=torch.int32),
            torch.tensor([0, position]),
            DrawPurpose.TARGET,
        )


def test_shapes_and_dtypes_are_checked(kernels: Kernels) -> None:
    weight = kernels.pack(normal(0, 20, 8))
    x, ids = normal(1, 2, 8), torch.tensor([0, 1])
    wrong = [
        lambda: kernels.pack(normal(0, 20, 8).half()),
        lambda: kernels.pack(normal(0, 20)),
        lambda: kernels.linear(normal(1, 2, 9), weight),
        lambda: kernels.linear(x.double(), weight),
        lambda: kernels.linear(normal(1, 2, 16)[:, ::2], weight),
        lambda: kernels.linear(x, weight, normal(0, 19)),
        lambda: kernels.embedding(weight, ids.int()),
        lambda: kernels.rms_norm(x, normal(0, 7), 1e-5),
        lambda: kernels.add_rms_norm(x, normal(0, 3, 8), normal(0, 8), 1e-5),
        lambda: kernels.silu_mul(normal(0, 2, 7)),
        lambda: kernels.rope(normal(0, 2, 8, 2).transpose(1, 2), ids, normal(0, 9, 4), normal(0, 9, 4)),
        lambda: kernels.rope(normal(0, 2, 2, 16)[..., :8], ids, normal(0, 9, 4), normal(0, 9, 4)),
        lambda: kernels.argmax(x[0]),
        lambda: kernels.gumbel(ids, ids, ids, DrawPurpose.TARGET, 5),
    ]
    for call in wrong:
        with pytest.raises(ValueError, match=r"expected|contiguous"):
            call()


@pytest.mark.parametrize("name", NATIVE)
def test_a_weight_of_another_backend(name: str) -> None:
    foreign = kernels_of("reference").pack(normal(0, 20, 8))
    with pytest.raises(ValueError, match="another backend"):
        kernels_of(name).linear(normal(1, 2, 8), foreign)


@pytest.mark.parametrize("name", NATIVE)
def test_two_instances_and_one_instance_from_two_threads(name: str) -> None:
    x, weight = normal(0, 30, 300), normal(1, 500, 300)
    shared = create_kernels(name, 2)
    expected = kernels_of(name).linear(x, kernels_of(name).pack(weight))
    failures: list[BaseException] = []

    def work(kernels: Kernels) -> None:
        try:
            packed = kernels.pack(weight)
            for _ in range(40):
                assert_same_bits(kernels.linear(x, packed), expected)
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(kernels,)) for kernels in (shared, shared, create_kernels(name, 2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("name", NATIVE)
def test_many_instances_come_and_go(name: str) -> None:
    before = threads_of_this_process()
    for _ in range(30):
        kernels = create_kernels(name, 3)
        kernels.silu_mul(normal(0, 40, 2000))
        del kernels
    assert threads_of_this_process() <= before + 2


def threads_of_this_process() -> int:
    """Native ones too; 0 where the system does not tell."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 0


@pytest.mark.parametrize("name", NATIVE)
def test_the_callers_floating_point_mode_changes_nothing_and_stays(name: str) -> None:
    tiny = torch.full((400, 2000), 1e-39)  # subnormal
    weight = torch.ones(2000)
    expected = kernels_of(name, 2).add_rms_norm(tiny, tiny.clone(), weight, 2e-38)
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormals")
    try:
        fresh = create_kernels(name, 2)  # its threads are born in this mode
        for _ in range(20):  # the first calls may be over before its threads are up
            residual = tiny.clone()
            assert_same_bits(fresh.add_rms_norm(tiny, residual, weight, 2e-38), expected)
        assert residual.view(torch.int32)[0, 0] == (tiny.view(torch.int32) * 2)[0, 0]
        still_flushing = bool(tiny[0, 0] * 0.5 == 0)
    finally:
        torch.set_flush_denormal(False)
    assert still_flushing


@needs_native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_makes_its_own_backend() -> None:
    x, weight = normal(0, 30, 300), normal(1, 500, 300)
    inherited = create_kernels("native", 2)
    expected = inherited.linear(x, inherited.pack(weight))
    child = os.fork()
    if child == 0:
        kernels = create_kernels("native", 2)
        same = torch.equal(kernels.linear(x, kernels.pack(weight)), expected)
        del kernels, inherited
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_the_package_itself_is_empty() -> None:
    """Transformers probes a package of this name, so importing it must stay free of effects."""
    assert Path(backend.__file__).with_name("__init__.py").read_text() == ""
