"""Data Docs: pages for people, of the rules in the contracts and of the results that the last runs stored.

Great Expectations' own site builder makes them, with templates of ours that need no network. No table but
`quality.results` is read, and no value of a row is in them that is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse.contracts.models import Contracts, Expectation
from lakehouse.errors import SettingsError
from lakehouse.quality.arguments import SQL_RULE
from lakehouse.quality.gx import as_great_expectation, quiet_context
from lakehouse.quality.results import GATES, PUBLICATION, ROWS, TABLES, Result, RuleOutcome, outcomes_of_last_runs

if TYPE_CHECKING:
    from great_expectations.core import ExpectationSuite, ExpectationSuiteValidationResult, ExpectationValidationResult
    from great_expectations.data_context.types.resource_identifiers import ValidationResultIdentifier

    from lakehouse.delta.tables import Warehouse

# The folder of a warehouse that they are written to.
DATA_DOCS = "_data_docs"
MAX_RUNS = 10
SITE = "quality of the tables"
GOLD_TABLE = "gold.unified_orders"


def default_folder(warehouse: Warehouse) -> Path | None:
    """DATA_DOCS in the warehouse; None where that is not a folder of this machine."""
    location = warehouse.location.removeprefix("file:")
    is_local = not warehouse.in_catalog and ":" not in location
    return Path(location) / DATA_DOCS if is_local else None


def write_data_docs(warehouse: Warehouse, contracts: Contracts, folder: Path) -> Path:
    """Write the Data Docs of the last MAX_RUNS runs; the path of their first page.

    Raises SettingsError when the folder cannot be written.
    """
    return build_site(contracts, outcomes_of_last_runs(warehouse, contracts, runs=MAX_RUNS), folder)


def build_site(contracts: Contracts, outcomes: Iterable[RuleOutcome], folder: Path) -> Path:
    """The site of these contracts and results; its first page. Pages of a site before it that are not in it go."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"{folder} cannot be written: {error.strerror}.", hint="Pass --data-docs FOLDER.") from None
    context = quiet_context()
    rules = rules_by_suite(contracts)
    for name, of_suite in rules.items():
        context.suites.add(_suite(name, of_suite))
    for key, result in _validations(outcomes, rules):
        context.validation_results_store.set(key, result)
    context.add_data_docs_site(site_name=SITE, site_config=_site(folder))
    context.build_data_docs(site_names=[SITE])
    return folder.absolute() / "index.html"


def rules_by_suite(contracts: Contracts) -> Mapping[str, Sequence[Expectation]]:
    """Every suite with its rules: a suite is a gate and a table."""
    row_gate, table_gate = contracts.silver_gate, contracts.gold_gate
    suites = {suite_name(ROWS, f"silver.{feed}"): row_gate.rules(feed) for feed in row_gate.feeds}
    suites |= {suite_name(TABLES, f"silver.{feed}"): table_gate.rules(feed) for feed in table_gate.feeds}
    suites[suite_name(PUBLICATION, GOLD_TABLE)] = table_gate.publication
    return {name: rules for name, rules in suites.items() if rules}


def suite_name(gate: str, table: str) -> str:
    """`gate 1 · silver.postgres_orders`."""
    return f"{GATES[gate]} · {table}"


def _suite(name: str, rules: Sequence[Expectation]) -> ExpectationSuite:
    import great_expectations as gx

    shown = [rule.model_copy(update={"description": _sentence(rule, rule.description)}) for rule in rules]
    return gx.ExpectationSuite(name=name, expectations=[as_great_expectation(rule) for rule in shown])


