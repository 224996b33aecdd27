# Needs Python 3.11 or newer, pip and make; everything else is installed into $(VENV).
#
#   make demo                    a short demonstration on an embedded server
#   make gallery                 common mistakes with locks, next to the same code with this package
#   make test                    the fast tests: a few minutes, no optional program needed
#   make test ARGS="-k renewal"  some of them
#   make test-all                all tests: real workers, browser, topologies, terminals, docs samples
#   make faults                  the fault scenarios; at most 15 minutes
#   make spec                    check the models of the protocol with SPIN; at most 3 minutes
#   make mutants                 plant faults into the Python code; the fast tests find each of them
#   make coverage                the lines and branches that the fast tests run
#   make lint                    ruff
#   make types                   mypy, the order of the layers, and the types that users see
#   make docs                    build the documentation
#   make peers                   compare this package with others under faults
#   make bench                   compare the speed of this package with others, also over networks
#   make scale                   the load that one server carries, and three
#   make screenshots             take the pictures of the admin pages for the docs
#   make messages                update the translations (needs gettext)
#   make release                 build and check the files of a release
#
# PYTHON selects the interpreter for a new $(VENV). SET=oldest or SET=newest selects one end of the
# supported versions; use a folder of its own: make test SET=oldest VENV=.venv-oldest

PYTHON ?= python3
VENV ?= .venv
SET ?=
ARGS ?=

# Tests mostly wait, so more processes than processors pay off.
JOBS ?= 4

BIN := $(VENV)/bin

# The core. The fast tests run at least 97% of its branches, and both ways of each condition of the
# Lua scripts.
CORE := django_redislock/engine/*,django_redislock/lua/*,django_redislock/lock_types/*
CORE := $(CORE),django_redislock/backends/*,django_redislock/identity.py,django_redislock/snapshots.py
CORE := $(CORE),django_redislock/keys.py,django_redislock/manager.py,django_redislock/names.py
CORE := $(CORE),django_redislock/validators.py

PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
TOO_OLD := Python 3.11 or newer is needed; name one, as in: make test PYTHON=python3.13

.PHONY: demo gallery test test-all mutants spec faults screenshots messages coverage lint format types docs wheel release peers bench scale waiters clean

demo: $(VENV)/.test.installed
	$(BIN)/python -m testproject.demo

gallery: $(VENV)/.test.installed
	$(BIN)/python testproject/manage.py gallery $(ARGS)

test: $(VENV)/.test.installed
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(ARGS)

test-all: $(VENV)/.test.installed
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(if $(ARGS),$(ARGS),tests)

mutants: $(VENV)/.test.installed
	$(BIN)/python -m tests.mutants $(ARGS)

spec:
	$(PYTHON) -m tools.spec $(ARGS)

faults: $(VENV)/.test.installed
	$(BIN)/python -m tests.faults $(if $(ARGS),$(ARGS),--write docs/evidence/results/faults.md)

screenshots: $(VENV)/.test.installed
	SCREENSHOTS=docs/images $(BIN)/python -m pytest tests/full/browser/test_screenshots.py -k pictures $(ARGS)

messages: $(VENV)/.test.installed
	$(BIN)/python -m tools.messages

coverage: $(VENV)/.test.installed $(VENV)/.coverage.installed
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(JOBS) --dist loadgroup $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under=92
	$(BIN)/coverage report --include='$(CORE)'
	$(BIN)/coverage json --quiet --include='$(CORE)' -o - | $(BIN)/python -c "import json, sys; \
		share = json.load(sys.stdin)['totals']['percent_branches_covered']; \
		print(f'{share:.1f}% of the branches of the core'); sys.exit(share < 97)"
	$(BIN)/python -m pytest -p tests.fast.unit.lua_branches -q tests/fast/unit/test_scripts.py \
		tests/fast/integration/test_stored_tasks.py

lint: $(VENV)/.lint.installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(VENV)/.lint.installed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(VENV)/.test.installed $(VENV)/.lint.installed
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.full.typing

docs: $(VENV)/.docs.installed
	rm -rf docs/_build/html  # also the pages that are gone
	$(BIN)/sphinx-build -n -W --keep-going -b html -d docs/_build/doctrees docs docs/_build/html

release: $(VENV)/.test.installed
	$(BIN)/python -m tools.release $(ARGS)

wheel: $(VENV)/.test.installed
	$(BIN)/hatchling build

# The peers have an environment of their own, so that the package cannot depend on them by mistake.
PEERS_VENV := .venv-peers$(SET:%=-%)

peers:
	$(MAKE) --no-print-directory VENV=$(PEERS_VENV) $(PEERS_VENV)/.peers.installed
	$(PEERS_VENV)/bin/python -m benchmarks.peers $(ARGS)

BENCH_VENV := .venv-bench$(SET:%=-%)

bench:
	$(MAKE) --no-print-directory VENV=$(BENCH_VENV) $(BENCH_VENV)/.bench.installed
	$(BENCH_VENV)/bin/python -m benchmarks.bench $(if $(ARGS),$(ARGS),--write docs/evidence/results/performance.md)

scale:
	$(MAKE) --no-print-directory VENV=$(BENCH_VENV) $(BENCH_VENV)/.bench.installed
	$(BENCH_VENV)/bin/python -m benchmarks.scale $(if $(ARGS),$(ARGS),--write docs/evidence/results/scale.md)

waiters:
	$(MAKE) --no-print-directory VENV=$(BENCH_VENV) $(BENCH_VENV)/.bench.installed
	$(BENCH_VENV)/bin/python -m benchmarks.scale.waiters $(if $(ARGS),$(ARGS),--write docs/evidence/results/scale.md)

clean:
	rm -rf $(VENV) $(PEERS_VENV) $(BENCH_VENV) build dist docs/_build tests/full/browser/node_modules .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

# One file for each installed dependency group. It is out of date if pyproject.toml changes.
$(VENV)/.%.installed: pyproject.toml | $(BIN)/python
	$(PIP) install --editable . --group $* $(if $(SET),--group $(SET))
	$(if $(filter test,$*),$(BIN)/python -m tests.servers.fetch)
	touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "$(TOO_OLD)")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade "pip>=25.1"  # the first that knows dependency groups
