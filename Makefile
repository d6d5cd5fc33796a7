# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := build/demo
# Tests that run side by side. In the order of the files: what compiles in its own process comes last.
TESTERS ?= 2

.PHONY: help demo test test-all check unit docs clean

help:
	@echo "make demo      set up, compare eager with inductor, write $(DEMO)/report.html"
	@echo "make test      set up, check style, types and import directions, run the tests"
	@echo "make test-all  the same with the long tests (minutes more)"
	@echo "make docs      write the generated reference pages"
	@echo "make clean     remove what the above made"

$(READY): pyproject.toml constraints-test.txt requirements-dev.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Torchyard needs Python 3.11 or newer; say make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints-test.txt torch -r requirements-dev.txt --editable .
	@touch $(READY)

demo: $(READY)
	@# Exit code 6 says that the machine was busy: the report is there and says so too.
	$(BIN)/torchyard bench examples/demo.toml --run-dir $(DEMO)/run --replace --html $(DEMO)/report.html || test $$? -eq 6

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	set -e; for file in tests/builds/*/conftest.py; do $(BIN)/mypy $$file; done
	$(BIN)/lint-imports

unit: $(READY)
	$(BIN)/python -m pytest -n $(TESTERS) --dist loadfile --no-loadscope-reorder -m "not slow and not gpu and not second_target"

test: check unit

test-all: check
	$(BIN)/python -m pytest -m "not gpu"

docs: $(READY)
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
