# `make run` and `make test` set themselves up: a virtual environment in .venv with the pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One thread for each of the processes that share the processors; what they import is compiled once, not in each of them.
TESTED := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python

.PHONY: setup run test quick fuzz coverage lint check format benchmark results papers browser clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	rm -rf src/adadp.egg-info  # entry points of an older pyproject.toml would be found first
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(STAMP)

run: setup
	$(BIN)/adadp train --data cancer --epsilon 2 --delta 1e-4 --out runs/cancer-$$(date +%Y%m%d-%H%M%S)

# The report is tested in a real browser. Where it cannot be installed those tests are skipped, and say so.
browser:
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && test "$$(id -u)" = 0 \
		&& apt-get -o Acquire::Retries=3 update -qq && apt-get -o Acquire::Retries=3 install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; } \
		|| echo "No chromium: the tests in a browser will be skipped."

test: setup browser
	$(TESTED) -m pytest -n auto --dist worksteal $(PYTEST_ARGS)

# What is quick: about a minute.
quick: setup
	$(TESTED) -m pytest -n auto --dist worksteal -m fast $(PYTEST_ARGS)

# The same tests with examples drawn anew; what fails becomes an @example of its test.
fuzz: setup
	$(MAKE) test PYTEST_ARGS="--hypothesis-profile=fuzz"

# Watching every line takes as long again as the tests themselves.
coverage: setup
	$(MAKE) test PYTEST_ARGS="--cov=adadp --cov-report=term-missing:skip-covered"

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint
	$(BIN)/python -m pytest -q tests/test_architecture.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmark: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[benchmark]"
	$(BIN)/python benchmarks/accounting.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/method_time.py
	$(BIN)/python benchmarks/arithmetic.py
	$(BIN)/python benchmarks/spotcheck.py

results: setup
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/leaderboard.py

# Every table and figure of the papers that has not been measured; hours. `adadp reproduce PAPER/ITEM` runs one.
papers: setup
	$(BIN)/adadp reproduce all --out docs/papers

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache htmlcov .coverage
