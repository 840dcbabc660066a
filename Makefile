# Every target sets up what it misses. `make demo` and `make test` are the two to know.
#
#   setup         a virtual environment in .venv with tilewright and all it needs to run
#   demo          start the service and a worker, tune two models, compare with ONNX Runtime;
#                 KEEP=1 goes on serving, with the dashboard
#   test          the test suite
#   test-all      also the groups that test and check leave out while their sources are unchanged (tests/unchanged.py);
#                 it records the groups without a failure in tests/unchanged.json, to be committed
#   docs          the documentation as pages, in build/site; a dead link is an error
#   reference     docs/reference anew, from the code
#   typescript    the types of clients/typescript, from the service's description, by npm
#   wheels        wheels of every architecture into dist/, by zig (ARGS="--only aarch64")
#   release       sdist and wheels of the commit's version into dist/, each checked in a new environment
#   test-devices  jobs on emulated machines alone; their parts are fetched once
#   check         formatter, linter, English, type checker, tests: .ci/run runs it
#   prose         check the English of the paths in deploy/prose.toml and of changed passages
#                 (ARGS=docs/tuning.md lists the candidates of a file)
#   fuzz          property tests and random graphs with other examples, and many (ARGS=tests/unit/loops);
#                 what fails is kept in tests/cases
#   format        rewrite the sources as the formatter and the linter want them
#   collection    tune each of the models that people have for 20 s, under 8 GiB; one report, which a
#                 stopped run goes on with (ARGS="--groups quantised light-models --limit 5")
#   collection-commands  every other command on 40 of them, each under 60 s and 8 GiB
#   collection-service  such models through a service with a worker: tuned, cancelled in each phase, with the
#                 tuner killed, beside large ones (ARGS="--parts cancel kill")
#   digests       say for which models and targets other code, plans, programs or schedules come out than
#                 benchmarks/data/digests.txt says (ARGS=--update writes that, ARGS="--models bert" compares one)
#   bench         race the models against ONNX Runtime (ARGS="--models resnet50 vgg19")
#   mutants       put small mistakes into a package and see which no test notices (ARGS=compiler/passes)
#   clean         remove everything that a target here has made

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMPS := $(VENV)/stamps
# Twice as many as there are cores: many tests wait for a process, a lease or a browser.
JOBS ?= $(shell $(PYTHON) -c 'import os; print(min(8, (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()) * 2))')
ARGS ?=
# what setup.py compiles
NATIVE := $(wildcard compiler/runtime/native/*.[ch] tuner/measure/harness/*.[ch])
# of which setup.py generates service/client/blocking, messages.h and messages.mjs
GENERATED := $(wildcard service/client/asynchronous/*.py) service/client/generate.py \
  $(wildcard tuner/protocol/*.py) $(addprefix tuner/measure/,speed.py statistics.py) \
  $(addprefix compiler/runtime/,bench.py speeds.py)

# uv takes seconds where pip takes half a minute; where it cannot be had, pip does the same work.
define install
	@if [ -x $(BIN)/uv ] && $(BIN)/uv pip install --quiet --python $(PY) $(1) 2>/dev/null; then :; \
	else $(PY) -m pip install --quiet --disable-pip-version-check $(1); fi
endef

.PHONY: setup setup-test demo test test-all test-devices check prose fuzz format digests bench collection collection-commands collection-service mutants wheels docs reference typescript release clean

setup: $(STAMPS)/run
setup-test: $(STAMPS)/test

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is " + sys.version.split()[0])'
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check uv || echo "uv is not to be had, pip goes on"

$(STAMPS)/run: pyproject.toml $(wildcard setup.py) $(NATIVE) $(GENERATED) | $(PY)
	@echo "installing tilewright[all] and onnxruntime"
	$(call install,-e '.[all]' onnxruntime)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/test: $(STAMPS)/run
	@echo "installing what the checks need"
	$(call install,-e '.[all$(comma)test]')
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/mutants: $(STAMPS)/test
	@echo "installing what makes mutants"
	$(call install,-e '.[all$(comma)test$(comma)mutants]')
	@mkdir -p $(STAMPS) && touch $@

comma := ,

demo: $(STAMPS)/run
	@$(PY) -m examples.demo $(if $(KEEP),--keep) $(ARGS)

test: $(STAMPS)/test
	$(PY) -m pytest -q -n $(JOBS) --dist worksteal $(ARGS)

test-all: $(STAMPS)/test
	$(PY) -m pytest -q -rs -n $(JOBS) --dist worksteal --all-groups

test-devices: $(STAMPS)/test
	$(PY) -m pytest -q -rs -n $(JOBS) --dist worksteal tests/devices $(ARGS)

check: $(STAMPS)/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@# The two keep one core busy for a minute: beside them, the tests become bytecode, which each of JOBS processes
	@# would make, and start. Their errors come after the summary of the tests.
	@echo "$(PY) -m deploy.prose; $(BIN)/mypy"; \
	  ($(PY) -m deploy.prose && $(BIN)/mypy) >$(STAMPS)/texts-and-types.txt 2>&1 & checks=$$!; \
	  $(PY) -m pytest -q --collect-only >/dev/null; \
	  echo $(PY) -m pytest -q -n $(JOBS) --dist worksteal; \
	  $(PY) -m pytest -q -n $(JOBS) --dist worksteal; tests=$$?; \
	  wait $$checks || { cat $(STAMPS)/texts-and-types.txt; exit 1; }; exit $$tests

fuzz: $(STAMPS)/test
	$(PY) -m pytest -q -n $(JOBS) --dist worksteal -m "hypothesis or graphs" --hypothesis-profile=fuzz \
	  --timeout=3600 $(ARGS)

prose: $(STAMPS)/test
	$(PY) -m deploy.prose $(ARGS)

format: $(STAMPS)/test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

digests: $(STAMPS)/test
	$(PY) -m benchmarks.digests $(ARGS)

bench: $(STAMPS)/run
	$(PY) -m benchmarks.race $(ARGS)

collection: $(STAMPS)/run
	$(PY) -m benchmarks.collection $(ARGS)

collection-commands: $(STAMPS)/run
	$(PY) -m benchmarks.collection_commands $(ARGS)

collection-service: $(STAMPS)/run
	$(PY) -m benchmarks.collection_service $(ARGS)

docs: $(STAMPS)/test
	$(BIN)/mkdocs build --quiet
	@echo build/site/index.html

reference: $(STAMPS)/run
	$(PY) -m deploy.reference

typescript: $(STAMPS)/run
	$(PY) -m deploy.clients

wheels: $(STAMPS)/run
	$(PY) -m deploy.wheels $(ARGS)

release: $(STAMPS)/run
	$(PY) -m deploy.release $(ARGS)

mutants: $(STAMPS)/mutants
	$(PY) -m benchmarks.mutants $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf compiler/runtime/*.so tuner/measure/harness/harness-* service/client/blocking clients/typescript/schema.d.ts \
	  service/browser/messages.mjs tuner/measure/harness/messages.h
