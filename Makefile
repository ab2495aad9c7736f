# Everything a newcomer needs: `make demo` and `make test` set up what is missing by themselves.
PYTHON ?= python3
VENV ?= .venv
# Where torch's CPU build is published; on a machine that cannot reach it, whatever pip finds is used.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
ARCH ?= gfx942
PYTEST_FLAGS ?= -n 2

BIN := $(VENV)/bin
SOURCES := translator frontends backends simulator autotune model vault bench
# A strict editable install links file by file, so it is made anew when the set of files changes (not their contents).
FILESET := $(shell find $(SOURCES) -type f -not -name '*.pyc' | LC_ALL=C sort | cat - pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
STAMP := $(VENV)/.kvc-$(FILESET)

.PHONY: setup demo test test-long lint format docs clean

setup: $(STAMP)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --retries 0 --no-deps -c constraints.txt --extra-index-url $(TORCH_INDEX) torch

$(STAMP): | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]' --config-settings editable_mode=strict
	@rm -f $(VENV)/.kvc-* && touch $@

demo: setup
	$(BIN)/kvc translate examples/convnet.py --target hip --arch $(ARCH) -o out/convnet-hip

test: setup
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

# Minutes to hours: the full matrix of examples, the 4096^3 GEMM, every deletion of an instruction.
test-long: setup
	$(BIN)/python -m pytest -m long

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation as a site in build/site; a broken link fails.
docs: setup
	$(BIN)/python -m pip install --quiet 'mkdocs-material>=9.6,<10'
	$(BIN)/python -m mkdocs build --quiet

clean:
	rm -rf $(VENV) build out *.egg-info
