# Every target sets up what it needs in .venv, once, and again when pyproject.toml changes.
# Written for GNU make 3.81, which is what macOS has.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# For your own arguments: make lab LAB_ARGS=--no-browser, make test PYTEST_ARGS="-k reduction", make bench ROOMS=matmul,
# make attest ONLY="tests/kernels/scan notebooks/34_scan", make attest ONLY=--stale, make stale STALE_ARGS=--check
# make room NAME=histogram NUMBER=38, make release RELEASE_ARGS="04_vector_add 08_warps --out ../class",
# make grade NOTEBOOKS=../handed_in GRADE_ARGS="--jobs 2 --csv points.csv", make quiz QUIZ_ARGS="--variants 20 --seed 7",
# make nbgrader EXPORT_ARGS="04_vector_add --seed 7 --out ../course", make slides SLIDES_ARGS="12_matmul --sharp",
# make site SITE_ARGS="--repository https://github.com/OWNER/NAME", make browser BROWSER_ARGS="04_vector_add 08_warps",
# make test-browser PYTEST_ARGS="interpreter -k reduction"
LAB_ARGS ?=
PYTEST_ARGS ?=
ROOMS ?=
ONLY ?=
STALE_ARGS ?=
MUTANTS_ARGS ?=
RELEASE_ARGS ?=
EXPORT_ARGS ?=
NOTEBOOKS ?=
GRADE_ARGS ?=
QUIZ_ARGS ?=
SLIDES_ARGS ?=
SITE_ARGS ?=
BROWSER_ARGS ?=
NAME :=
NUMBER :=

# JupyterLab refuses to run as root unless told to; in a container there is often nobody else.
ROOT_ARGS := $(shell [ "$$(id -u)" = 0 ] && echo --allow-root)

.DEFAULT_GOAL := help
.PHONY: help lab test test-gpu attest stale mutants lint notebooks bench targets readme room instruments clean \
	release solutions nbgrader otter classroom test-course grade quiz slides teaching site test-site browser test-browser
.DELETE_ON_ERROR:

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The chapter is the default URL, and not a file to open: that is the address that JupyterLab prints with --no-browser.
lab: $(VENV)/.lab ## open JupyterLab on the first chapter
	$(BIN)/jupyter lab --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb \
		$(ROOT_ARGS) $(LAB_ARGS)

# A process begins with tests that follow one another, so what they share is computed in one process alone. Tests start
# hundreds of processes: Python keeps what it compiles, also where it is told not to, as images for containers do. Every
# core has a process already, so NumPy multiplies matrices with one thread in each: further ones would only wait.
test: $(VENV)/.test ## run the tests; needs no GPU
	PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 PMPP_BACKEND=simt PMPP_CHECK=1 $(BIN)/python -m pytest -p tests.support.swift -p no:logging -n logical --dist worksteal $(PYTEST_ARGS)

test-gpu: $(VENV)/.test ## run the same tests on the GPU
	PMPP_BACKEND=numba $(BIN)/python -m pytest $(PYTEST_ARGS)

attest: $(VENV)/.test ## run the tests and execute the chapters on this GPU, and record what passed
	$(BIN)/python -m pmpp.lab.measure.attest $(ONLY)

stale: $(VENV)/.lab ## print what has changed since it passed or was measured on a GPU; needs none
	@$(BIN)/python -m pmpp.lab.measure.stale $(STALE_ARGS)

mutants: $(VENV)/.test ## change kernels at random and see whether a test notices; ROOMS=... MUTANTS_ARGS="--seed 1"
	PMPP_BACKEND=simt PMPP_CHECK=1 $(BIN)/python -m tests.support.mutants $(ROOMS) $(MUTANTS_ARGS)

lint: $(VENV)/.dev ## check style, and that every file is formatted
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

notebooks: $(VENV)/.lab ## execute every chapter and write it with its outputs
	$(BIN)/python -m pmpp.lab.publish.notebooks

bench: $(VENV)/.lab ## measure the rooms on this GPU and record it
	$(BIN)/python -m pmpp.lab.measure.bench $(ROOMS)
	$(BIN)/python -m pmpp.lab.measure.calls $(ROOMS)

targets: $(VENV)/.lab ## print what was to be reached on a GPU beside what is recorded; needs none
	@$(BIN)/python -m pmpp.lab.measure.targets
	@$(BIN)/python -m pmpp.lab.measure.shapes --report
	@$(BIN)/python -m pmpp.nn.measure.targets
	@$(BIN)/python -m pmpp.parallel.targets --recorded

readme: $(VENV)/.lab ## write the picture and the table of README.md anew
	$(BIN)/python -m pmpp.lab.publish.readme

room: | $(BIN)/python ## write the skeleton of a new room, as in make room NAME=histogram
	@$(BIN)/python -m pmpp.lab.publish.skeleton $(NAME) $(if $(NUMBER),--number $(NUMBER))

