# make demo    sets everything up in .venv, then goes the whole way once: train, search, export
# make test    runs all tests
# make lint    style, types, import rules

SHELL := /bin/sh
BIN := .venv/bin
READY := .venv/.ready
# Workers of the tests; each runs torch on one thread.
JOBS ?= $(shell jobs=$$(nproc 2>/dev/null || echo 2); [ $$jobs -gt 4 ] && echo 4 || echo $$jobs)

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint
.DELETE_ON_ERROR:

demo: $(READY)
	$(BIN)/python examples/demo.py

# Several test processes with several threads each would fight for the cores.
# The script of the report is tested in a browser; where there is none, that is said.
test: export OMP_NUM_THREADS := 1
test: $(READY)
	@if ! $(BIN)/python -c 'from hwnas.report.browser import require_browser as r; r()' 2>/dev/null; then \
	  echo "no Chromium or Chrome: the report is not tested in one (apt-get install chromium)" >&2; \
	  export HWNAS_NO_BROWSER=1; \
	fi; \
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(READY): pyproject.toml constraints.txt
	@set -e; \
	python=; \
	for candidate in python3 python3.14 python3.13 python3.12 python3.11; do \
	  if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    python=$$candidate; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "error: Python 3.11 or newer is needed: apt-get install python3 python3-venv" >&2; exit 1; \
	fi; \
	if ! $$python -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "error: this Python cannot make environments: apt-get install python3-venv" >&2; exit 1; \
	fi; \
	if [ ! -x $(BIN)/python ]; then $$python -m venv .venv; fi; \
	echo "installing into .venv (torch with all it needs: about 6 GB, some minutes) ..."; \
	$(BIN)/python -m pip install -qq --constraint constraints.txt --editable '.[all,dev]'; \
	touch $@
