# Every target makes what it needs: .venv when it is missing, an extra when pyproject.toml or constraints.txt changed.
# .venv-oldest has the oldest allowed version of each dependency (constraints-oldest.txt).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Modules are compiled when they are imported, not all of them when they are installed.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-compile
# Whatever the environment says of bytecode: else each process that a test starts compiles the package again.
export PYTHONDONTWRITEBYTECODE :=
# A download that broke off is tried once more, after what pip tries itself.
TWICE := sh -c '"$$@" || { echo "Once more: $$*" >&2; "$$@"; }' twice
# Twice quiet: errors are printed, warnings (as root, of a cache) are not.
PIP_INSTALL := $(TWICE) $(PIP) -c constraints.txt -qq
# Some of what is downloaded is large.
export PIP_DEFAULT_TIMEOUT ?= 60
export PIP_RETRIES ?= 10
BENCHMARKS := core.py adapters.py chunking.py atari.py million.py memory_limit.py priorities.py checksums.py kernel.py cached.py sequences.py spent.py commits.py loading.py device.py starting.py report.py formats.py commands.py sb3_dqn.py mixtures.py selections.py rollouts.py later.py ragged.py remote.py growth.py salvage.py
# native/ is compiled where the package is installed.
NATIVE := hatch_build.py $(wildcard native/*.*)
INPUTS := pyproject.toml constraints.txt $(NATIVE)
OLDEST := .venv-oldest
BROWSER := .venv-browser
DISTRIBUTED := .venv-distributed
ROBOTS := .venv-robots

# One process for each processor; worksteal: the slow tests lie together in the order of files.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal --durations 10

.PHONY: help demo quick test exhaustive native interop distributed robots browser lowest lint docs bench house clean
# Two pips must not write to one environment at the same time.
.NOTPARALLEL:

# What stands after ## is what a target is said to do.
help: ## Print this list.
	@echo 'Usage: make TARGET. Each target installs what it needs into a folder of this checkout.'
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.demo-stamp ## Record 20,000 frames of Pong, sample, checkpoint, reopen and export them.
	@$(BIN)/diskreplay demo

quick: $(VENV)/.dev-stamp ## Run some tests in their quick form, as in: make quick FILE=tests/index
	$(if $(FILE),,$(error Which tests? As in: make quick FILE=tests/index))
	DISKREPLAY_TEST_EFFORT=0.1 $(BIN)/python -m pytest -q $(FILE)

# One case of each long family, less of what is random or exhaustive.
test: $(VENV)/.dev-stamp ## Run all tests in their quick form, in about two minutes.
	DISKREPLAY_TEST_EFFORT=0.1 DISKREPLAY_TEST_BUDGET=1 $(PYTEST) tests --ignore=tests/interop --ignore=tests/browser --ignore=tests/distributed --ignore=tests/robots

# With DISKREPLAY_TEST_EFFORT=20 random examples are tried so many times as often.
exhaustive: $(VENV)/.dev-stamp ## Run every case of these tests, whole.
	$(PYTEST) tests --ignore=tests/interop --ignore=tests/browser --ignore=tests/distributed --ignore=tests/robots

# Where memory is limited the sanitizers find no room for theirs. A child that is forked while another thread is in their
# allocator waits for ever: tests that fork are left out.
native: $(VENV)/.dev-stamp ## Run tests with sanitizers in the compiled core, fuzz it, and count its instructions.
	DISKREPLAY_TEST_EFFORT=0.1 $(BIN)/python tests/sanitized.py -n auto --maxprocesses 8 --dist worksteal \
		tests/buffers/test_at_once.py tests/engine tests/hostile tests/index tests/reading tests/sampling \
		--deselect tests/hostile/test_datasets.py::test_mutations --deselect tests/hostile/test_mutations.py \
		--deselect tests/reading/test_runs.py::test_as_from_the_disk
	native/fuzz/run
	native/counts/run

# tests/interop exchanges files with the oldest pyarrow that is allowed, too. Two processes at the most, each with whole
# modules: torch and its peers take gigabytes.
interop: $(VENV)/.interop-stamp $(OLDEST)/.stamp build/suites/.stamp ## Run the tests with other libraries installed.
	$(BIN)/python -m pytest -n auto --maxprocesses 2 --dist loadfile tests/interop

# Ray, which pins a Gymnasium of its own, and object storage on loopback. One process: Ray starts several, and its
# object store, once for all tests. The paths of its sockets must be short.
distributed: $(DISTRIBUTED)/.stamp ## Run the tests with Ray and with object storage.
	TMPDIR=$${TMPDIR:-/tmp} DISKREPLAY_TEST_EFFORT=0.1 $(DISTRIBUTED)/bin/python -m pytest tests/distributed

# LeRobot, in an environment of its own: it pins much, and what its datasets do not need is left out. Nothing is fetched.
robots: $(ROBOTS)/.stamp ## Run the tests with LeRobot, which makes and reads datasets of robots.
	HF_HUB_OFFLINE=1 DISKREPLAY_TEST_EFFORT=0.1 $(ROBOTS)/bin/python -m pytest tests/robots

# Chromium is installed where that may be done.
browser: $(BROWSER)/.stamp ## Run the tests of the page of report and view, in Chromium.
	tests/browser/install
	$(BROWSER)/bin/python -m pytest tests/browser

lowest: $(OLDEST)/.stamp ## Run the tests nearest to the dependencies, with the oldest versions that are allowed.
	cd tests && DISKREPLAY_TEST_EFFORT=0.1 ../$(OLDEST)/bin/python -m pytest -n auto --maxprocesses 8 --dist worksteal \
		-k 'not recipe' buffers/test_autoreset.py engine/test_misuse.py buffers/test_window.py format \
		formats/test_d4rl.py formats/test_parquet.py formats/test_roundtrip.py golden/test_golden.py index reading \
		sampling schema/test_spaces.py views

# No formatter knows native/: grep finds lines that are too wide.
lint: $(VENV)/.dev-stamp ## Check style, types and the direction of imports.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	! grep -rnE '.{121}' native
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python benchmarks/house.py --check

docs: $(VENV)/.docs-stamp ## Build the site, build/docs/index.html, and check the links between its pages.
	rm -rf build/docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html -c docs -d build/doctrees . build/docs

bench: $(VENV)/.bench-stamp ## Measure speed, memory and size again, for benchmarks/RESULTS.md.
	set -e; for script in $(BENCHMARKS); do $(BIN)/python benchmarks/$$script; done

house: $(VENV)/.dev-stamp ## Print how much one must know to change the code: import circles, private access, calls.
	@$(BIN)/python benchmarks/house.py

# Leaves benchmarks/.frames alone: gigabytes that take minutes to record again.
clean: ## Remove what these targets have made, but for recorded frames.
	rm -rf $(VENV) $(OLDEST) $(BROWSER) $(DISTRIBUTED) $(ROBOTS) build dist diskreplay/native/core.abi3.so .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find cli diskreplay tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

# $(call new_environment,folder); what it lacks is said in one line.
define new_environment
@command -v $(PYTHON) > /dev/null \
	|| { echo 'There is no $(PYTHON); diskreplay needs Python 3.11 or newer, as in: make PYTHON=python3.12' >&2; exit 1; }
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	|| { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1); diskreplay needs 3.11 or newer, as in: make PYTHON=python3.12" >&2; exit 1; }
@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null \
	|| { echo '$(PYTHON) has no venv; on Debian and Ubuntu it comes with: apt install python3-venv' >&2; exit 1; }
@echo 'Making $(1)'
@$(PYTHON) -m venv $(1) || { rm -rf $(1); exit 1; }
endef

$(BIN)/python:
	$(call new_environment,$(VENV))

# What builds the package. It is small, and the first that is installed: so a missing network is noticed at once.
$(VENV)/.build-stamp: | $(BIN)/python
	@$(BIN)/python -m pip install --disable-pip-version-check --retries 1 hatchling editables > $(VENV)/pip.log 2>&1 \
		|| { echo 'pip cannot install hatchling: is there a network? $(VENV)/pip.log says what it tried' >&2; exit 1; }
	@touch $@

$(VENV)/.demo-stamp: $(INPUTS) | $(VENV)/.build-stamp
	@echo 'Installing diskreplay and the Atari emulator into $(VENV), and what they import'
	@PIP_ROOT_USER_ACTION=ignore $(PIP) -e '.[atari]'
	@touch $@

$(VENV)/.dev-stamp: $(INPUTS) | $(VENV)/.build-stamp
	$(PIP_INSTALL) -e '.[dev]'
	touch $@

# With a C++ compiler torchrl's priorities are built for this torch, which takes a minute.
$(VENV)/.interop-stamp: $(INPUTS) tests/interop/build_torchrl.py | $(VENV)/.build-stamp
	$(PIP_INSTALL) -e '.[dev,interop]'
	$(PIP_INSTALL) --no-deps xuance d3rlpy robomimic dopamine-rl
	$(PIP_INSTALL) --no-deps --ignore-requires-python pearll==0.4.1
	$(BIN)/python tests/interop/build_torchrl.py
	touch $@

# Other libraries' own tests; those that a source distribution brings.
build/suites/.stamp: tests/interop/suites/sources.txt | $(BIN)/python
	mkdir -p build/suites
	$(TWICE) $(BIN)/python -m pip download -qq --disable-pip-version-check --no-deps --no-binary stable-baselines3 \
		-d build/suites -r $<
	touch $@

$(OLDEST)/.stamp: pyproject.toml constraints.txt constraints-oldest.txt $(NATIVE)
	$(call new_environment,$(OLDEST))
	$(TWICE) $(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-oldest.txt \
		-e '.[arrow]' $$(grep -E '^(hypothesis|pytest)' constraints.txt)
	touch $@

$(VENV)/.docs-stamp: $(INPUTS) | $(VENV)/.build-stamp
	$(PIP_INSTALL) -e '.[docs]'
	touch $@

$(BROWSER)/.stamp: $(INPUTS)
	$(call new_environment,$(BROWSER))
	$(TWICE) $(BROWSER)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[browser]'
	touch $@

$(DISTRIBUTED)/.stamp: pyproject.toml constraints-distributed.txt $(NATIVE)
	$(call new_environment,$(DISTRIBUTED))
	$(TWICE) $(DISTRIBUTED)/bin/python -m pip install -qq --disable-pip-version-check -c constraints-distributed.txt \
		-e '.[distributed]'
	touch $@

$(ROBOTS)/.stamp: pyproject.toml constraints-robots.txt $(NATIVE)
	$(call new_environment,$(ROBOTS))
	$(TWICE) $(ROBOTS)/bin/python -m pip install -qq --disable-pip-version-check --no-compile -c constraints-robots.txt \
		-e '.[robots]'
	$(TWICE) $(ROBOTS)/bin/python -m pip install -qq --disable-pip-version-check --no-compile --no-deps \
		-c constraints-robots.txt lerobot torchvision
	touch $@

$(VENV)/.bench-stamp: $(INPUTS) | $(VENV)/.build-stamp
	$(PIP_INSTALL) -e '.[bench]'
	touch $@
