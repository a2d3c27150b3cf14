"""`lakehouse forget` in a process that kills itself between two steps: python -m tests.support.dying_erasure …

No mock: the process ends as by SIGKILL, with its Java and what it was writing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import bronze.erase
import gold.build
import lakehouse.erasure.files
import lakehouse.erasure.table
import silver.erasure.erase
from cli.main import main as command
from tests.support.dying import PATCH, die


def instead_of(module: Any, name: str) -> Callable[[], None]:
    """The process ends where it would call this function."""

    def prepare() -> None:
        PATCH.setattr(module, name, lambda *_given, **_more: die())

    return prepare


def between_tables() -> None:
    """The entry of the quarantine, or a row of one table, is gone, and nothing else is."""
    delete, done = silver.erasure.erase._delete, list[str]()

    def delete_and_die(warehouse: Any, table: str, *more: Any) -> None:
        if done:
            die()
        delete(warehouse, table, *more)
        done.append(table)

    PATCH.setattr(silver.erasure.erase, "_delete", delete_and_die)


def before_a_table_is_recorded() -> None:
    """The old files of a table are gone, and nothing says so."""
    write_rows = lakehouse.erasure.table.write_rows

    def write_or_die(warehouse: Any, rows: Iterable[Mapping[str, Any]]) -> None:
        written = list(rows)
        if any(row["kind"] == "table" for row in written):
            die()
        write_rows(warehouse, written)

    PATCH.setattr(lakehouse.erasure.table, "write_rows", write_or_die)


# In the order of the steps: on one warehouse, a process that dies at one finds what the one before has done.
MOMENTS: Mapping[str, Callable[[], None]] = {
    "before bronze": instead_of(bronze.erase, "erase"),
    "while bronze is not append-only": instead_of(bronze.erase, "_rewrite"),
    "before silver": instead_of(silver.erasure.erase, "erase"),
    "between tables": between_tables,
    "before samples": instead_of(silver.erasure.erase, "erase_samples"),
    "before marked rows": instead_of(lakehouse.erasure.files, "rewrite_marked"),
    "before gold": instead_of(gold.build, "run"),
    "before old files": instead_of(lakehouse.erasure.files, "remove_old_files"),
    "before a table is recorded": before_a_table_is_recorded,
}


if __name__ == "__main__":
    MOMENTS[sys.argv[1]]()
    command(["forget", *sys.argv[2:]])