instruments: $(VENV)/.test ## print how far the interpreter can be trusted: bugs caught, agreement with ncu, speed, a peer's tests
	PMPP_BACKEND=simt $(BIN)/python -m tests.corpus
	PMPP_BACKEND=simt $(BIN)/python -m tests.parallel
	PMPP_BACKEND=simt $(BIN)/python -m pmpp.lab.measure.agreement
	PMPP_BACKEND=simt $(BIN)/python -m tests.support.versus
	PMPP_BACKEND=simt $(BIN)/python -m tests.support.parting
	PMPP_BACKEND=simt $(BIN)/python -m tests.peer

# --- a course, and its pages ----------------------------------------------------------------------------------------

release: $(VENV)/.lab ## write the chapters for a class, without answers, to build/release/
	$(BIN)/python -m pmpp.lab.publish.release $(RELEASE_ARGS)

solutions: $(VENV)/.lab ## write them for the teacher, with answers and outputs, to build/solutions/
	$(BIN)/python -m pmpp.lab.publish.release --solutions $(RELEASE_ARGS)

nbgrader: $(VENV)/.lab ## write them as assignments for nbgrader, to build/nbgrader/
	$(BIN)/python -m pmpp.lab.publish.export nbgrader $(EXPORT_ARGS)

otter: $(VENV)/.lab ## write them as assignments for otter-grader, to build/otter/
	$(BIN)/python -m pmpp.lab.publish.export otter $(EXPORT_ARGS)

classroom: $(VENV)/.lab ## write them as template repositories for GitHub Classroom, to build/classroom/
	$(BIN)/python -m pmpp.lab.publish.export classroom $(EXPORT_ARGS)

test-course: $(VENV)/.graders ## test the assignments with the graders that they are for: nbgrader, otter-grader, our own
	PMPP_BACKEND=simt PMPP_GRADERS=1 $(BIN)/python -m pytest tests/lab/test_exports.py $(PYTEST_ARGS)

grade: $(VENV)/.lab ## grade what students handed in, as in make grade NOTEBOOKS=folder
	@test -n "$(NOTEBOOKS)" || { echo "Say what to grade: make grade NOTEBOOKS=folder" >&2; exit 1; }
	@$(BIN)/python -m pmpp.lab.teach.grade "$(NOTEBOOKS)" $(GRADE_ARGS)

quiz: $(VENV)/.lab ## write a quiz bank for Moodle, with answers that are computed, to build/quiz/
	PMPP_BACKEND=simt $(BIN)/python -m pmpp.lab.publish.quiz $(QUIZ_ARGS)

slides: $(VENV)/.slides ## write slides of the chapters, which PowerPoint and LibreOffice open, to build/slides/
	$(BIN)/python -m pmpp.lab.publish.slides $(SLIDES_ARGS)

teaching: $(VENV)/.lab ## write the syllabi and the instructor's guide of docs/teaching/ anew
	$(BIN)/python -m pmpp.lab.publish.teaching

site: $(VENV)/.site ## write the chapters and the kernels as web pages, to build/site/
	$(BIN)/python -m pmpp.lab.publish.site $(SITE_ARGS)

test-site: $(VENV)/.site-test site ## follow the links of these pages, and look at them in Chromium
	PMPP_SITE=build/site $(BIN)/python -m pytest tests/site $(PYTEST_ARGS)

browser: $(VENV)/.browser ## write a site in which the chapters run in a browser, to build/browser/
	$(BIN)/python -m pmpp.lab.publish.browser $(BROWSER_ARGS)

test-browser: $(VENV)/.browser ## run the interpreter's tests and all exercises in Pyodide, and a chapter in Chromium
	$(BIN)/python -m tests.browser $(PYTEST_ARGS)

clean: ## remove .venv and what the tools leave behind
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- setting up ---------------------------------------------------------------------------------------------------

# $(1): an extra of pyproject.toml. With it goes the extra that fits the driver, or $(2) where there is none.
install = @gpu=$$($(BIN)/python -I pmpp/runtime/gpu.py) && more=$${gpu:-$(2)} && extras="$(1)$${more:+,$$more}" && \
	echo "Installing pmpp-workbook[$$extras] into $(VENV): a minute or two, this once." && \
	$(PIP) install --quiet --editable ".[$$extras]" && touch $@

# A set of packages has the name of its extra: .lab, .site, .slides, ...
$(VENV)/.%: pyproject.toml | $(BIN)/python
	$(call install,$*,)

# The tests compile every kernel to PTX: with a GPU's packages, or with the compiler alone.
$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(call install,test,ptx)

# The first Python on the path that pyproject.toml allows; PYTHON=... goes before the others.
$(BIN)/python:
	@found=; \
	for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
		version=$$($$python -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || continue; \
		$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || \
			{ found="$${found:+$$found, }$$python is $$version"; continue; }; \
		$$python -m venv $(VENV) && exit 0; \
		rm -rf $(VENV); \
		echo "$$python cannot make a virtual environment: install its venv package (Debian: python3-venv)." >&2; \
		exit 1; \
	done; \
	echo "pmpp needs Python 3.11 to 3.14. Found: $${found:-none}." >&2; \
	echo "Install one from python.org or with a package manager (Mac: brew install python@3.14), and run make again." >&2; \
	echo "One that is not on the path can be named: make lab PYTHON=/path/to/python3" >&2; \
	exit 1
