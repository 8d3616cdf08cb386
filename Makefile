# Two commands do everything on a fresh machine: `make demo` and `make test`.
# PYTHON, TORCH, TORCH_BACKEND (cpu, cuda, auto) and JOBS can be set; PIP_FIND_LINKS is honoured.

PYTHON ?= python3
VENV ?= .venv
# Test processes, beside one for the tests that run one by one. Each has its own sandbox hosts and temporary folders.
JOBS ?= 2
BIN := $(VENV)/bin
export PYTHON VENV

.PHONY: help demo test check lint types imports unit setup bench faults clean

help:
	@echo "make demo    two SSH hosts on this machine, a push, an evaluation, a comparison"
	@echo "make test    lint, types, import rules, all tests"
	@echo "make setup   only the environment in $(VENV)"
	@echo "make bench   all benchmarks"
	@echo "make faults  lets faults loose on jobs and on links, writes docs/reliability.md (SEED, TIMES; root on Linux)"
	@echo "make clean   stops the sandbox hosts; removes the environment and what the demo made"

# Cheap when nothing changed: the script compares a stamp with pyproject.toml and the Python version.
setup:
	@sh scripts/setup.sh

demo: setup
	@$(BIN)/orch demo

test: setup
	@sh scripts/system_packages.sh
	@$(MAKE) --no-print-directory check unit

check: lint types imports

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

unit: setup
	@$(BIN)/python -m tests.everything $(JOBS)

bench: setup
	$(BIN)/python -m benchmarks

TIMES ?= 20
# Scenarios mostly wait, so many more of them than processors go on at the same time.
AT_ONCE ?= 8
faults: setup
	@sh scripts/system_packages.sh
	$(BIN)/python -m tests.faults --write --jobs $(AT_ONCE) --times $(TIMES) $(if $(SEED),--seed $(SEED))

clean:
	@if [ -x $(BIN)/orch ]; then $(BIN)/orch sandbox down --purge --quiet; fi
	rm -rf $(VENV) .orch build dist
