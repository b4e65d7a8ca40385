# `make run` and `make test` set themselves up: a virtual environment in .venv with the pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup run test check format benchmark clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(STAMP)

run: setup
	$(BIN)/adadp epsilon --q 0.01 --sigma 4 --steps 10000 --delta 1e-5 --accountant all
	$(BIN)/adadp calibrate --epsilon 2 --delta 1e-5 --q 0.01 --steps 10000

test: setup
	$(BIN)/python -m pytest -n auto --cov=adadp --cov-report=term-missing:skip-covered $(PYTEST_ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmark: setup
	$(BIN)/python benchmarks/accounting.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache htmlcov .coverage
