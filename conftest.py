"""Options and fixtures of the suites; the recording of results is in `harness/recording`."""

from __future__ import annotations

import pytest

from harness.datasets.gsm8k import Questions, load_questions
from harness.engines import kernel_backends, missing_from_cache, worker_threads
from harness.prompts import question_prompts
from harness.reference import References
from harness.tiers import TIERS, is_selected
from harness.toy_model import toy_model_path

pytest_plugins = ["harness.known_defects_plugin", "harness.recording"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lockstep")
    group.addoption("--tier", choices=TIERS, default="default", help="run the cases of this tier and of those before it")
    group.addoption(
        "--target-model",
        default="zoo:smollm2-135m",
        help="the model of the cases on a real checkpoint: a directory, a GGUF file, a Hugging Face id or a zoo: name",
    )
    group.addoption("--accuracy-model", default="zoo:tiny", help="the model of the accuracy suite, named as --target-model")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "tier(name): the first tier that runs the case: " + ", ".join(TIERS))


def pytest_report_header() -> str:
    return f"lockstep: kernels {kernel_backends()[0]}, {worker_threads()} threads"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.getoption("--tier")
    kept = [item for item in items if is_selected(item, chosen)]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept


@pytest.fixture(scope="session")
def toy_model() -> str:
    """A small random model with the same bytes on every machine."""
    return str(toy_model_path())


def named_model(config: pytest.Config, option: str) -> str:
    """The model that an option names; skips, with the way to get it, where it is not on this machine."""
    name: str = config.getoption(option)
    reason = missing_from_cache(name)
    if reason is not None:
        pytest.skip(reason)
    return name


@pytest.fixture(scope="session")
def real_model(pytestconfig: pytest.Config) -> str:
    """The checkpoint of `--target-model`; the case is skipped, with the way to get it, where it is not on this machine."""
    return named_model(pytestconfig, "--target-model")


@pytest.fixture(scope="session")
def questions() -> Questions:
    """GSM8K questions where they are to be had, else our own."""
    return load_questions()


@pytest.fixture(scope="session")
def real_prompts(real_model: str, questions: Questions) -> list[list[int]]:
    """The twelve shortest of the first hundred questions, as token ids of the real model."""
    return question_prompts(real_model, sorted(questions.texts[:100], key=len)[:12])


@pytest.fixture(scope="session")
def reference_for() -> References:
    """Reference runs, made once for each workload of a session."""
    return References()


@pytest.fixture(scope="session")
def accuracy_model(pytestconfig: pytest.Config) -> str:
    """The model of the accuracy suite: the zoo's own `tiny`, which comes with the repository, unless another one is named."""
    return named_model(pytestconfig, "--accuracy-model")


@pytest.fixture(scope="session")
def num_problems(pytestconfig: pytest.Config) -> int:
    """How many problems of the fixed split are asked."""
    return 1000 if pytestconfig.getoption("--tier") == "nightly" else 400
