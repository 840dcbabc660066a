# Every target installs its own requirements into .venv. Start with `make demo` and `make test`.
#
#   setup         a virtual environment in .venv with tilewright and its dependencies
#   demo          start the service and a worker, tune two models, compare with ONNX Runtime;
#                 KEEP=1 keeps the service and its dashboard running
#   test          the test suite
#   test-all      the test suite with the groups that test and check skip while their sources are unchanged
#                 (tests/unchanged.py); records the passing groups in tests/unchanged.json: commit this file
#   docs          the documentation as web pages in build/site; a dead link is an error
#   reference     regenerate docs/reference from the code
#   typescript    generate the types of clients/typescript from the OpenAPI description, with npm
#   wheels        wheels for every architecture into dist/, built with zig (ARGS="--only aarch64")
#   release       sdist and wheels of the commit's version into dist/, each checked in a new environment
#   test-devices  only the jobs on emulated machines, whose files are downloaded once
#   check         formatter, linter, English, type checker, tests; .ci/run calls it
#   prose         check the English of the paths in deploy/prose.toml and of changed passages
#                 (ARGS=docs/tuning.md lists the candidates of a file)
#   fuzz          property tests and random graphs with many new examples (ARGS=tests/unit/loops);
#                 failing examples are saved in tests/cases
#   format        apply the formatter and the automatic fixes of the linter
#   collection    tune each downloaded model for 20 s with at most 8 GiB, and write one report; a stopped run
#                 resumes (ARGS="--groups quantised light-models --limit 5")
#   collection-commands  run every other command on 40 of these models, with at most 60 s and 8 GiB each
#   collection-service  tune these models through a service with a worker: cancel jobs in each phase, kill the
#                 tuner, add large models (ARGS="--parts cancel kill")
#   digests       list the models and targets whose code, plans, programs or schedules differ from
#                 benchmarks/data/digests.txt (ARGS=--update rewrites it, ARGS="--models bert" compares one model)
#   bench         race the models against ONNX Runtime (ARGS="--models resnet50 vgg19")
#   mutants       put small mistakes into a package and list those that no test detects (ARGS=compiler/passes)
#   clean         remove all files that these targets create

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMPS := $(VENV)/stamps
# Twice the number of cores, at most 8: many tests wait for a process, a lease or a browser.
JOBS ?= $(shell $(PYTHON) -c 'import os; print(min(8, (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()) * 2))')
ARGS ?=
# the sources that setup.py compiles
NATIVE := $(wildcard compiler/runtime/native/*.[ch] tuner/measure/harness/*.[ch])
# the sources from which setup.py generates service/client/blocking, messages.h and messages.mjs
GENERATED := $(wildcard service/client/asynchronous/*.py) service/client/generate.py \
  $(wildcard tuner/protocol/*.py) $(addprefix tuner/measure/,speed.py statistics.py) \
  $(addprefix compiler/runtime/,bench.py speeds.py)

# uv installs in seconds, pip in half a minute. pip is used if uv is not available.
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
	@$(PY) -m pip install --quiet --disable-pip-version-check uv || echo "uv is not available: pip is used"

$(STAMPS)/run: pyproject.toml $(wildcard setup.py) $(NATIVE) $(GENERATED) | $(PY)
	@echo "installing tilewright[all] and onnxruntime"
	$(call install,-e '.[all]' onnxruntime)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/test: $(STAMPS)/run
	@echo "installing the requirements of the checks"
	$(call install,-e '.[all$(comma)test]')
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/mutants: $(STAMPS)/test
	@echo "installing the requirements of make mutants"
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
	@# Both checks use one core for a minute. Meanwhile, the test modules are compiled to bytecode once, not by
	@# each of JOBS processes, and the tests start. The errors of the checks follow the summary of the tests.
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
