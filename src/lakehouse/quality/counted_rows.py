"""Great Expectations' rule in SQL, asked for the number of the rows that it finds, and for no row.

Its own runs the query twice, and fetches rows that nobody uses. Importing this registers the class with it, so
Great Expectations must have been prepared (lakehouse.quality.gx).
"""

from __future__ import annotations

from typing import Any, ClassVar

from great_expectations.expectations.core.unexpected_rows_expectation import UnexpectedRowsExpectation

_ROWS, _NUMBER = "unexpected_rows_query.table", "unexpected_rows_query.row_count"


class UnexpectedRowsCounted(UnexpectedRowsExpectation):
    """UnexpectedRowsExpectation with the verdict and the number that it has, for every result format but COMPLETE."""

    metric_dependencies: ClassVar[tuple[str, ...]] = (_NUMBER,)

    def _validate(self, metrics: dict[str, Any], *arguments: Any, **more: Any) -> Any:
        return super()._validate({**metrics, _ROWS: []}, *arguments, **more)
