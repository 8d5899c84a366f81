# `make demo` and `make test` do all set-up themselves, into .venv. PYTHON=/path/to/python chooses the interpreter.

PYTHON ?=
BIN := .venv/bin

# Most tests wait for servers, for Spark or for a clock: more of them at a time than there are cores.
WORKERS ?= 6
TOGETHER := -n $(WORKERS) --dist loadscope --no-loadscope-reorder

.PHONY: demo test test-fast test-full lint bench costs sbom audit clean

demo: .venv/.ready
	@$(BIN)/strobe demo

test-fast: .venv/.ready
	@$(BIN)/pytest -n auto -m "not slow" tests/unit $(PYTEST_ARGS)

test: .venv/.ready
	@$(BIN)/pytest $(TOGETHER) -m "not slow" $(PYTEST_ARGS)

test-full: .venv/.ready
	@$(BIN)/pytest $(TOGETHER) $(PYTEST_ARGS)

lint: .venv/.ready
	$(BIN)/ruff check src tests tools benchmarks
	$(BIN)/ruff format --check src tests tools benchmarks
	$(BIN)/mypy --strict src
	$(BIN)/python tools/check_imports.py

bench: .venv/.ready
	@$(BIN)/python -m benchmarks
	@$(BIN)/python -m benchmarks.load

costs: .venv/.ready
	@$(BIN)/python -m benchmarks.costs

# What is installed and loaded, and what is known against it. The second asks a service on the network, so no test depends on it.
sbom: .venv/.ready
	@$(BIN)/python tools/sbom.py

audit: .venv/.ready
	@$(BIN)/python tools/audit.py

clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# Everything below happens once, and again only when the dependencies change.
# Nothing is installed that has not one of the hashes in the lock files; what comes as source is built with what they name.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
.venv/.ready: pyproject.toml requirements.lock requirements-build.lock
	@python='$(PYTHON)'; \
	for candidate in python3.13 python3.12 python3.11 python3.10 python3; do \
	  [ -n "$$python" ] && break; \
	  $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && python=$$candidate; \
	done; \
	[ -n "$$python" ] || { echo "Strobe needs Python 3.10 or newer; none was found. PYTHON=/path/to/python names one." >&2; exit 1; }; \
	$$python -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$$python cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }; \
	echo "Setting up .venv with $$($$python --version) (once)"; \
	$$python -m venv .venv
	@$(PIP) --require-hashes --only-binary :all: -r requirements-build.lock
	@$(PIP) --require-hashes --no-build-isolation -r requirements.lock
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@
