# make train  sets up .venv and trains on the embedded digits with 16 ranks: validation 95 % or better
# make test   sets up .venv and runs everything that CI runs
# make test-ft  of that, the tests that need Open MPI's fault tolerance
# make torture  random campaigns against what docs/reliability.md promises: MINUTES=30 SEED=0
# make lint   ruff, mypy, import-linter
# make bench  the measurements of benchmarks/
# make paper  the runs that repeat the paper, as far as they are missing
# make docs   the site, with every chapter of the tutorial run: docs/_build/html
# make docs-open  serves it on localhost: PORT=8000
# make pictures  the pictures of docs/, and the tables that go with them
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNS := $(VENV)/.runs
RANKS ?= 16
# Without a GPU `cuda` is its real PTX, interpreted, and as far as that goes Numba's simulator.
REPORTS := $(patsubst %,conformance-%.json,cuda cuda-simulated jax torch ipu numba numpy)
CLASS_cuda := ptx_interpreter:PtxBackend
CLASS_cuda-simulated := cuda
FLAGS_cuda-simulated := --level L2
SETTING_cuda-simulated := NUMBA_ENABLE_CUDASIM=1

.PHONY: train test lint unit unit-first unit-mpi unit-last coverage vectors conformance always test-ft torture torture-short bench paper paper-page docs docs-open pictures clean

train: $(RUNS)
	$(BIN)/mpirun -n $(RANKS) $(BIN)/python -m rbd_ref.train

# Three at a time on two cores, as some wait for processes; what needs an environment of its own while the other is made.
# Libraries compute with one thread each: with more, they would mostly wait for each other.
test: export OMP_NUM_THREADS := 1
test:
	+$(MAKE) --no-print-directory --jobs=3 $(if $(filter 4.%,$(MAKE_VERSION)),--output-sync=target) test-ft unit-first unit-last coverage unit-mpi torture-short $(REPORTS) lint vectors
	$(BIN)/python docs/backend_table.py --check $(REPORTS)

# What a run needs, or also what tests and developers need. Python compiles what is imported, and keeps it.
INSTALL := -m pip install --quiet --no-compile
unexport PYTHONDONTWRITEBYTECODE
define environment
@$(PYTHON) -c 'import sys; sys.exit("rbd-ref needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": set PYTHON=python3.11 or later") if sys.version_info < (3, 11) else None'
test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
endef

$(RUNS): pyproject.toml
	$(call environment,$(VENV))
	$(BIN)/python $(INSTALL) --editable ".[mpi]"
	touch $(RUNS)

