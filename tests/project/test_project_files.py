"""The project's own files agree with each other."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def pinned() -> dict[str, Version]:
    lines = [line.split("#")[0].strip() for line in (REPOSITORY / "constraints.txt").read_text().splitlines()]
    pairs = [line.split("==") for line in lines if line]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def test_every_dependency_is_pinned_inside_its_range(pyproject: dict[str, Any], pinned: dict[str, Version]) -> None:
    project = pyproject["project"]
    wanted = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    assert len(wanted) > 10
    for requirement in map(Requirement, wanted):
        version = pinned[canonicalize_name(requirement.name)]
        assert version in requirement.specifier, f"{requirement} is pinned to {version}"


def test_pins_hold_for_every_build_of_a_version(pinned: dict[str, Version]) -> None:
    assert not [name for name, version in pinned.items() if version.local], "a local suffix such as +cpu is not everywhere"
    assert "kernels" not in pinned, "Hugging Face's package of this name hides ours"


def test_every_package_of_the_map_is_built(pyproject: dict[str, Any]) -> None:
    include = pyproject["tool"]["setuptools"]["packages"]["find"]["include"]
    for name in ("engine", "harness", "kernels", "reports", "suites"):
        assert f"{name}*" in include
        assert (REPOSITORY / name / "__init__.py").exists()
        packages = {source.parent for source in (REPOSITORY / name).rglob("*.py")}
        assert not [p for p in packages if not (p / "__init__.py").exists()], "would be left out of a wheel"


def test_make_has_every_documented_target() -> None:
    text = (REPOSITORY / "Makefile").read_text()
    documented = set(re.findall(r'@echo "make (\w+)', text))
    assert documented == {"setup", "run", "test", "quality", "mutants", "zoo", "bench", "clean"}
    assert all(re.search(rf"^{target}:", text, re.MULTILINE) for target in documented)


def test_ci_runs_the_tests() -> None:
    script = REPOSITORY / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text()
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert ".ci/run" in (REPOSITORY / ".github" / "workflows" / "ci.yml").read_text()
