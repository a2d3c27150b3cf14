"""What changed in a Delta table since a version, where the table still has it.

A change data feed lives as long as the files of its versions: VACUUM, a clean-up of the log, a restored copy or another
set of columns end it. Then it has to be known before anything is built on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.held import held

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

# Delta's and Spark's names of the errors of a feed, or of a version, that is not there any more.
_GONE = re.compile(
    r"\[(?:DELTA_MISSING_CHANGE_DATA|DELTA_LOG_FILE_NOT_FOUND|DELTA_VERSION_NOT_FOUND|DELTA_TRUNCATED_TRANSACTION_LOG"
    r"|DELTA_CDC_START_VERSION_AFTER_LATEST|DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_(?:DATA_SCHEMA|SCHEMA_CHANGE)"
    r"|DELTA_CHANGE_TABLE_FEED_DISABLED|DELTA_FILE_NOT_FOUND(?:_DETAILED)?|FAILED_READ_FILE\.FILE_NOT_EXIST)\]"
)


@dataclass(frozen=True)
class Kept:
    """Rows that were read and are held; how many there are; and what was `asked` of all of them."""

    rows: DataFrame
    count: int
    told: Row


@contextmanager
def kept_changes(read: Callable[[], DataFrame], *asked: Column) -> Iterator[Kept | None]:
    """The rows that `read` makes of a change data feed or of an earlier version; None when they are gone.

    They are read once, now: whether a file is there is known only when it is opened. Any other error is itself.
    `asked`: further aggregates of the rows.
    """
    with ExitStack() as stack:
        yield _read(read, asked, stack)


def _read(read: Callable[[], DataFrame], asked: Sequence[Column], stack: ExitStack) -> Kept | None:
    try:
        rows = stack.enter_context(held(read()))
        (told,) = rows.agg(F.count(F.lit(1)).alias("count"), *asked).collect()  # on serverless nothing was read yet
    except Exception as error:
        if not is_gone(error):
            raise
        return None
    return Kept(rows, told["count"], told)


def is_gone(error: BaseException) -> bool:
    """Whether the error says that files of an earlier version are not there any more."""
    return _GONE.search(str(error)) is not None
