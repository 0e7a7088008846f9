# Everything a user or the CI types. `make help` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PTH := mptcore/data/mptlab-server.pth
TORCH_CPU := https://download.pytorch.org/whl/cpu
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt $(CURDIR)/constraints-cuda.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup demo reproduce serve test slow lint docs notebooks bench bench-gpu calibration chaos fuzz mutants

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

setup: $(VENV)/.installed ## make .venv with every pinned package (quick when nothing changed)

# Without an NVIDIA driver, torch is PyTorch's own build for the CPU, where its index answers: its
# version, 2.13.0+cpu, sorts above the registry's 2.13.0, which brings several GB of CUDA.
$(VENV)/.installed: pyproject.toml constraints.txt constraints-cuda.txt $(PTH)
	$(PYTHON) -m venv $(VENV)
	if ! nvidia-smi && curl --head --fail --max-time 3 $(TORCH_CPU)/torch/; then \
		export PIP_EXTRA_INDEX_URL="$$PIP_EXTRA_INDEX_URL $(TORCH_CPU)"; \
	fi > /dev/null 2>&1; $(BIN)/pip install --quiet --editable '.[dev]'
	cp $(PTH) $(VENV)/lib/python*/site-packages # an editable install leaves it out
	# A test runs this generator; the typer that it asks for is older than ours, and for its command line alone.
	$(BIN)/pip install --quiet --no-deps openapi-python-client==0.29.1
	$(BIN)/python -m mptcore --compile
	@touch $@

demo: setup ## the paper's Table 1 and real digits, through the whole service
	$(BIN)/python -m mptlab.demo

reproduce: setup ## all tables and figures of the paper, and a report on what agrees; QUICK=1: in minutes
	$(BIN)/mpt reproduce $(if $(QUICK),--quick)

serve: setup ## the service on this machine: API and workers, SQLite
	$(BIN)/mpt serve

test: setup ## the tests, in minutes
	$(BIN)/pytest -n 3 --dist worksteal --durations=20

slow: setup ## the tests that take long: kills at random, outages, journeys in a browser, pages that run; in minutes
	$(BIN)/pytest -n 3 --dist worksteal --durations=20 -m slow

lint: setup ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: setup ## the pages of docs/ that are generated
	$(BIN)/python -m docs.reference

notebooks: setup ## what the notebooks of docs/ show, half a minute
	$(BIN)/python -m docs.execute

chaos: setup ## processes killed, servers restarted and disks filled at random, for hours; SHORT=1: in minutes
	$(BIN)/python -m tests.chaos $(if $(SHORT),--short) $(PARTS)

fuzz: setup ## requests by the OpenAPI document, good and bad, to a real process; EXAMPLES=50 of each route
	$(BIN)/python -m tests.fuzz --examples $(or $(EXAMPLES),50)

bench: setup ## the performance claims, each a ratio within one run
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.service
	$(BIN)/python -m benchmarks.positions

bench-gpu: setup ## what must hold on a GPU, and how fast it is: two stages of some minutes
	$(BIN)/python -m benchmarks.gpu checks --output bench-output/gpu-checks
	$(BIN)/python -m benchmarks.gpu measures --output bench-output/gpu-measures

calibration: setup ## estimates against their truth, a thousand seeds each: bias and errors
	$(BIN)/python -m benchmarks.calibration

mutants: setup ## small changes that tests must notice; ONLY='service.records.*' TESTS=tests/service/records: a part
	PYTEST_ADDOPTS="-o 'testpaths=$(or $(TESTS),tests/mptcore tests/service tests/worker tests/mptlab)'" \
		$(BIN)/mutmut run $(if $(ONLY),'$(ONLY)')
	$(BIN)/mutmut results | sed '/: not checked$$/d'
