"""Great Expectations without files, words and reports of its own; rules as its expectations."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

from lakehouse.contracts.models import Expectation
from lakehouse.errors import ContractError, ContractProblem, InstallationError

if TYPE_CHECKING:
    from great_expectations.data_context.data_context.abstract_data_context import AbstractDataContext
    from great_expectations.expectations.expectation import Expectation as GreatExpectation


def quiet_context() -> AbstractDataContext:
    """Great Expectations, without files of its own and without a word. Raises InstallationError where it cannot run."""
    _prepare_import()
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    return context


def as_great_expectation(rule: Expectation) -> GreatExpectation:
    """The rule as Great Expectations has it. Raises ContractError when it refuses the arguments."""
    known = _expectation_types()[rule.type]
    try:
        return known(**rule.kwargs, description=rule.description, meta={"rule": rule.name})
    except (TypeError, ValueError) as error:
        raise refused(rule.name, error) from None


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
    _prepare_import()
    from great_expectations.expectations.expectation import Expectation as GreatExpectation

    return GreatExpectation


def _expectation_types() -> dict[str, type[GreatExpectation]]:
    """Great Expectations' classes, by the name that contracts use."""
    base = _base_class()
    import great_expectations.expectations as gxe

    classes = [kind for kind in vars(gxe).values() if isinstance(kind, type) and issubclass(kind, base)]
    return {str(kind.expectation_type): kind for kind in classes if getattr(kind, "expectation_type", "")}


def refused(name: str, error: Exception) -> ContractError:
    """The error of a rule whose arguments Great Expectations does not take."""
    problem = f"Great Expectations refuses the arguments: {str(error).splitlines()[-1].strip()}"
    return ContractError([ContractProblem("gold/gate.yaml", None, f"expectations.{name}.kwargs", problem)])


def _prepare_import() -> None:
    """Before every import of Great Expectations: it is to send nothing, and raises InstallationError if it cannot run.

    Without these packages the import ends the process with status 0 and no word in a Spark environment.
    """
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    for package in ("pandas", "pyarrow", "grpc"):
        if importlib.util.find_spec(package) is None:
            raise InstallationError(
                f"Great Expectations on Spark needs the Python package {package}.",
                hint='Install it: pip install "orders-lakehouse[local]".',
            )