def _validations(
    outcomes: Iterable[RuleOutcome], rules: Mapping[str, Sequence[Expectation]]
) -> Iterator[tuple[ValidationResultIdentifier, ExpectationSuiteValidationResult]]:
    """The results of a run and table, as Great Expectations would have stored them."""
    from great_expectations.core import ExpectationSuiteValidationResult, RunIdentifier
    from great_expectations.data_context.types.resource_identifiers import (
        ExpectationSuiteIdentifier,
        ValidationResultIdentifier,
    )

    def sort_key(outcome: RuleOutcome) -> tuple[str, str, str, str]:
        return outcome.result.run, outcome.result.gate, outcome.result.table, outcome.result.source

    for (run, gate, table, source), of_table in groupby(sorted(outcomes, key=sort_key), key=sort_key):
        judged = list(of_table)
        name = suite_name(gate, table)
        known = {rule.name: rule for rule in rules.get(name, ())}
        results = [_as_great_expectations_has_it(one.result, known.get(one.result.rule)) for one in judged]
        met = sum(bool(result.success) for result in results)
        run_id = RunIdentifier(run_name=run, run_time=min(one.evaluated_at for one in judged))
        key = ValidationResultIdentifier(
            expectation_suite_identifier=ExpectationSuiteIdentifier(name), run_id=run_id, batch_identifier=source
        )
        yield (
            key,
            ExpectationSuiteValidationResult(
                success=met == len(results),
                results=results,
                suite_name=name,
                statistics={
                    "evaluated_expectations": len(results),
                    "successful_expectations": met,
                    "unsuccessful_expectations": len(results) - met,
                    "success_percent": 100 * met / len(results),
                },
                meta={
                    "run_id": run_id.to_json_dict(),
                    "batch_spec": {"data_asset_name": f"{table} of {source}"},
                },
            ),
        )


def _as_great_expectations_has_it(result: Result, rule: Expectation | None) -> ExpectationValidationResult:
    """A stored result as one of Great Expectations; of a rule that is in no contract any more by its name alone."""
    from great_expectations.core import ExpectationValidationResult
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    return ExpectationValidationResult(
        success=result.passed,
        expectation_config=ExpectationConfiguration(
            type=rule.type if rule else SQL_RULE,
            kwargs=dict(rule.kwargs) if rule else {"unexpected_rows_query": "{batch}"},
            description=_sentence(result, " ".join(_said(result))),
            meta={"rule": result.rule},
        ),
        result=_counts(result, rule),
        exception_info={"raised_exception": False, "exception_message": None, "exception_traceback": None},
    )


def _sentence(rule: Result | Expectation, text: str) -> str:
    """What a person reads of a rule: its name, what happens when it is not met, and what it says."""
    name = rule.rule if isinstance(rule, Result) else rule.name
    # Great Expectations takes this and observed values for HTML, and a key can be any text.
    return escape(f"{name} ({rule.on_failure}): {text}", quote=False)


def _said(result: Result) -> Iterator[str]:
    yield result.description
    if result.message:
        yield result.message
    if result.sample_keys:
        yield f"Failed by {'; '.join(result.sample_keys)}{' …' if result.failed > len(result.sample_keys) else ''}"


def _counts(result: Result, rule: Expectation | None) -> dict[str, Any]:
    if result.observed is not None:
        return {"observed_value": escape(result.observed, quote=False)}
    if not result.evaluated:
        return {"observed_value": "not evaluated"}
    if rule is None or rule.type == SQL_RULE:
        return {"observed_value": f"{result.failed:,} unexpected rows"}
    percent = 100 * (result.share or 0.0)
    return {
        "element_count": result.evaluated,
        "unexpected_count": result.failed,
        "unexpected_percent": percent,
        "unexpected_percent_total": percent,
    }


def _site(folder: Path) -> Any:
    views = "lakehouse.quality.data_docs_views"
    page = {"module_name": views, "class_name": "PageView"}
    return {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder.absolute())},
        "site_index_builder": {
            "class_name": "DefaultSiteIndexBuilder",
            "view": {"module_name": views, "class_name": "IndexView"},
        },
        "site_section_builders": {"expectations": {"view": page}, "validations": {"view": page}, "profiling": "none"},
    }
