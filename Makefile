# Everything a developer does here. `make` alone lists it; every target sets up first what it needs.

.DEFAULT_GOAL := help
.PHONY: help setup setup-live demo demo-live live clusters playground test quick-tests test-unit coverage test-slow test-whole test-rules mutants benchmark-decode benchmark-rules benchmark-publish benchmark-growth benchmark-tables benchmark-bronze benchmark-steady benchmark-soak benchmark-load chaos benchmark-files benchmark-pass benchmark-backlog bench bench-large bench-setup fuzz generated docs sbom advisories dbx-setup dbx-check bundle-check lint format clean

BIN := .venv/bin
# Each of the two processes has a Spark and a broker of its own; a file's tests stay together. Files go in the order of the
# root conftest.py: those that start Spark or a broker first.
IN_TWO := -n 2 --dist loadfile --no-loadscope-reorder
# A table of them at the end.
SLOWEST := --durations=20 --durations-min=1
# Of `make chaos`.
SEED := 1
ROUNDS := 5
ONLY :=
SET_UP := .venv/.set-up
DBX := tools/dbx
DATABRICKS := tools/databricks
FLINK := benchmarks/flink
LIVE_MANIFESTS := demo/stack/connect.yaml demo/stack/converter.yaml demo/stack/servers.yaml
MANIFESTS := src/lakehouse/spark/jars.yaml demo/jars.yaml tests/jars.yaml
DELETED := .venv site tools/dbx/.venv tools/databricks/.venv tools/docs_site/.venv benchmarks/flink/.venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage dist build spark-warehouse metastore_db derby.log

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-18s %s\n", $$1, $$2}' Makefile

setup: $(SET_UP) ## Packages, Java and jars, all pinned (first time: about a minute, then nothing)
	@$(BIN)/python -m lakehouse.spark.jars $(MANIFESTS)

$(SET_UP): uv.lock pyproject.toml tools/setup.sh tools/uv.txt
	@tools/setup.sh
	@touch $@

demo: setup ## Both databases' recorded changes through the whole pipeline, on a broker of its own
	@exec $(BIN)/python -I -S demo/leash.py $$PPID $(BIN)/python -m demo

setup-live: setup ## PostgreSQL, MySQL, MariaDB, Kafka Connect, Debezium, a schema registry, Prometheus, Chromium (first time: minutes)
	@tools/setup_live.sh
	@$(BIN)/python -m lakehouse.spark.jars $(LIVE_MANIFESTS)

demo-live: setup-live ## Orders written to real databases arrive in gold and in the topic: the seconds of each stage
	@exec $(BIN)/python -I -S demo/leash.py $$PPID $(BIN)/python -m demo.live

playground: setup ## A broker with recorded topics to try things on, until Ctrl-C
	@exec $(BIN)/python -I -S demo/leash.py $$PPID $(BIN)/python -m demo.playground

test: setup ## All tests but the slow ones, and beside them lint and the bundle's fields
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=line quick-tests lint bundle-check

quick-tests: setup
	$(BIN)/pytest $(IN_TWO) $(SLOWEST) -m "not slow and not whole and not live and not cluster"

test-unit: setup ## The tests without Spark and Kafka: a minute
	$(BIN)/pytest $(IN_TWO) tests/unit

# Of the histories a part: more reach no other branch, and `make test` tells them all.
coverage: setup ## Every branch of decode, tables by rule, order, fold and contracts by unit tests alone: less than all of them fails
	HISTORIES=100 $(BIN)/coverage run -m pytest -n0 tests/unit/silver tests/unit/lakehouse tests/unit/cli/proposal \
		--ignore tests/unit/silver/order/test_recordings.py --ignore tests/unit/silver/fold/test_recordings.py
	$(BIN)/coverage report

test-slow: setup ## The tests that take minutes; a pull request runs them beside .ci/run
	$(BIN)/pytest $(IN_TWO) $(SLOWEST) -m slow

clusters: setup ## The tests that start Spark processes of their own: a cluster, Spark Connect, a process a task (half an hour)
	$(BIN)/pytest -m cluster

live: setup-live ## The tests on real databases and connectors, started and stopped by the suite (a quarter of an hour)
	$(BIN)/pytest -m live

test-whole: setup-live ## The tests on the whole recordings, in fifty batches too, on a database of a hundred tables, and under DDL
	$(BIN)/pytest -m whole

test-rules: setup ## Every rule of the order of changes reverted, one by one: its test must fail (half an hour)
	$(BIN)/python -u -m tools.reverted_rules

mutants: setup ## Small mistakes put into the rules one by one: a unit test must notice each; ONLY=silver.order.runs for a part
	nice -n 10 $(BIN)/python -u -m tools.mutants $(ONLY)

