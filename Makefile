# Everything from a clean checkout with Python ≥ 3.11 and make.
PYTHON ?= python3
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE # hundreds of processes start in the tests: what one compiles, the others use

.DEFAULT_GOAL := help
.PHONY: help demo docs findings pictures test test-cluster test-slow hostile mutants bench bench-watch bench-cluster suite arena house format clean

help:             ## list the targets
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

.venv/.ready .venv/.cluster: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch .venv/.ready $@

.venv/.ready: EXTRAS := dev
.venv/.cluster: EXTRAS := dev,test-cluster,test-exporters,test-watch

demo: .venv/.ready ## run two quick studies and write a report of them
	$(BIN)/sonde run residual --runs demo/runs --out demo/out
	$(BIN)/sonde run audit --runs demo/runs --out demo/out
	$(BIN)/sonde report --runs demo/runs --out demo/report.html

demo/report.html: | .venv/.ready
	$(MAKE) demo

docs: .venv/.ready | demo/report.html ## the documentation as a folder of pages, site/, with the demo's figures and report
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pictures: demo ## docs/report.png and docs/live.png, with chromium
	$(BIN)/python benchmarks/pictures.py

findings: .venv/.ready ## docs/findings and docs/rules.md anew from the runs that are stored there
	$(BIN)/python docs/findings/write.py
	$(BIN)/python docs/write_rules.py

test: .venv/.ready ## ruff, mypy and the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/mypy & types=$$!; \
	$(BIN)/pytest -q -n 2 --dist loadgroup -m "not slow and not cluster"; tests=$$?; \
	wait $$types || { echo "mypy found errors: they are above the tests"; exit 1; }; exit $$tests

test-cluster: .venv/.cluster ## runs on a Ray cluster and in an object store, both on this machine
	$(BIN)/pytest -q -n 2 --dist loadgroup -m "not slow" tests/cluster

test-slow: .venv/.cluster ## full-scale checks
	$(BIN)/pytest -q -m slow

hostile: .venv/.ready ## 400 stores that were made to do harm against every reading command, 2,000 flips and cuts; half an hour
	$(BIN)/python tests/hostile/run.py
	$(BIN)/pytest -q -m slow tests/unit/test_verify.py

mutants: .venv/.ready ## plant bugs, one at a time, and name those that no test notices; a quarter of an hour
	$(BIN)/python tests/mutants.py

bench: .venv/.ready ## Sonde against bare PyTorch loops, JAX, torch.compile and BioTorch, and what snapshots cost; with SONDE_DATA, CIFAR-10 too
	@$(BIN)/python -c 'import biotorch' 2>/dev/null || $(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt biotorch \
		|| echo 'BioTorch cannot be installed: the benchmark goes on without it'
	@$(BIN)/python -c 'import jax' 2>/dev/null || $(BIN)/python -m pip install --quiet --constraint constraints.txt jax \
		|| echo 'JAX cannot be installed: the benchmark goes on without it'
	$(BIN)/sonde bench --save benchmarks
	$(BIN)/python benchmarks/probes.py

bench-watch: .venv/.ready ## what watching costs, beside torchmortem, torch-audit and wandb where they can be installed
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt torchmortem torch-audit wandb \
		|| echo 'other tools cannot be installed: the benchmark goes on without them'
	$(BIN)/python benchmarks/watch.py

arena: .venv/.ready ## diagnoses of programs with planted faults; with SONDE_REPOSITORIES also of public ones
	$(BIN)/python benchmarks/arena/score.py

suite: .venv/.ready ## diagnoses of the programs in SONDE_SUITE, beside torchmortem and torch-audit; then the remedies
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt torchmortem torch-audit \
		|| echo 'other tools cannot be installed: the suite goes on without them'
	$(BIN)/python benchmarks/suite.py $(SONDE_SUITE)
	$(BIN)/python benchmarks/suite.py $(SONDE_SUITE) --remedies

house: .venv/.ready ## how large the code is, counted, beside the goal
	$(BIN)/python benchmarks/house.py

bench-cluster: .venv/.cluster ## how the cost of a sweep grows: docs/scale.md
	$(BIN)/python benchmarks/scale.py

format: .venv/.ready ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:            ## remove the environment, the site and what the demo made
	rm -rf .venv demo site .mypy_cache .ruff_cache .pytest_cache
