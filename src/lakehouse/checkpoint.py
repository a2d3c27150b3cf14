"""Table rules: a Great Expectations checkpoint over a table on disk."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse.contracts import Expectation
from lakehouse.errors import ContractError, ContractProblem, InstallationError

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

    Raises ContractError when Great Expectations refuses the values of arguments, and InstallationError when a package
    it needs is missing.
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


def gallery() -> dict[str, dict[str, list[str]]]:
    """The expectations of the installed Great Expectations: name, and the arguments it must and may have."""
    ignored = {*_NOT_ARGUMENTS, *_base_class().__fields__} - {"mostly"}
    return {
        name: {
            "required": [field for field, known in kind.__fields__.items() if known.required and field not in ignored],
            "optional": [
                field for field, known in kind.__fields__.items() if not known.required and field not in ignored
            ],
        }
        for name, kind in sorted(_expectation_types().items())
    }


# Fields of an expectation that are the library's own, not arguments of a rule.
_NOT_ARGUMENTS = ("batch_id", "library_metadata")


def _base_class() -> type[GreatExpectation]:
    _require_packages()
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    from great_expectations.expectations.expectation import Expectation as GreatExpectation

    return GreatExpectation


def _expectation_types() -> dict[str, type[GreatExpectation]]:
    """Great Expectations' classes, by the name that contracts use."""
    base = _base_class()
    import great_expectations.expectations as gxe

    classes = [kind for kind in vars(gxe).values() if isinstance(kind, type) and issubclass(kind, base)]
    return {str(kind.expectation_type): kind for kind in classes if getattr(kind, "expectation_type", "")}


def _expectation(rule: Expectation) -> GreatExpectation:
    known = _expectation_types()[rule.type]
    try:
        return known(**rule.kwargs, description=rule.description, meta={"rule": rule.name})
    except (TypeError, ValueError) as error:
        problem = f"Great Expectations refuses the arguments: {str(error).splitlines()[-1].strip()}"
        where = f"expectations.{rule.name}.kwargs"
        raise ContractError([ContractProblem("gold/gate.yaml", None, where, problem)]) from None


def _verdict(rule: Expectation, outcome: object) -> Verdict:
    values = getattr(outcome, "result", {})
    passed = bool(getattr(outcome, "success", False))
    # Expectations on aggregates (a maximum, a row count) have one observed value, not counts of rows; of an empty table
    # nothing is counted.
    unexpected = values.get("unexpected_count")
    if rule.type == "unexpected_rows_expectation":
        unexpected = values.get("observed_value")
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
