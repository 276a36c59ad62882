# make book   read it            make test    check everything, as CI does
# make help   all the others
#
# Everything lands in .venv and _build. The first run installs; later runs only do what has changed.
# Written for GNU make 3.81, which is what macOS ships.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# The first interpreter on the PATH that will do. Choose another with `make book PYTHON=python3.12`.
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
PYTHON ?= $(shell for p in python3 python python3.13 python3.12 python3.11 python3.14; do \
	"$$p" -c '$(SUPPORTED)' >/dev/null 2>&1 && { echo "$$p"; exit; }; done; echo python3)

# On Linux, TORCH_INDEX=https://download.pytorch.org/whl/cpu takes the CPU-only PyTorch (200 MB instead of several GB).
TORCH_INDEX ?=

ifeq ($(OS),Windows_NT)
BIN := .venv/Scripts
else
BIN := .venv/bin
endif
PY := $(BIN)/python
STAMP := .venv/.installed
PIP := $(PY) -m pip --disable-pip-version-check --no-input
QUIET := $(if $(CI),-q,)
PYTEST := $(PY) -m pytest -q -p no:cacheprovider
# `make check` and `make test` use two processes; more cores, more processes: `make test JOBS=8`.
JOBS ?= 2

# Where Chromium is, under the names it has on the systems we know.
CHROMIUM_NAMES := chromium chromium-browser google-chrome google-chrome-stable chrome

.PHONY: help book lab test check bench peers doctor models format clean distclean install chromium \
	lint types unit interpreted bounds generic notebooks nbval site browser

help:
	@echo "make book     build the book and say where to open it"
	@echo "make test     every check, as CI runs them (20 to 40 minutes)"
	@echo "make check    the fast ones (under 3 minutes)"
	@echo "make lab      the notebooks, live, in JupyterLab"
	@echo "make bench    measure your machine; NAME=... for one experiment"
	@echo "make peers    install other projects' engines beside it, to measure against (10 minutes)"
	@echo "make doctor   what this machine has, and what that means for the numbers"
	@echo "make models   fetch SmolLM2 (93 MB) for the chapters that can use it"
	@echo "make format   let ruff format code and notebooks; write the tables of README.md again"
	@echo "make clean    remove what was built; make distclean removes both environments too"
	@echo
	@echo "PYTHON=python3.12 picks an interpreter.   JOBS=8 runs tests on eight cores."
	@echo "TORCH_INDEX=https://download.pytorch.org/whl/cpu installs the small PyTorch on Linux."

# ---- Set up ----------------------------------------------------------------------------------------------------------

install: $(STAMP)

$(STAMP): requirements.txt pyproject.toml
	@"$(PYTHON)" -c '' 2>/dev/null || { \
	  echo "Stop: no Python was found as '$(PYTHON)'. Install Python 3.11 to 3.14, or name yours: make PYTHON=python3.12"; exit 1; }
	@"$(PYTHON)" -c '$(SUPPORTED)' || { \
	  echo "Stop: '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1), and the book needs Python 3.11 to 3.14. Name another: make PYTHON=python3.12"; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "Stop: this Python has no venv module. On Debian or Ubuntu: sudo apt-get install python3-venv; then run make again."; exit 1; }
	@"$(PYTHON)" -c 'import shutil, sys; sys.exit(shutil.disk_usage(".").free < 3e9)' || { \
	  echo "Stop: less than 3 GB are free on this disk; the packages need about 2 GB (8 GB on Linux without TORCH_INDEX)."; exit 1; }
	@if [ -e .venv ] && ! $(PY) -c '' 2>/dev/null; then echo "The .venv here no longer runs (moved, or its Python is gone); making it anew."; rm -rf .venv; fi
	@[ -e $(PY) ] || { echo "Making .venv with $$("$(PYTHON)" -V 2>&1)"; "$(PYTHON)" -m venv .venv; } || { \
	  echo "Stop: '$(PYTHON) -m venv .venv' failed; its own words are above. Is this folder writable?"; exit 1; }
	@$(PIP) install -q --retries 1 $$(sed -n 's/^\(setuptools==[^ ]*\).*/\1/p; s/^\(wheel==[^ ]*\).*/\1/p' requirements.txt) || { \
	  echo "Stop: pip could not reach its package index; its own words are above. Check the network or proxy (HTTPS_PROXY), or name a mirror (PIP_INDEX_URL), then run make again."; exit 1; }
	@echo "Installing the pinned packages into .venv (about 2 GB; some minutes the first time)"
	@$(PIP) install $(QUIET) $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)",) -r requirements.txt || { \
	  echo "Stop: pip could not install every pinned package; its own words are above. Network gone or disk full: mend it and run make again, what was fetched is kept."; exit 1; }
	@$(PIP) install -q --no-deps --no-build-isolation -e . || { \
	  echo "Stop: the packages are in, but installing cachequant_lib itself failed; pip's own words are above."; exit 1; }
	@touch $(STAMP)

