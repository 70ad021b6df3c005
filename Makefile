# Two commands do everything on a fresh machine with Python >= 3.11 and a C++ compiler: `make run` and `make test`.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
RUN_DIR ?= runs/latest
MUTANTS ?=
ZOO_MODEL ?= smollm2-135m
# The questions of the cases on a real checkpoint; without this directory they are our own.
LOCKSTEP_GSM8K_DIR ?= $(abspath $(wildcard ../shared/gsm8k))
export LOCKSTEP_GSM8K_DIR
PYTEST_ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.lockstep-setup
SOURCES := pyproject.toml constraints.txt $(wildcard setup.py kernels/csrc/*)

# One OpenMP thread for each pytest worker, and no spinning: two thread pools that spin on two cores stop each other.
PYTEST := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

.PHONY: help setup fetch zoo run test quality mutants bench clean

help:
	@echo "make setup    virtual environment in $(VENV), everything installed, the real checkpoint in the cache"
	@echo "make run      the validation suites on the embedded engine, and a report page"
	@echo "make test     quality checks, then all tests and all suites"
	@echo "make quality  ruff, mypy, import-linter"
	@echo "make mutants  would a test notice a changed line of the engine? All modules, or MUTANTS=\"engine/scheduler.py ...\""
	@echo "make zoo      trains all small models anew (hours on two cores; an interrupted training goes on)"
	@echo "make bench    speed of the kernels"
	@echo "make clean    removes builds, caches and runs (not $(VENV))"

$(STAMP): $(SOURCES)
	@echo "[setup] virtual environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "[setup] packages, pinned by constraints.txt (torch first; minutes on a fresh machine)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# A machine without network still runs everything else.
fetch: $(STAMP)
	@$(BIN)/python -m harness.zoo fetch $(ZOO_MODEL) > /dev/null \
		|| echo "[setup] zoo:$(ZOO_MODEL) is not available: the cases that need it will be skipped by name"

setup: $(STAMP) fetch
	@echo "[setup] ready: $(BIN)/lockstep"

# $(call tested,PATHS,RUN): the report is made even when a test failed; the exit status is then that of the tests.
define tested
@status=0; $(PYTEST) $(1) --records=$(2) || status=$$?; \
$(BIN)/lockstep report $(2) || { test $$status -ne 0 || status=1; }; \
exit $$status
endef

run: setup
	$(call tested,suites/,$(RUN_DIR))

test: setup quality
	$(call tested,tests/ suites/,runs/test)

quality: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The tests that start a process are left out, see harness/mutants/__main__.py.
mutants: $(STAMP)
	@$(BIN)/python -c 'import mutmut' 2> /dev/null \
		|| $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[mutants]'
	@OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m harness.mutants --processes $(WORKERS) $(MUTANTS)

zoo: setup
	$(BIN)/lockstep zoo train --all

bench: $(STAMP)
	@$(BIN)/python -m kernels.bench

clean:
	rm -rf build dist *.egg-info runs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f kernels/*.so kernels/*.dylib $(STAMP)
	find engine harness kernels reports suites tests -name __pycache__ -type d -prune -exec rm -rf {} +
