# Each target installs its requirements into .venv, with uv if it is installed, else with venv and pip.

# The first Python that is new enough and runs: a shim on PATH may exist and fail when called.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	$$python -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$python; break; }; done)
UV := $(shell command -v uv 2>/dev/null)
BIN := .venv/bin
# Tests of a broker wait more than they compute.
WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) * 2)))

.PHONY: help demo test mutants check model bench growth chaos fuzz migrations screenshots docs links format clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

demo: .venv/package ## run the heartbeat example on the embedded broker, with a dashboard (FOR=10s stops it)
	@$(BIN)/scheduler dev examples/heartbeat.py:app --port 0 $(if $(FOR),--for $(FOR))

test: .venv/dev ## run the tests, on the embedded broker and on RabbitMQ (ARGS="-k retry -n 0")
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

mutants: .venv/dev ## change the code in many small ways, and count what the tests notice (ARGS="--all --sample 5")
	@$(BIN)/python -m tests.mutants $(ARGS)

check: .venv/dev ## lint code and prose, check the format, check the types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@$(BIN)/mypy --strict tests/typing
	@$(BIN)/python -m tests.prose

model: .venv/dev ## check the rules of epochs in all orders of events (ARGS="--small", ARGS="--show R4")
	@$(BIN)/python -m tests.model $(ARGS)

bench: .venv/bench ## measure loops and delays against the bare driver (ARGS="--rounds 1"; BENCH_PEERS=VENV: and Celery, taskiq)
	@$(BIN)/python tests/benchmarks/costs.py $(ARGS)
	@$(BIN)/python tests/benchmarks/starting.py

growth: .venv/bench ## measure how costs grow, in 12 minutes (ARGS="--only rate --seconds 5"; ARGS="--draw growth.json docs")
	@$(BIN)/python tests/benchmarks/growth.py $(ARGS)

chaos: .venv/dev ## inject faults, then check every guarantee (ARGS="--faults 1000 --seed 7 --cluster")
	@$(BIN)/python -m tests.chaos $(ARGS)

fuzz: .venv/dev ## publish arbitrary messages, and check that each is run or parked once (ARGS="--messages 100000 --seed 7")
	@$(BIN)/python -m tests.fuzz $(ARGS)

migrations: .venv/dev ## follow each migration guide, and back, in some minutes (ARGS="celery")
	@$(BIN)/python -m tests.migrations $(ARGS)

docs: .venv/docs ## build the documentation into build/docs; fail on a warning or a broken link
	@$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going --builder html docs build/docs
	@echo "build/docs/index.html"

links: .venv/docs ## check the external links of the documentation
	@$(BIN)/sphinx-build --quiet --fresh-env --builder linkcheck docs build/links
	@echo "no broken link: build/links/output.txt"

screenshots: .venv/dev ## take screenshots of the dashboard with 200 loops, in two minutes (ARGS="--warm 10")
	@$(BIN)/python -m tests.browser.screenshots $(ARGS)

format: .venv/dev ## format the code, and apply the fixes of the linter
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

clean: ## delete the virtual environment and all caches
	rm -rf .venv .hypothesis .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/package: pyproject.toml
ifneq ($(UV),)
	@uv venv --quiet --allow-existing --python '>=3.11' .venv
	@uv pip install --quiet --python $(BIN)/python --editable '.[dashboard]'
else
	@test -n "$(PYTHON)" || { echo "scheduler needs Python 3.11 or newer with venv: install it, or name it: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dashboard]'
endif
	@touch $@

.venv/dev: .venv/package
ifneq ($(UV),)
	@uv pip install --quiet --python $(BIN)/python --group dev
else
	@# Groups need pip 25.1.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --group dev
endif
	@touch $@

.venv/docs .venv/bench: .venv/%: .venv/dev
ifneq ($(UV),)
	@uv pip install --quiet --python $(BIN)/python --group $*
else
	@$(BIN)/python -m pip install --quiet --group $*
endif
	@touch $@
