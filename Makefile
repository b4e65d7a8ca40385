# `make run` and `make test` set themselves up: a virtual environment in .venv with the pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TOOLS := .tools
# Files by digest, made from constraints.txt. Empty, the newest versions that pyproject.toml allows: what a user gets.
LOCK ?= requirements.lock
# One thread for each of the processes that share the processors; what they import is compiled once, not in each of them.
TESTED := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python

.PHONY: setup run test quick fuzz coverage lint check format benchmark results papers browser tools lock audit sbom dist clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(LOCK)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	rm -rf src/adadp.egg-info  # entry points of an older pyproject.toml would be found first
ifneq ($(LOCK),)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --only-binary :all: --requirement $(LOCK)
	$(BIN)/python -m pip install --quiet --only-binary :all: --constraint constraints.txt torch  # by version: docs/dependencies.md
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check
else
	$(BIN)/python -m pip install --quiet --editable ".[dev,benchmark]"
endif
	touch $(STAMP)

run: setup
	$(BIN)/adadp train --data cancer --epsilon 2 --delta 1e-4 --out runs/cancer-$$(date +%Y%m%d-%H%M%S)
	@echo "To use adadp in this terminal: source $(BIN)/activate"

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
	$(BIN)/python benchmarks/accounting.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/compiled.py
	$(BIN)/python benchmarks/method_time.py
	$(BIN)/python benchmarks/arithmetic.py
	$(BIN)/python benchmarks/spotcheck.py

results: setup
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/leaderboard.py

# Every table and figure of the papers that has not been measured; hours. `adadp reproduce PAPER/ITEM` runs one.
papers: setup
	$(BIN)/adadp reproduce all --out docs/papers

tools: $(TOOLS)/.installed

$(TOOLS)/.installed: .ci/tools.lock
	test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --require-hashes --only-binary :all: --requirement .ci/tools.lock
	touch $@

# Digests of all files of the versions in constraints.txt, for every system; torch is left out.
COMPILE = $(TOOLS)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	--custom-compile-command "make lock"
lock: tools
	echo torch | $(COMPILE) --excludes /dev/stdin constraints.txt --output-file requirements.lock
	$(COMPILE) .ci/tools.in --output-file .ci/tools.lock

# Known vulnerabilities of the pinned versions. Whatever the service does not answer is an error, not a pass.
AUDIT = $(TOOLS)/bin/pip-audit --strict --disable-pip --progress-spinner off
audit: tools
	@{ $(AUDIT) --no-deps --requirement constraints.txt && $(AUDIT) --require-hashes --requirement .ci/tools.lock; } || { \
		echo "Something was found, or the service could not be asked (it needs a network): see above." >&2; exit 1; }

# What is installed in .venv, as CycloneDX.
sbom: setup tools
	mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-format JSON \
		--output-file dist/sbom.cdx.json $(BIN)/python

# What a release consists of: dates are those of the commit.
dist: tools
	rm -rf build dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(TOOLS)/bin/python -m build --no-isolation --outdir dist

clean:
	rm -rf $(VENV) $(TOOLS) build dist .pytest_cache .mypy_cache .ruff_cache htmlcov .coverage
