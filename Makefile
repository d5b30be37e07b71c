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
VENV := .venv
DEV := $(VENV)/.made-from-dev-lock

.PHONY: help env lock run check format test clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

env: $(DEV) ## the development environment in .venv

$(DEV): requirements/dev.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed"; exit 1; }
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(PIP_INSTALL) -r requirements/dev.lock
	$(VENV)/bin/python $(PIP_INSTALL) --no-build-isolation --no-deps --editable .
	touch $@

lock: ## resolve requirements/dev.in anew into requirements/dev.lock
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/python $(PIP_INSTALL) --upgrade pip
	build/lock/bin/python $(PIP_INSTALL) -r requirements/dev.in --editable '.[postgres,redis,granian]'
	build/lock/bin/python -m pip freeze --exclude-editable > requirements/dev.lock
	rm -rf build/lock

run: $(DEV) ## the demonstration: a call that asks two questions
	$(VENV)/bin/antiphon demo

check: $(DEV) ## lint, format and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/basedpyright --level error

format: $(DEV) ## let ruff mend what it can
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

test: $(DEV) ## every test
	$(VENV)/bin/python -m pytest

clean: ## remove the environments and everything made
	rm -rf $(VENV) .peers build dist peers/node_modules
