# make demo       trains a small translator and shows what it learnt
# make test       runs all tests but a few long ones
# make test-long  runs those
# make fuzz       gives readers of files inputs that no test has tried before
# make check      runs the linters
# make setup      makes .venv alone

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready

.PHONY: demo test test-long fuzz check setup clean

demo: $(STAMP)
	$(BIN)/konvoi train demo

test: $(STAMP)
	$(BIN)/pytest

test-long: $(STAMP)
	$(BIN)/pytest -m long

fuzz: $(STAMP)
	KONVOI_FUZZ=40 $(BIN)/pytest tests/faults/test_readers.py

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Konvoi needs Python 3.11 or later: make PYTHON=python3.12"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
