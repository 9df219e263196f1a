# `make quickstart` and `make test` do all the set-up on a fresh machine: Python 3.11 and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OUT ?= runs/quickstart
SEED ?= 0

.PHONY: help quickstart test lint serve study clean

help:
	@echo "make quickstart   the whole pipeline, small and real (about 12 minutes on two cores; OUT=$(OUT) SEED=$(SEED))"
	@echo "make test         linter, type checker, tests"
	@echo "make serve        the quickstart's judge behind an HTTP endpoint"
	@echo "make study        the quickstart for seeds 0, 1, 2, and the table over them (by hand; under an hour)"

# torch is asked for by its exact version: where an index or wheel folder carries a CPU build of it, that one is taken.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

quickstart: $(READY)
	$(BIN)/rewardlab quickstart --out $(OUT) --seed $(SEED)

serve: $(READY)
	$(BIN)/rewardlab serve --judge hf:$(OUT)/rl/final --max-tokens 64

study: $(READY)
	$(BIN)/python eval/study.py --out runs/study

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest

clean:
	rm -rf $(VENV) runs
