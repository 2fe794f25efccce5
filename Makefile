# Penstock: every everyday command. `make` alone lists them.

# Which Python makes the environment; a command or a path. Left out, the first
# of these that is new enough is taken.
PYTHON  ?=
PYTHONS := python3 python3.13 python3.12 python3.11 python3.14 python

# How many test processes, and further arguments for pytest.
WORKERS ?= 2
ARGS    ?=

# What `make chaos` runs on, for how long, and which dice; without SEED it draws one and says so.
KIND    ?= sqlite
SECONDS ?= 60
SEED    ?=

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed

# Only what exists is checked.
CHECKED := $(wildcard src tests benchmarks examples)
TYPED   := $(wildcard src tests benchmarks)

.DEFAULT_GOAL := help
.PHONY: help setup servers demo test chaos check bench site docs

help: ## List the commands
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## Make .venv with everything needed to work on Penstock

servers: setup ## Install the servers that the tests need, where one is missing
	@cd tests && ../$(BIN)/python -m servers.installing

demo: setup ## Show Penstock at work, in one terminal
	@$(BIN)/penstock demo $(ARGS)

test: check servers ## Check, then run every test (WORKERS=2, ARGS="-k name")
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --durations=20 $(ARGS)

chaos: servers ## Kill everything at random, then judge (KIND=sqlite|postgres SECONDS=60 SEED=7)
	@cd tests && ../$(BIN)/python -m chaos $(KIND) --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

check: setup ## Lint, format, types, import rules and plain words, without running anything
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy $(TYPED)
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python .ci/riddle_words.py src

bench: setup ## Run the benchmarks (ARGS="--quick", "--only NAME", "--list")
	$(BIN)/python -m benchmarks $(ARGS)

site: setup ## Build the documentation into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "To read it: $(BIN)/python -m http.server --directory build/site"

docs: site ## Build the documentation and run every example in it
	PENSTOCK_SITE=build/site $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup tests/docs $(ARGS)

$(STAMP): pyproject.toml constraints.txt
	@$(find_python); $(make_venv)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e '.[dev,fast,pydantic]'
	@touch $@

# Sets $python, or says what is missing.
define find_python
new_enough='import sys; sys.exit(sys.version_info < (3, 11))'; \
python=; \
for name in $(or $(PYTHON),$(PYTHONS)); do \
	if "$$name" -c "$$new_enough" >/dev/null 2>&1; then python="$$name"; break; fi; \
done; \
if [ -z "$$python" ]; then \
	echo "Penstock needs Python 3.11 or newer; tried: $(or $(PYTHON),$(PYTHONS))." >&2; \
	for name in $(or $(PYTHON),python3); do \
		echo "  $$name is $$("$$name" --version 2>/dev/null || echo 'not there')" >&2; \
	done; \
	echo "Install one, or name it: make setup PYTHON=/path/to/python3.12" >&2; \
	exit 1; \
fi
endef

# Makes the environment unless a good one is there. Debian and Ubuntu ship the
# venv module apart from Python: there it is installed if we may.
define make_venv
if $(BIN)/python -c "$$new_enough" >/dev/null 2>&1 \
	&& $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	exit 0; \
fi; \
if ! "$$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
	package="$$("$$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"; \
	become=; \
	[ "$$(id -u)" = 0 ] || become='sudo -n'; \
	echo "$$python has no venv module; installing $$package" >&2; \
	if ! command -v apt-get >/dev/null \
		|| ! { $$become apt-get update -qq && $$become apt-get install -y -qq "$$package"; }; then \
		echo "Could not. Install it yourself, then run make again:" >&2; \
		echo "  Debian, Ubuntu: sudo apt-get install $$package" >&2; \
		echo "  elsewhere: the package with Python's venv and ensurepip modules" >&2; \
		exit 1; \
	fi; \
fi; \
echo "making $(VENV) with $$("$$python" --version)"; \
"$$python" -m venv --clear $(VENV)
endef
