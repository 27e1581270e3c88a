# Everything on a fresh machine needs Python >= 3.11 and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: run plan test test-slow lint format bench clean help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

run: $(VENV)/.train  ## train on the embedded data: ten clients, each within its privacy budget
	$(BIN)/udpfl run

plan: $(VENV)/.base  ## compare the mechanisms for one budget, in high and in low dimension
	@mkdir -p out
	$(BIN)/udpfl plan --mechanism all --epsilon 8 --steps 300 --sampling-rate 0.05 --dimension 26010 --plot out/noise.png
	$(BIN)/udpfl plan --mechanism all --epsilon 8 --steps 300 --sampling-rate 0.05 --dimension 1

test: $(VENV)/.dev lint  ## lint, type check and test
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(VENV)/.dev  ## the long checks as well
	$(BIN)/python -m pytest

lint: $(VENV)/.dev  ## style and types only
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy

format: $(VENV)/.dev  ## rewrite the sources in the house style
	$(BIN)/ruff check --fix src tests benchmarks examples
	$(BIN)/ruff format src tests benchmarks examples

bench: $(VENV)/.dev  ## time calibration and training beside other libraries
	$(BIN)/python benchmarks/calibration.py
	$(BIN)/python benchmarks/training.py

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) out runs build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

# torch first and by itself, so that the pinned build is the one that gets installed
$(VENV)/.train: $(VENV)/.base
	$(PIP) torch
	$(PIP) -e '.[train]'
	@touch $@

$(VENV)/.dev: $(VENV)/.train
	$(PIP) -e '.[dev,train]'
	@touch $@
