# Everything that this repository can do. Needs GNU make and Python 3.11 to 3.14; the rest goes into .venv.
#   make demo     the main job, with accidents, in about a minute
#   make test     the tests
# Another interpreter: make PYTHON=python3.12 …

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.stamp
BENCH  := $(VENV)/.stamp-bench
CLASSES := $(VENV)/spark.jsa
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
LOCKED := $(wildcard requirements/bench.txt)
# Tests start hundreds of processes: what these import is compiled once, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE
# Twice as many processes as the two cores that this is meant for: tests wait for servers and for other programs.
PYTEST := $(BIN)/python -m pytest -q --numprocesses=4 --dist=loadfile --no-loadscope-reorder

PIP_FAILED = "The versions of requirements/dev.txt could not be installed. pip says why above: no matching distribution" \
	"means no wheel for this system or Python, see docs/installation.md; otherwise look at the network and the disk."

# One resolution for all Pythons and platforms that we support, on none of which pip has to compile anything: all have
# wheels but Spark, which needs no compiler.
WHEELS = --only-binary :all: --no-binary pyspark
LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11.0 --generate-hashes $(WHEELS) \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

.PHONY: help setup demo up test test-all repeat mutants fuzz schemathesis chaos chaos-ingest chaos-cluster check docs pictures bench bench-check dist lock clean

help:
	@echo "make setup     create .venv with the locked versions"
	@echo "make demo      process orders while workers are killed; account for every one"
	@echo "make up        the whole system with a small shop in it, until Ctrl-C"
	@echo "make test      the tests, without the slow ones"
	@echo "make test-all  all tests"
	@echo "make repeat    each test of concurrency a hundred times"
	@echo "make mutants   change one thing in the code at a time: does a test notice? Goes on where it was"
	@echo "make chaos     kill everything over a thousand times, and account for every event"
	@echo "make fuzz      a hundred times as many random inputs for everything that parses; takes its time"
	@echo "make schemathesis  some 10,000 requests for each of two tokens: the server does what its document says"
	@echo "make chaos-ingest  kill the ingest some 200 times, and account for every event"
	@echo "make chaos-cluster  kill its drivers and executors on a cluster 50 times, likewise"
	@echo "make check     lint, format, types, imports and documentation, as CI does"
	@echo "make docs      write the generated documentation"
	@echo "make pictures  take the pictures of the documentation anew; needs Chromium"
	@echo "make bench     Holdfast beside its peers, and the backlog on every store"
	@echo "make bench-check  small and quick: does every benchmark run?"
	@echo "make dist      the wheels of holdfast and holdfast-chaos, in dist"
	@echo "make lock      resolve the versions anew"
	@echo "make clean     remove caches and builds; .venv and .holdfast stay"

setup: $(STAMP)

$(STAMP): requirements/dev.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON) on the PATH: install Python, or name it, make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) scripts/machine.py $(VENV)
	$(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked versions into $(VENV): 2 GB, some minutes the first time"
	@$(PIP) install --use-pep517 --require-hashes -r requirements/dev.txt || { echo $(PIP_FAILED) >&2; exit 1; }
	$(PIP) install --no-deps -e .
	@touch $@

demo: $(STAMP)
	@$(BIN)/holdfast demo

up: $(STAMP)
	@$(BIN)/holdfast up --demo

test: $(CLASSES)
	$(PYTEST) -m "not slow"

test-all: $(CLASSES)
	$(PYTEST)

# Tests start some twenty JVMs; without this archive each takes a third more CPU time, and nothing else changes.
$(CLASSES): $(STAMP) scripts/class_archive.py
	@echo "keeping the classes that Spark loads in $@"
	@$(BIN)/python scripts/class_archive.py $@ >/dev/null 2>&1 || echo "Java wrote no archive: tests take a little longer"

# A test of concurrency proves little by passing once.
repeat: $(STAMP)
	$(PYTEST) -m "concurrency and not slow" --repeat=100

MUTANTS ?= 300
mutants: $(STAMP)
	$(BIN)/python tests/mutants/run_mutants.py --count $(MUTANTS) --resume .mutants.jsonl

# The run of docs/guarantees.md: over 1,000 kills of processes and 100 of servers.
chaos: $(STAMP)
	$(BIN)/holdfast chaos run --minutes 25 --kills 340 --server-kills 34 --seed 20261117

chaos-ingest: $(STAMP)
	$(BIN)/python tests/chaos/ingest.py

chaos-cluster: $(STAMP)
	$(BIN)/python tests/chaos/cluster.py

fuzz: $(STAMP)
	HOLDFAST_FUZZ=long $(PYTEST) --timeout=0 tests/fuzz

# For a short one: make schemathesis CASES=20
CASES ?= 250
schemathesis: $(STAMP)
	$(BIN)/python tests/server/schemas.py --cases $(CASES)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/docs.py --check

docs: $(STAMP)
	$(BIN)/python scripts/docs.py

pictures: $(STAMP)
	$(BIN)/python scripts/screenshot.py

bench: $(BENCH)
	$(BIN)/python bench/queue.py
	$(BIN)/python bench/backlog.py

bench-check: $(BENCH)
	$(BIN)/python bench/queue.py --check
	$(BIN)/python bench/backlog.py --smoke --before src
	$(BIN)/python bench/dlq.py --check
	$(BIN)/python bench/ingest.py --check
	$(BIN)/python bench/archive.py --check
	$(BIN)/python -m bench.freshness --check
	$(BIN)/python -m bench.typed --check
	$(BIN)/python -m bench.compaction --check
	$(BIN)/python -m bench.dedupe --rows 100000 --rounds 1
	$(BIN)/python bench/clients.py --rounds 1
	$(BIN)/python bench/transactions.py --check

$(BENCH): $(STAMP) $(LOCKED)
	$(if $(LOCKED),$(PIP) install --require-hashes -r $(LOCKED),$(PIP) install -e '.[bench]')
	@touch $@

# Two distributions from one source; see packaging/holdfast-chaos.
dist: $(STAMP)
	$(PIP) wheel --no-deps --wheel-dir dist . packaging/holdfast-chaos

lock: $(STAMP)
	$(PIP) install uv
	$(LOCK) --extra postgres --extra redis --extra nats --extra spark --extra server --extra otel --extra dev \
		--output-file requirements/dev.txt pyproject.toml
	$(LOCK) --extra postgres --extra redis --extra nats --extra bench --output-file requirements/bench.txt pyproject.toml
	$(BIN)/python scripts/wheels.py $(WHEELS)

clean:
	rm -rf dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests bench scripts examples -name __pycache__ -type d -prune -exec rm -rf {} +
