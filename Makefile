# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
READY := $(VENV)/.ready
DEMO := build/demo
SITE_VENV := build/venv-docs
SITE_READY := $(SITE_VENV)/.ready
# Tests that run side by side. Those of the long lane often wait for other processes.
TESTERS ?= 2
LONG_TESTERS ?= 3
# Bytecode is kept: otherwise every process that a test starts compiles Torchyard again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-long test-slow test-all check style types unit coverage docs reference site clean

help:
	@echo "make demo      set up, compare eager with inductor, write $(DEMO)/report.html"
	@echo "make test      set up, check style, types and import directions, run the tests"
	@echo "make test-long run the long lane: builds, browsers, Slurm, real kernels"
	@echo "make test-slow run the slow lane: more cases of both, a compile for each workload"
	@echo "make coverage  run the fast and the long lane, write line and branch coverage to build/coverage"
	@echo "make test-all  run everything that needs no GPU, also builds of released projects (real_build: an hour)"
	@echo "make docs      write the generated reference pages, then the documentation site to build/site-docs"
	@echo "make clean     remove what the above made"

$(RUNTIME): pyproject.toml constraints-test.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Torchyard needs Python 3.11 or newer; run make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints-test.txt torch --editable .
	@touch $(RUNTIME)

$(READY): $(RUNTIME) requirements-dev.txt
	$(BIN)/python -m pip install --quiet --constraint constraints-test.txt -r requirements-dev.txt
	@touch $(READY)

demo: $(RUNTIME)
	@# Exit code 6: the machine was too noisy for a verdict; the report is written and says so.
	$(BIN)/torchyard bench examples/demo.toml --run-dir $(DEMO)/run --replace --html $(DEMO)/report.html || test $$? -eq 6

check: style types

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy
	$(BIN)/lint-imports

# In the order of the files: what compiles in its own process comes last.
PYTEST = $(BIN)/python -m pytest -n $(TESTERS) --dist loadfile --no-loadscope-reorder
unit: $(READY)
	$(PYTEST)

# Types are checked beside the tests; mypy uses one core only. Their output follows that of the tests.
TYPES_LOG := $(VENV)/types.log
test: style
	@$(MAKE) --no-print-directory types >$(TYPES_LOG) 2>&1 & types=$$!; \
	$(MAKE) --no-print-directory unit; tests_code=$$?; \
	wait $$types; types_code=$$?; cat $(TYPES_LOG); \
	test $$tests_code -eq 0 -a $$types_code -eq 0

LONG := $(shell grep -v '^\#' tests/long_lane.txt) -m "long and not slow and not gpu and not second_target"
test-long: TESTERS = $(LONG_TESTERS)
test-long: $(READY)
	$(PYTEST) $(LONG)

test-slow: $(READY)
	$(PYTEST) -m "slow and not real_build and not gpu and not second_target"

test-all: check
	$(PYTEST) -m "not gpu"

# Some tests fail while processes are traced, such as those of what a start imports.
coverage: $(READY)
	$(BIN)/python -m pip install --quiet coverage
	$(BIN)/coverage erase
	-$(subst -m pytest,-m coverage run -m pytest,$(PYTEST)) $(LONG)
	-$(subst -m pytest,-m coverage run -m pytest,$(PYTEST))
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet --directory build/coverage/html
	$(BIN)/coverage report --skip-covered | tail -n 40

docs: reference site

reference: $(READY)
	$(BIN)/python docs/generate.py

# An environment of its own: neither Torchyard nor its tests need the tools of the site.
$(SITE_READY): requirements-docs.txt constraints-test.txt
	$(PYTHON) -m venv $(SITE_VENV)
	$(SITE_VENV)/bin/python -m pip install --quiet --constraint constraints-test.txt -r requirements-docs.txt
	@touch $(SITE_READY)

site: $(SITE_READY)
	NO_MKDOCS_2_WARNING=1 $(SITE_VENV)/bin/mkdocs build --strict
	@echo "site: build/site-docs/index.html"

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
