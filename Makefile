# Another sweep: SWEEP=sweeps/smoke.yaml make sweep. Another place for its results: RESULTS=/data/results make sweep.
SWEEP ?= sweeps/default.yaml
RESULTS ?= results
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY = .venv/bin/python
NAME = $$($(PY) -c 'import sys, yaml; print(yaml.safe_load(open(sys.argv[1]))["sweep"])' $(SWEEP))
INSTALL = $(PY) -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: setup plan sweep report test check bench notebook clean
.DEFAULT_GOAL := test

# The stamp is written last and taken away first: an environment without it is half-built and is built anew.
.venv/.stamp: pyproject.toml constraints.txt
	@test -e $@ || rm -rf .venv
	@rm -f $@
	@echo "setting up .venv from pyproject.toml and constraints.txt (a few minutes the first time)"
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@$(INSTALL) '.[dev]'
	@touch $@
.venv/.stamp-bench: .venv/.stamp
	@$(INSTALL) '.[dev,bench]' && touch $@

setup: .venv/.stamp
plan: setup; @$(PY) -m harness plan $(SWEEP) --results $(RESULTS)
sweep: setup; @code=0; $(PY) -m harness sweep $(SWEEP) --results $(RESULTS) || code=$$?; if [ $$code -le 1 ]; then $(PY) -m analysis report $(RESULTS)/$(NAME) || code=$$?; fi; exit $$code
report: setup; @$(PY) -m analysis report $(RESULTS)/$(NAME)
test: check; @$(PY) -m pytest
check: setup; @$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy harness analysis
bench: .venv/.stamp-bench; @$(PY) -m tests.bench
notebook: setup; @$(PY) -m nbconvert --to html --execute --output-dir $(RESULTS)/$(NAME)/report analysis/notebooks/*.ipynb
clean:; @rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache *.egg-info build; find harness analysis tests -name __pycache__ -prune -exec rm -rf {} +
