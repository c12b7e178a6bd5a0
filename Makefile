# make demo     one NVFP4 checkpoint through generate, build, tune, run, explain
# make test     lint, types, import rules and every test that needs no GPU
# make proof    the Blackwell kernels in the interpreter: every pair of choices, cuts of models; minutes to an hour
# make catalog  every Blackwell kernel of the shipped specs, compiled without a GPU; minutes
# Needs Python >= 3.10, make and a C++ compiler; everything else goes into a virtual environment of its own.

PYTHON ?= python3
# Installed first, so that no other package pulls in another build of torch.
TORCH ?= torch==2.13.0
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2

.PHONY: demo test check proof catalog clean need

demo: $(VENV)/.installed
	$(BIN)/python docs/examples/demo.py

test: $(VENV)/.installed check
	TORCH="$(TORCH)" $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations=15

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/moegen generate specs/quickstart.yaml --check

# Resumed where it was interrupted; what the file holds for the same kernels is kept.
proof: $(VENV)/.installed
	PYTHONPATH=.:tests $(BIN)/python benchmarks/blackwell/prove.py benchmarks/blackwell/proof.json --jobs $(JOBS)

catalog: $(VENV)/.installed
	$(BIN)/python -m pip install -q -e ".[sass]"
	$(BIN)/python -m benchmarks.blackwell.catalog benchmarks/blackwell/catalog.json --jobs $(JOBS)
	$(BIN)/python -m benchmarks.blackwell.catalog benchmarks/blackwell/catalog.json --jobs $(JOBS) --target sm_103a --every 8

need:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	  || { echo "moegen needs Python 3.10 or newer as '$(PYTHON)'; set PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "moegen needs Python's venv module (Debian: apt install python3-venv)" >&2; exit 1; }
	@command -v "$${CXX:-g++}" >/dev/null \
	  || { echo "moegen needs a C++ compiler: install g++ 11 or newer, or set CXX=..." >&2; exit 1; }

$(VENV)/.installed: pyproject.toml | need
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q "$(TORCH)"
	$(BIN)/python -m pip install -q -e ".[test]"
	touch $@

clean:
	rm -rf $(VENV) build dist