$(READY): pyproject.toml
	$(call environment,$(VENV))
	$(BIN)/python $(INSTALL) --editable ".[mpi,test,dev,plot]"
	touch $(RUNS) $(READY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# All tests, or three parts of them.
PYTEST := $(BIN)/python -m pytest --durations=20
unit: $(READY)
	$(PYTEST)

unit-first: $(READY)
	$(PYTEST) $(wildcard tests/test_[a-i]*.py tests/test_jax*.py)

unit-mpi: $(READY)
	$(PYTEST) tests/test_mpi.py

unit-last: $(READY)
	$(PYTEST) $(filter-out tests/test_mpi.py tests/test_jax%,$(wildcard tests/test_[j-z]*.py))

# The same kernels as plain Python: what the compiled ones are measured against, and the only way to see their lines run.
# Tests of other libraries, of processes and of pages would do the same work again.
APART := architecture benchmarks cuda documents examples explorable hangs ipu jax lazy mpi packaging site statistics torch tradeoff
coverage: $(READY)
	NUMBA_DISABLE_JIT=1 $(BIN)/coverage run -m pytest -q --durations=20 -m "not compiled" $(filter-out $(foreach name,$(APART),tests/test_$(name)%),$(wildcard tests/test_*.py))
	$(BIN)/coverage report

vectors: $(READY)
	$(BIN)/python -m rbd_ref.conformance.golden --check

# Open MPI, which can lose ranks and go on, beside MPICH: an environment of its own.
$(VENV)-ft/.ready: pyproject.toml
	$(call environment,$(VENV)-ft)
	$(VENV)-ft/bin/python $(INSTALL) --editable ".[mpi-ft]" pytest hypothesis
	touch $@

test-ft: $(VENV)-ft/.ready
	$(VENV)-ft/bin/python -m pytest -q tests/ft_mpi.py

# What docs/reliability.md promises, and a short form of it.
MINUTES ?= 30
SEED ?= 0
torture: $(READY)
	$(BIN)/python tests/torture --minutes $(MINUTES) --seed $(SEED) --json docs/reliability.json

torture-short: $(READY)
	$(BIN)/python tests/torture --minutes 1 --seed $(SEED)

# What the backends reach is what docs/backends.md says.
conformance: $(READY) vectors
	+$(MAKE) --no-print-directory --jobs=2 $(REPORTS)
	$(BIN)/python docs/backend_table.py --check $(REPORTS)

conformance-%.json: $(READY) always
	@$(SETTING_$*) PYTHONPATH=tests $(BIN)/python -m rbd_ref.conformance --rbd-backend $(or $(CLASS_$*),$*) $(FLAGS_$*) --report $@ >$(@:json=log) 2>&1 || { cat $(@:json=log); exit 1; }
	@tail -n 1 $(@:json=log)

# Both sides of a comparison without AVX-512.
AVX2 := NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+avx2,+fma ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 OPENBLAS_CORETYPE=Haswell
# Ratios and counts with what they were measured on, for the tables of the README and of docs/. A quiet machine is best.
bench: $(READY)
	$(BIN)/python benchmarks/speed.py --json benchmarks/speed.json
	$(BIN)/python benchmarks/growth.py --json benchmarks/growth.json --picture docs/cost.png
	$(BIN)/python benchmarks/parts.py --json benchmarks/parts.json
	if test "$$(uname -m)" = x86_64; then $(AVX2) $(BIN)/python benchmarks/parts.py --json benchmarks/parts-avx2.json; fi
	if test "$$(uname -m)" = x86_64; then $(AVX2) $(BIN)/python benchmarks/speed.py --only-descend --json benchmarks/speed-avx2.json; fi
	if test "$$(uname -m)" = x86_64; then $(AVX2) $(BIN)/python benchmarks/networks.py --json benchmarks/networks-avx2.json; fi
	$(BIN)/python benchmarks/cores.py --json benchmarks/cores.json
	$(BIN)/python benchmarks/trainer.py --json benchmarks/trainer.json
	$(BIN)/python benchmarks/networks.py --json benchmarks/networks.json
	$(BIN)/python benchmarks/operations.py --json benchmarks/operations.json
	$(BIN)/python benchmarks/backends.py --json benchmarks/backends.json
	OMP_WAIT_POLICY=passive $(BIN)/python benchmarks/optimizer.py --json benchmarks/optimizer.json
	OMP_WAIT_POLICY=passive $(BIN)/python benchmarks/ddp.py --json benchmarks/ddp.json
	if command -v valgrind >/dev/null; then $(BIN)/python benchmarks/instructions.py --json benchmarks/instructions.json; fi
	$(BIN)/python docs/speed_tables.py
	$(BIN)/python benchmarks/communication.py --quick

# The paper's tables and figures: what has no result yet, for as long as one lets it. DATA is the folder of the data sets.
DATA ?= data
paper: $(READY)
	$(BIN)/python -m rbd_ref.paper run --data-dir $(DATA)

# docs/paper.md from the results there are.
paper-page: $(READY)
	$(BIN)/python docs/paper_page.py

# The site needs more than the tests do. Chapters whose code has not changed are not run again.
$(VENV)/.docs: $(READY) pyproject.toml
	$(BIN)/python $(INSTALL) --editable ".[docs]"
	touch $@

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet --doctree-dir docs/_build/doctrees docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html

PORT ?= 8000
docs-open: docs
	@echo "http://localhost:$(PORT)/ has the site; press Ctrl-C to stop"
	$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory docs/_build/html

pictures: $(READY)
	$(BIN)/python docs/pictures.py
	$(BIN)/python docs/scaling_model.py
	$(BIN)/python docs/package_graph.py
	$(BIN)/python docs/analysis_pictures.py
	$(BIN)/python docs/explorable_data.py
	$(BIN)/python docs/explorable_picture.py
	$(BIN)/python docs/playbook_table.py

clean:
	rm -rf $(VENV) $(VENV)-ft .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage conformance-* docs/_build
