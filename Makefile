# Everything on a fresh machine needs Python >= 3.11 and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: run test test-slow lint format bench clean help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

run: $(VENV)/.base  ## compare the mechanisms for one budget, in high and in low dimension
	@mkdir -p out
	$(BIN)/udpfl plan --mechanism all --epsilon 8 --steps 300 --sampling-rate 0.05 --dimension 26010 --plot out/noise.png
	$(BIN)/udpfl plan --mechanism all --epsilon 8 --steps 300 --sampling-rate 0.05 --dimension 1

test: $(VENV)/.dev lint  ## lint, type check and test
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(VENV)/.dev  ## the long checks as well
	$(BIN)/python -m pytest

lint: $(VENV)/.dev  ## style and types only
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

format: $(VENV)/.dev  ## rewrite the sources in the house style
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

bench: $(VENV)/.dev  ## time calibration beside other libraries
	$(BIN)/python benchmarks/calibration.py

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) out build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

# torch first and by itself, so that the pinned build is the one that gets installed
$(VENV)/.dev: $(VENV)/.base
	$(PIP) torch
	$(PIP) -e '.[dev]'
	@touch $@