# Browser tests look for Chromium on the PATH, then for Playwright's own.
chromium: $(STAMP)
	@for name in $(CHROMIUM_NAMES); do command -v $$name >/dev/null 2>&1 && exit 0; done; \
	  $(PY) -c 'import os, playwright.sync_api as s; p = s.sync_playwright().start(); found = os.path.exists(p.chromium.executable_path); p.stop(); raise SystemExit(not found)' 2>/dev/null && exit 0; \
	  echo "No Chromium on the PATH; asking Playwright for one (about 170 MB)"; \
	  $(PY) -m playwright install chromium || { \
	  echo "Stop: the browser tests need Chromium. Install it (Debian: apt-get install chromium; macOS: brew install --cask chromium) and run make again; 'make check' does without."; exit 1; }

# ---- Read ------------------------------------------------------------------------------------------------------------

# Build from nothing, with every warning an error: a second, partial build would not repeat the warnings of the first.
# The stamp is inside the result, so removing the result rebuilds it.
PAGES := _config.yml _toc.yml $(shell find book notebooks benchmarks/results cachequant_lib -type f 2>/dev/null \
	| grep -v -e __pycache__ -e '\.nb[ic]$$' -e '\.pyc$$' -e ' ')
SITE := _build/html/.built

book: $(SITE)
	@echo
	@echo "The book is built. Open _build/html/index.html in a browser:"
	@$(PY) -c 'import pathlib; print("  " + pathlib.Path("_build/html/index.html").resolve().as_uri())'

$(SITE): $(STAMP) $(PAGES)
	@rm -rf _build/html _build/.doctrees
	@$(BIN)/jupyter-book build . -n -W --keep-going $(if $(CI),-q,) || { \
	  echo "Stop: the book did not build cleanly; every warning above is counted as an error."; exit 1; }
	@[ -e _build/html/index.html ] || { echo "Stop: the builder said it was done, but there is no _build/html/index.html."; exit 1; }
	@touch $(SITE)

lab: $(STAMP)
	$(PY) -m jupyterlab notebooks

# Assigned here and not with ?=, because some systems have a NAME of their own in the environment.
NAME := baseline
bench: $(STAMP)
	$(PY) -m benchmarks $(NAME)
	@$(PY) -m benchmarks.readme

peers: $(STAMP)
	@$(PY) -m benchmarks.peers

doctor: $(STAMP)
	@$(PY) -c 'import cachequant_lib as cq; cq.doctor()'

models: $(STAMP)
	$(PY) -c 'import cachequant_lib as cq; print(cq.fetch("smollm2-135m"))'

# ---- Check -----------------------------------------------------------------------------------------------------------

# Each stage is a target of its own: `make nbval` runs one. Browser tests come last, so that the last line is pytest's.
STAGES := lint types unit interpreted bounds generic notebooks nbval site browser
FAST := lint types fast

test: $(STAMP) chromium
	@$(call run_stages,$(STAGES))

check: $(STAMP)
	@$(call run_stages,$(FAST))

# Runs every stage even after a failure, prints the seconds of each, and fails if one did. A green run ends with the
# closing line of the last stage's pytest.
define run_stages
failed=; times=; last=$(lastword $(1)); \
for stage in $(1); do \
  [ "$$stage" != "$$last" ] || [ -z "$$times" ] || printf '\n== seconds:%s\n' "$$times"; \
  printf '\n== %s\n' "$$stage"; began=$$(date +%s); \
  $(MAKE) "$$stage" || failed="$$failed $$stage"; \
  times="$$times $$stage $$(($$(date +%s) - began))"; \
done; \
[ -z "$$failed" ] || { printf '\nFailed:%s (seconds:%s)\n' "$$failed" "$$times"; exit 1; }
endef

lint: $(STAMP)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

format: $(STAMP)
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .
	@$(PY) -m benchmarks.readme

types: $(STAMP)
	@$(PY) -m mypy

# Compiled, as readers run it.
unit: $(STAMP)
	@$(PYTEST) -n $(JOBS) -m "not browser" tests

fast: $(STAMP)
	@$(PYTEST) -n $(JOBS) -m "not browser and not slow" tests

# The same kernels as plain Python, where a debugger or a coverage tool can see inside them.
interpreted: $(STAMP)
	@NUMBA_DISABLE_JIT=1 $(PYTEST) -n $(JOBS) -m "not browser and not compiled and not slow" tests/formats tests/kernels

# The same with every index checked. Its own cache: a kernel compiled without the checks must not be reused here.
bounds: $(STAMP)
	@NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR="$$PWD/_build/numba-bounds" $(PYTEST) -n $(JOBS) -m "not browser and not slow" tests/kernels

# The same on the plainest processor of this family: integer results may not depend on the instruction set.
generic: $(STAMP)
	@NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= NUMBA_CACHE_DIR="$$PWD/_build/numba-generic" $(PYTEST) -n $(JOBS) -m "not browser and not slow" tests/kernels

# Run again, every committed notebook gives the same bytes.
notebooks: $(STAMP)
	@$(PY) -m benchmarks.notebooks --check

# And every output that a reader sees equals the one in the file.
nbval: $(STAMP)
	@$(PY) -m benchmarks.notebooks --nbval

site: $(STAMP)
	@rm -rf _build/html
	@$(MAKE) $(SITE)

browser: $(STAMP) chromium
	@$(PY) -m pytest -p no:cacheprovider -m browser tests

clean:
	@rm -rf _build .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist cachequant_lib.egg-info
	@find . -path './.venv*' -prune -o -name __pycache__ -type d -print | while read -r d; do rm -rf "$$d"; done

distclean: clean
	@rm -rf .venv .venv-peers
