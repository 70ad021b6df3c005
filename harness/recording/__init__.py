"""A pytest plugin that writes one result record for each test under `suites/`, and the fixture `record`.

Load it from the root conftest: `pytest_plugins = ["harness.recording"]`. `--records=DIR` chooses the directory (`runs/latest`
under the root directory if not given, `--records=` for none).
"""

from harness.recording.notes import Notes
from harness.recording.plugin import (
    RUN_SEEDS,
    pytest_addoption,
    pytest_configure,
    pytest_runtest_makereport,
    record,
)

__all__ = [
    "RUN_SEEDS",
    "Notes",
    "pytest_addoption",
    "pytest_configure",
    "pytest_runtest_makereport",
    "record",
]
