"""Table rules: a Great Expectations checkpoint over a table on disk."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse.contracts import Expectation
from lakehouse.errors import ContractError, InstallationError

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation as GreatExpectation
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Verdict:
    """How one expectation came out: of `evaluated` rows or values, `failed` did not meet it."""

    rule: Expectation
    passed: bool
    evaluated: int
    failed: int


def validate_tables(
    tables: Mapping[str, DataFrame], rules: Mapping[str, Sequence[Expectation]]
) -> dict[str, list[Verdict]]:
    """For every table one verdict a rule, in their order; one Great Expectations checkpoint a table.

    Raises ContractError when Great Expectations does not know an expectation or refuses its arguments, and
    InstallationError when a package it needs is missing.
    """
    _require_packages()
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    source = context.data_sources.add_spark(name="lakehouse", persist=False)
    verdicts = {}
    for name, table in tables.items():
        suite = gx.ExpectationSuite(name=name, expectations=[_expectation(rule) for rule in rules[name]])
        batch = source.add_dataframe_asset(name=name).add_batch_definition_whole_dataframe("whole")
        validation = gx.ValidationDefinition(name=name, data=batch, suite=context.suites.add(suite))
        context.validation_definitions.add(validation)
        checkpoint = context.checkpoints.add(gx.Checkpoint(name=name, validation_definitions=[validation]))
        (result,) = checkpoint.run(batch_parameters={"dataframe": table}).run_results.values()
        outcomes = {
            outcome.expectation_config.meta["rule"]: outcome
            for outcome in result.results
            if outcome.expectation_config is not None and outcome.expectation_config.meta is not None
        }
        verdicts[name] = [_verdict(rule, outcomes[rule.name]) for rule in rules[name]]
    return verdicts


def _expectation(rule: Expectation) -> GreatExpectation:
    import great_expectations.expectations as gxe

    known = getattr(gxe, "".join(part.capitalize() for part in rule.type.split("_")), None)
    if known is None:
        raise _refused(rule, f"Great Expectations has no {rule.type}.")
    try:
        expectation: GreatExpectation = known(**rule.kwargs, description=rule.description, meta={"rule": rule.name})
    except (TypeError, ValueError) as error:
        raise _refused(rule, f"Great Expectations refuses the arguments: {str(error).splitlines()[0]}.") from None
    return expectation


def _verdict(rule: Expectation, outcome: object) -> Verdict:
    values = getattr(outcome, "result", {})
    passed = bool(getattr(outcome, "success", False))
    # Expectations on aggregates (a maximum, a row count) have one observed value, not counts of rows; of an empty table
    # nothing is counted.
    unexpected = values.get("unexpected_count")
    return Verdict(
        rule=rule,
        passed=passed,
        evaluated=int(values.get("element_count", 1)),
        failed=int(not passed) if unexpected is None else int(unexpected),
    )


def _require_packages() -> None:
    """Without these, `import great_expectations` ends the process with status 0 and no word in a Spark environment."""
    for package in ("pandas", "pyarrow", "grpc"):
        if importlib.util.find_spec(package) is None:
            raise InstallationError(
                f"Great Expectations on Spark needs the Python package {package}.",
                remedy='Install it: pip install "orders-lakehouse[local]".',
            )


def _refused(rule: Expectation, what: str) -> ContractError:
    return ContractError(
        what,
        file="gold/gate.yaml",
        line=1,
        key=f"expectations.{rule.name}",
        remedy="Take a name and arguments from the gallery of Great Expectations.",
    )
