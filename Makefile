# `make train` and `make test` do all their own set-up; PYTHON must be 3.11 or newer.
PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Two processes of one thread each; the tests of a file share what they train.
TWO_AT_ONCE := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile

.PHONY: train test test-slow lint format tensorboard clean

train: $(READY)
	$(BIN)/python train.py $(ARGS)

test: $(READY)
	$(TWO_AT_ONCE) $(ARGS)

test-slow: $(READY)
	$(BIN)/python -m pytest -q -m slow $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

tensorboard: $(READY)
	$(BIN)/tensorboard --logdir outputs

# The marker is made last, so that an interrupted installation is taken up again.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Headlab needs Python 3.11 or newer, found " + sys.version.split()[0] + "; set PYTHON=, as in: make train PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
