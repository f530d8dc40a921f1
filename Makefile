# Everything a newcomer needs: `make demo` and `make test`. Both build .venv first, from requirements.lock.

VENV := .venv
BIN := $(VENV)/bin
# Two workers on two cores: one thread of linear algebra each. PyTensor need not note which line made each variable.
TESTS := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 PYTENSOR_FLAGS=traceback__limit=0 $(BIN)/python -m pytest -n 2 --dist worksteal
READY := $(VENV)/.ready

.PHONY: setup demo test test-slow papers test-long notebooks docs linkcheck clone-test lint benchmarks campaigns faults audit matrix mutants dist lock clean

setup: $(READY)

$(READY): requirements.lock pyproject.toml papers/pyproject.toml
	@sh tools/make_venv.sh $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable ./papers
	@touch $@

# Two releases, and the first one compared with its table: about 80 seconds of computing on a fresh machine.
demo: setup
	@mkdir -p demo
	@test -f demo/youth.sqlite || $(BIN)/pdips ledger set-total demo/youth.sqlite 10
	$(BIN)/pdips synthesize examples/youth.parquet --schema examples/youth.toml --mechanism margins \
	    --epsilon $(or $(EPSILON),1) --sets 5 \
	    --ledger demo/youth.sqlite --out demo/youth --overwrite --report
	@test -f demo/earnings.sqlite || $(BIN)/pdips ledger set-total demo/earnings.sqlite 10
	$(BIN)/pdips synthesize examples/earnings.parquet --schema examples/earnings.toml \
	    --mechanism modips --model linear_regression \
	    --epsilon $(or $(EPSILON),1) --sets 20 \
	    --ledger demo/earnings.sqlite --out demo/earnings --overwrite --report
	$(BIN)/pdips evaluate examples/youth.parquet demo/youth --analysis "enrolled ~ sex + household_role"

# The tests of papers run when papers/, or what it calls, has changed since they passed (`make papers`).
test: setup
	$(TESTS) -m "not clone and not long and not slow" $$($(BIN)/python tools/papers_digest.py)

# Long statistics and whole programs; the build server runs them too.
test-slow: setup
	$(TESTS) -m "slow and not long and not clone" $$($(BIN)/python tools/papers_digest.py)

papers: setup
	$(TESTS) -m "not clone and not long" tests/papers
	$(BIN)/python tools/papers_digest.py --write

test-long: setup
	$(BIN)/python -m pytest -m long

# Runs every notebook; fails on an error, a warning or a path of this machine in what it shows. Writes nothing.
notebooks: setup
	$(BIN)/python tools/run_notebooks.py

# The site, in docs/_build/html; then what the tests leave out as slow: its pages in a browser, the slow blocks of code.
docs: setup
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	PDIPS_SITE=$(CURDIR)/docs/_build/html $(TESTS) -m long tests/site/test_docs.py tests/site/test_site.py

# Follows the links out of the site: needs a network, so the build server doesn't.
linkcheck: setup
	$(BIN)/python -m sphinx -q -b linkcheck docs docs/_build/linkcheck

clone-test: setup
	$(BIN)/python -m pytest -m clone

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmarks: setup
	$(BIN)/python -m benchmarks

# Random requests and command lines, in full: hours. Stops at the first campaign with a fault.
campaigns: setup
	$(BIN)/python -m benchmarks.campaign requests --requests 2700
	$(BIN)/python -m benchmarks.campaign models --requests 300
	$(BIN)/python -m benchmarks.campaign commands --requests 10000

# 500 faults and 200 kills of whole releases, whose table is written to docs/results/faults.md; then the campaigns. Hours.
faults: setup
	$(BIN)/python -m benchmarks.faults --full --page docs/results/faults.md
	$(MAKE) campaigns

# The long audits; rewrites the table of docs/results/audit.md.
audit: setup
	$(BIN)/python -m benchmarks.audit

# Every distribution of PyMC as an outcome with covariates; rewrites the table of the versions in use in docs/results/matrix.md.
matrix: setup
	$(BIN)/python -m benchmarks.matrix --page

# Breaks the library in known ways and shows the test that notices each; rewrites the table of docs/results/mutants.md.
mutants: setup
	$(BIN)/python tools/mutants --page

# Wheel and source archive in dist/, the same bytes at every build of a commit.
dist: setup
	$(BIN)/python tools/build_twice.py dist

# Pins what a fresh environment resolves to today.
lock: setup
	$(BIN)/python -m pip list --format freeze --exclude pdips --exclude pip --exclude setuptools > requirements.lock

clean:
	rm -rf $(VENV) demo docs/_build docs/_notebooks
