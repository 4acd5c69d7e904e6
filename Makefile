# `make demo` and `make test` do everything on a fresh machine with Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := train,envs,archive,peers,dev
SEEDS ?= 300
SEED ?= 0
PLANT ?=
KILLS ?= 300
# uv is several times faster where it can see the same wheels as pip; pip is the way that always works.
INSTALL := $(if $(and $(shell command -v uv),$(PIP_FIND_LINKS)),uv pip install --python $(BIN)/python --find-links "$(PIP_FIND_LINKS)",$(BIN)/python -m pip install --disable-pip-version-check --quiet)

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format bench simulate faults clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

# Where Python is told to keep no bytecode, as in many containers, every process that is started would otherwise compile all of it again.
setup: $(VENV)/.ready  ## make .venv with everything in it
	@$(BIN)/python -m compileall -q src

$(VENV)/.ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a minute or two the first time)"
	@$(INSTALL) -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

demo: setup  ## the whole loop on this machine, in about two minutes: leaves runs/demo
	$(BIN)/penstock demo

test: setup  ## run all tests
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

check: setup  ## format, lint, types, import order
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## run every benchmark, quick form
	@for file in benchmarks/[a-z]*.py; do $(BIN)/python $$file --json --quick || exit 1; done

simulate: setup  ## SEEDS=20000 seeds of the protocol simulation; PLANT=<name> plants a bug, PLANT=list names them
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first-seed $(SEED) $(if $(PLANT),--plant $(PLANT))

faults: setup  ## the trials of a real buffer, long: KILLS=300 kills, power loss, generated requests, new examples
	PENSTOCK_KILLS=$(KILLS) PENSTOCK_LOSSES=4 PENSTOCK_SCHEMA_EXAMPLES=40 HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -q \
		tests/services/test_buffer_faults.py tests/services/test_buffer_power_loss.py tests/services/test_buffer_openapi.py tests/properties/test_ledger.py

clean:  ## remove what was made here
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis .import_linter_cache
