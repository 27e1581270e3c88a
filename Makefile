# Everything on a fresh machine needs Python >= 3.11 and make, nothing else.
PYTHON ?= python3
VENV := .venv
CHECKED := src tests benchmarks examples docs/api.py docs/mathml.py docs/site.py docs/tables.py docs/tutorial.ipynb
BIN := $(VENV)/bin
BENCH := .venv-bench
# A process per core, and one thread each: small tensors keep one core busy, hardly ever several.
PARALLEL := -n auto --maxprocesses 8 --dist worksteal
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: run plan test test-slow mutants lint format docs tutorial bench clean help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

run: $(VENV)/.train  ## train on the embedded data: ten clients, each within its privacy budget
	$(BIN)/udpfl run

plan: $(VENV)/.base  ## compare the mechanisms for one budget, in high and in low dimension
	@mkdir -p out
	$(BIN)/udpfl plan --mechanism all --epsilon 8 --steps 300 --sampling-rate 0.05 --dimension 26010 --plot out/noise.png
	$(BIN)/udpfl plan --mechanism all --epsilon 8 --steps 300 --sampling-rate 0.05 --dimension 1

test: $(VENV)/.dev lint  ## lint, type check and test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PARALLEL) -m "not slow"

test-slow: $(VENV)/.dev  ## the long checks as well
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PARALLEL)

mutants: $(VENV)/.dev  ## put known faults into a copy of the code, one by one: a test has to fail for each
	$(BIN)/python -m tests.mutants.run

lint: $(VENV)/.dev  ## style and types only
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy

format: $(VENV)/.dev  ## rewrite the sources in the house style
	$(BIN)/ruff check --fix $(CHECKED)
	$(BIN)/ruff format $(CHECKED)

docs: $(VENV)/.dev  ## build the pages in docs/ as a site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

tutorial: $(VENV)/.dev  ## run the notebook and store what it printed
	$(BIN)/python -c "import nbclient, nbformat; book = nbformat.read('docs/tutorial.ipynb', 4); \
	nbclient.NotebookClient(book, record_timing=False).execute(); \
	[cell.update(outputs=[own for own in cell.outputs if own.get('name') != 'stderr']) for cell in book.cells if cell.cell_type == 'code']; \
	nbformat.write(book, 'docs/tutorial.ipynb')"

bench: $(BENCH)/.peers  ## time calibration and training beside other libraries; wants an idle machine
	$(BENCH)/bin/python benchmarks/calibration.py
	$(BENCH)/bin/python benchmarks/training.py
	$(BENCH)/bin/python benchmarks/profile_training.py
	$(BENCH)/bin/python benchmarks/scaling.py
	$(BENCH)/bin/python benchmarks/tables.py

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) $(BENCH) out runs site build .mypy_cache .ruff_cache .pytest_cache .hypothesis

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

# Other libraries, pinned, in an environment of their own: they want other versions than the tests.
$(BENCH)/.peers: benchmarks/requirements-peers.txt pyproject.toml
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements-peers.txt
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@
