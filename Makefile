# Two commands do all the set-up on a fresh machine:
#
#   make demo    analyses a sample capture, in an environment of its own (.venv-demo)
#   make test    runs every check and test, in an environment of its own (.venv-test)
#
# They need Python 3.11 or newer, make and a package index.

PYTHON ?= python3
PYTEST_ARGS ?=

DEMO := .venv-demo
TEST := .venv-test
CORE := .venv-test-core
DOCS := .venv-docs
SAMPLE := sample_traces/straggler_4ranks.sqlite
DEMO_REPORT := demo-report.html

.DEFAULT_GOAL := help
.PHONY: help demo test test-core check docs clean python
# What the shell exports for another project must not shadow what is installed here.
unexport PYTHONPATH PYTHONHOME

help:
	@echo 'make demo        analyse the sample capture and write $(DEMO_REPORT)'
	@echo 'make test        every check and test, those of the trainer (with torch) included'
	@echo 'make test-core   the same without torch, which can be a download of several GB'
	@echo 'make check       while you work: the linters, and in parallel the tests that need no browser, nsys or torch'
	@echo 'make docs        the documentation as a site, in site/'
	@echo 'make clean       remove the environments, the caches and $(DEMO_REPORT)'
	@echo
	@echo 'PYTHON=...       the interpreter to start from, 3.11 or newer (now $(PYTHON))'
	@echo 'PYTEST_ARGS=...  what to pass to pytest, such as PYTEST_ARGS="-x -k intervals"'

# $(call environment,FOLDER,WHAT FOR,FILES IT IS MADE FROM,ARGUMENTS OF PIP INSTALL)
#
# FOLDER/made-from is removed first and written last. A folder without it was left half made, and one with another checksum
# was made from other files, in another place or with another interpreter: both are made anew.
define environment
	@set -e; \
	key="$$({ $(PYTHON) -c 'import sys; print(sys.version, sys.base_prefix)'; pwd; cat $(3); } | cksum)"; \
	if [ "$$key" = "$$(cat $(1)/made-from 2>/dev/null)" ] && $(1)/bin/python -c ''; then exit 0; fi; \
	echo "Making $(1) $(2)"; \
	rm -f $(1)/made-from; rm -rf $(1); \
	$(PYTHON) -m venv $(1); \
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check $(4); \
	echo "$$key" > $(1)/made-from
endef

# $(call checks,FOLDER,FLAGS OF PYTEST)
define checks
	$(1)/bin/ruff check
	$(1)/bin/ruff format --check
	$(1)/bin/mypy
	$(1)/bin/lint-imports
	$(1)/bin/python -m pytest $(2) $(PYTEST_ARGS)
endef

# The demonstration installs tracekit as a user gets it, so its sources count among the files it is made from.
demo: python
	$(call environment,$(DEMO),for the demonstration (about 150 MB to download),\
		pyproject.toml $$(find tracekit instrumented_trainer -type f ! -name '*.pyc' | sort),.)
	$(DEMO)/bin/tracekit analyze $(SAMPLE) --html $(DEMO_REPORT)
	@echo
	@echo 'Open this in a browser:  $(CURDIR)/$(DEMO_REPORT)'
	@echo 'Your own capture:        $(DEMO)/bin/tracekit analyze CAPTURE.sqlite --html report.html'

test: python
	$(call environment,$(TEST),for all tests (torch can be a download of several GB; make test-core does without),\
		pyproject.toml constraints-test.txt,-c constraints-test.txt -e '.[test$(comma)trainer]')
	$(call checks,$(TEST))

core-environment = $(call environment,$(CORE),for the tests that need no torch,\
	pyproject.toml constraints-test.txt,-c constraints-test.txt -e '.[test]')

test-core: python
	$(core-environment)
	$(call checks,$(CORE))

check: python
	$(core-environment)
	$(call checks,$(CORE),-n auto -q -m 'not browser and not nsys and not torch')

docs: python
	$(call environment,$(DOCS),for the documentation,pyproject.toml,-e '.[docs]')
	$(DOCS)/bin/mkdocs build --quiet
	@echo 'Open this in a browser:  $(CURDIR)/site/index.html'

# A comma as it is would end an argument of $(call).
comma := ,

python:
	@command -v $(PYTHON) >/dev/null || \
		{ echo 'There is no $(PYTHON) here. Name a Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=/path/to/python' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tracekit needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1 | head -n 1): make $(MAKECMDGOALS) PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo '$(PYTHON) cannot make environments. On Debian and Ubuntu: apt-get install python3-venv' >&2; exit 1; }

clean:
	rm -rf $(DEMO) $(TEST) $(CORE) $(DOCS) $(DEMO_REPORT) build dist site .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find tracekit instrumented_trainer sample_traces tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
