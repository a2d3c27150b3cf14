"""What changed in a Delta table since a version, where the table still has it.

A change data feed lives as long as the files of its versions: VACUUM, a clean-up of the log, a restored copy or another
set of columns end it. Then it has to be known before anything is built on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse.held import fetched, held
from lakehouse.sizing import MOST_FETCHED

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

# Delta's and Spark's names of the errors of a feed, or of a version, that is not there any more.
_GONE = re.compile(
    r"\[(?:DELTA_MISSING_CHANGE_DATA|DELTA_LOG_FILE_NOT_FOUND|DELTA_VERSION_NOT_FOUND|DELTA_TRUNCATED_TRANSACTION_LOG"
    r"|DELTA_CDC_START_VERSION_AFTER_LATEST|DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_(?:DATA_SCHEMA|SCHEMA_CHANGE)"
    r"|DELTA_CHANGE_TABLE_FEED_DISABLED|DELTA_FILE_NOT_FOUND(?:_DETAILED)?|FAILED_READ_FILE\.FILE_NOT_EXIST)\]"
)


@dataclass(frozen=True)
class Kept:
    """Rows that were read, once, and how many there are; `table`: the same, where they were fetched."""

    rows: DataFrame
    count: int
    table: pa.Table | None = None


@contextmanager
def kept_changes(read: Callable[[], DataFrame], *, are_narrow: bool = False) -> Iterator[Kept | None]:
    """The rows that `read` makes of a change data feed or of an earlier version; None when they are gone.

    They are read now: whether a file is there is known only when it is opened. Any other error is itself. Rows that
    `are_narrow` are fetched where they are few; many of them are read twice.
    """
    with ExitStack() as stack:
        yield _read(read, are_narrow=are_narrow, stack=stack)


def _read(read: Callable[[], DataFrame], *, are_narrow: bool, stack: ExitStack) -> Kept | None:
    try:
        if are_narrow:
            some = fetched(read().limit(MOST_FETCHED + 1))
            if some.table.num_rows <= MOST_FETCHED:
                return Kept(some.rows, some.table.num_rows, some.table)
        rows = stack.enter_context(held(read()))
        return Kept(rows, rows.count())  # on serverless nothing was read before this
    except Exception as error:
        if not is_gone(error):
            raise
        return None


def is_gone(error: BaseException) -> bool:
    """Whether the error says that files of an earlier version are not there any more."""
    return _GONE.search(str(error)) is not None
