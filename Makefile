# Set-up, demo, tests. Needs Python 3.11 or newer and make; everything else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
DEMO := runs/demo-$(shell date +%Y%m%d-%H%M%S)
INSTALL := install --quiet --constraint constraints.txt --editable ".[dev]"
MINUTES ?= 30
RUNS ?= 5
KILLS ?= 0
STEPS ?= 20000
# Whatever the shell says: without its bytecode, torch takes three times as long to start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup setup-checked demo test test-all fuzz chaos soak audit hashes lint format docs clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("clove-ssl needs Python 3.11 or newer; try make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	@echo "Installing into .venv (a few minutes, mostly torch)"
	@$(BIN)/pip install --quiet --constraint constraints.txt uv && \
	  VIRTUAL_ENV=.venv $(BIN)/uv pip $(INSTALL) --compile-bytecode || $(BIN)/pip $(INSTALL)
	@touch $@

# The same versions, each file compared with its SHA-256 in constraints-hashed.txt.
setup-checked:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes --no-deps -r constraints-hashed.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch .venv/.ready

demo: setup
	$(BIN)/clove pretrain clove-demo --out $(DEMO)
	$(BIN)/clove probe random:resnet18 $(DEMO)
	@echo "report    $(DEMO)/report.html"
	@echo "backbone  $(DEMO)/export/backbone.safetensors"

test: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist worksteal -m "not slow"  # one more than cores: some wait

test-all: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist worksteal

# Hostile files against every parser; found ones stay in tests/fuzz/corpus.
fuzz: setup
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m fuzz --minutes $(MINUTES)

# Pre-training, fine-tuning and a study under kills, signals, a full disk and failing reads;
# with KILLS=200 all verbs that write, until so many kills have hit.
chaos: setup
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m chaos --runs $(RUNS) --kills $(KILLS)

# Many tiny steps; nothing may grow.
soak: setup
	$(BIN)/python -m benchmarks.soak --steps $(STEPS)

# Known vulnerabilities of the pinned versions; a package that nobody can tell about is an error.
audit: setup
	$(BIN)/uv tool run pip-audit --strict --no-deps --disable-pip -r constraints.txt

# After a change of constraints.txt.
hashes: setup
	$(BIN)/uv pip compile --quiet --no-deps --generate-hashes --no-header --no-annotate \
	  --python $(BIN)/python constraints.txt -o constraints-hashed.txt

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: build/docs-venv/.ready
	NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/mkdocs build --quiet --strict
	$(PYTHON) docs/site/check_links.py build/site
	@echo "site      build/site/index.html"
	@echo "search    needs a server: $(PYTHON) -m http.server --directory build/site"

# The site needs neither torch nor the library itself, so it has an environment of its own.
build/docs-venv/.ready: pyproject.toml constraints.txt docs/site/install.py
	$(PYTHON) -m venv build/docs-venv
	build/docs-venv/bin/pip install --quiet --constraint constraints.txt \
	  $$($(PYTHON) docs/site/install.py)
	@touch $@

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