benchmark-decode: setup ## What reading a record costs, by its shape (a minute)
	$(BIN)/python -m benchmarks.decode --write-docs

benchmark-rules: setup ## What twenty row rules cost silver's pass (five minutes)
	$(BIN)/python -m benchmarks.row_rules

benchmark-publish: setup ## A million orders published in one run: seconds and memory (three minutes)
	$(BIN)/python -m benchmarks.publish

benchmark-growth: setup ## Batches of 10,000 changes in tables of a million rows and of ten million
	$(BIN)/python -m benchmarks.growth --write-docs

benchmark-tables: setup ## A job of twenty tables of which two change, beside one of these two alone; many sources (fifteen minutes)
	$(BIN)/python -m benchmarks.tables --write-docs
	$(BIN)/python -m benchmarks.many_sources --write-docs

benchmark-bronze: setup ## Bronze beside a bare consumer that stores the same bytes (four minutes)
	$(BIN)/python -m benchmarks.bare_consumer --write-docs

benchmark-steady: setup ## Freshness, memory and files with 1,000 changes a second for five minutes
	$(BIN)/python -m benchmarks.steady --write-docs

benchmark-soak: setup ## The same for half an hour
	$(BIN)/python -m benchmarks.steady --minutes 30 --place soak --write-docs

benchmark-load: setup ## 5,000 changes a second for ten minutes, a burst of a million, then quiet (twenty minutes)
	$(BIN)/python -m benchmarks.steady --rate 5000 --minutes 10 --burst 1000000 --place load --write-docs

chaos: setup-live ## ROUNDS faults at random on the real stack, by SEED, and whether everything is right afterwards (a minute each; as root)
	@tools/setup_live.sh libfaketime
	$(BIN)/python -m chaos --seed $(SEED) --rounds $(ROUNDS) --only "$(ONLY)"

benchmark-files: setup ## How many files tables have after a thousand batches (half an hour)
	$(BIN)/python -m benchmarks.small_files --write-docs

benchmark-pass: setup ## A warm pass of 1,000 changes of each source, beside its commits alone: seconds and jobs (five minutes)
	$(BIN)/python -m benchmarks.warm_pass --write-docs

benchmark-backlog: bench-setup ## A million changes, and 40,000, through this project, plain Spark and Flink SQL; where its seconds go (ten minutes)
	$(BIN)/python -m benchmarks.backlog --profile --write-docs
	$(BIN)/python -m benchmarks.backlog --events 20000 --keys 5000 --place "small backlog" --write-docs

bench: benchmark-backlog benchmark-bronze benchmark-pass benchmark-steady ## All that docs/benchmarks.md promises, one after the other (25 minutes)

bench-large: setup ## Ten million changes through this project alone, with the default heap: seconds, memory (half an hour)
	$(BIN)/python -m benchmarks.backlog --events 5000000 --keys 500000 --only "this project" \
		--place "large backlog" --write-docs

bench-setup: setup $(FLINK)/.venv/.set-up ## Flink for the benchmarks, in an environment of its own
	@$(BIN)/python -m lakehouse.spark.jars $(FLINK)/jars.yaml

fuzz: setup ## Random histories folded in plain Python, until Ctrl-C; one that does not end as its source is named
	@$(BIN)/python -m tests.fuzz

generated: setup ## Write the files that are made from the code: JSON Schemas, expectations, the command reference
	$(BIN)/python -m tools.generated

docs: $(SET_UP) ## The documentation site, in site/: a broken link or a page that the navigation lacks is an error
	@tools/docs_site/build.sh

sbom: $(SET_UP) ## The bill of materials, in dist/sbom.json (CycloneDX): every package and jar with its hash
	@tools/sbom.sh

advisories: sbom ## Known vulnerabilities of every package and jar, as OSV has them (needs api.osv.dev)
	@$(BIN)/python -m tools.advisories

dbx-setup: $(DBX)/.venv/.set-up ## dbx, in an environment of its own: tools/dbx/.venv

dbx-check: dbx-setup ## What dbx would deploy to each environment, read by dbx itself, without a workspace
	@$(DBX)/.venv/bin/python -W ignore:pkg_resources -m tools.dbx.check

bundle-check: $(DATABRICKS)/.venv/.set-up ## Every resource of the bundle, read by Databricks' own models, without a workspace
	@$(DATABRICKS)/.venv/bin/python -m tools.databricks.check

%/.venv/.set-up: %/uv.lock %/pyproject.toml tools/environment.sh $(SET_UP)
	@tools/environment.sh $*
	@touch $@

lint: setup ## Style, formatting, types and the layers' imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Mend style and formatting
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## Delete the environment, tool caches and build results here; not warehouse/, not the download cache
	rm -rf $(DELETED)
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
