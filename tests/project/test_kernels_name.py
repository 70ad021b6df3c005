"""Our package `kernels` and Hugging Face's of the same name.

Transformers looks for an importable `kernels` when it loads a model's code. If the version that it finds lies in
[0.18.2, 0.19), it imports names from it that ours does not have, and no model can be loaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

REPOSITORY = Path(__file__).parents[2]
PROBE = """
import sys
from transformers.utils import is_kernels_available
from transformers import LlamaForCausalLM
import kernels
assert is_kernels_available() is False
assert kernels.__file__.startswith(sys.argv[1]), kernels.__file__
"""


@pytest.mark.parametrize("where", ["source-tree", "elsewhere"])
def test_transformers_does_not_take_ours_for_the_other(where: str, tmp_path: Path) -> None:
    """With the repository first on sys.path, and from wherever else our package is found."""
    directory = REPOSITORY if where == "source-tree" else tmp_path
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    result = subprocess.run(
        [sys.executable, "-c", PROBE, str(REPOSITORY)],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_our_version_stays_out_of_the_range_that_transformers_looks_for() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    version = Version(project["version"])
    assert not Version("0.18.2") <= version < Version("0.19"), (
        f"lockstep {version}: Transformers reads the version of the distribution that has a top-level package `kernels`, and "
        "between 0.18.2 and 0.19 it takes ours for Hugging Face's and fails at every model. Skip these numbers"
    )


def test_the_package_says_nothing_that_could_be_taken_for_a_version() -> None:
    import kernels

    assert not hasattr(kernels, "__version__")
