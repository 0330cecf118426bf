# Every target sets up what it needs by itself; see `make help`.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
SOURCES := broker scheduler_svc node_agent launcher simulator cli tiresias
QUICK_TESTS := $(wildcard tests/unit tests/property tests/scenarios tests/compat tests/architecture)
SLOW_TESTS := $(filter-out $(QUICK_TESTS),$(patsubst %/,%,$(wildcard tests/*/)))
NOT_REAL := not nats and not process and not tf and not e2e

export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: help setup demo test check lint types imports quick slow docs samples bench lock clean

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r name text; do \
	  printf '  make %-8s %s\n' "$$name" "$$text"; done

setup: ## Create .venv and install everything, if that is not done yet
	@scripts/setup.sh

demo: setup ## Train real jobs on a simulated two-node cluster, on this machine
	@exec $(BIN)/tiresias demo

test: lint types quick slow ## Run everything: style, types, import rules, all tests

check: lint types ## Run the part of the tests that needs seconds only
	@echo "==> unit and architecture tests"
	@$(PYTEST) -q -n 2 -m "$(NOT_REAL)" $(QUICK_TESTS)

lint: setup ## Check style and formatting
	@echo "==> style"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup ## Check types, strictly
	@echo "==> types"
	@$(BIN)/mypy
	@$(BIN)/mypy -p scripts

imports: setup ## Check who imports whom
	@echo "==> import contracts"
	@$(BIN)/lint-imports --no-logo

quick: setup
	@echo "==> unit, property and architecture tests; branch coverage of the cores must be 100 %"
	@$(PYTEST) -q -n 2 --cov --cov-report=term-missing:skip-covered $(QUICK_TESTS)

slow: setup
	@echo "==> tests with real servers, processes and TensorFlow"
	@$(PYTEST) -q --durations=10 $(SLOW_TESTS)

docs: setup ## Generate docs/reference from the code
	@$(BIN)/python -m scripts.generate_reference

samples: setup ## Store a sample of each message type that has none yet
	@$(BIN)/python -m scripts.write_samples

bench: setup ## Run the benchmarks and compare with the accepted ranges
	@$(BIN)/python -m benchmarks.launch

lock: ## Resolve all dependencies afresh and write constraints.txt
	@scripts/lock.sh

clean: ## Remove what the other targets made, the virtual environment too
	rm -rf .venv build dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage .coverage.*
	find $(SOURCES) tests scripts examples benchmarks -name __pycache__ -prune -exec rm -rf {} +
