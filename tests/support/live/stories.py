"""What happens in the databases: for each table one story, told in parts between which the connectors do things."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256

from demo.stack.database import Database
from tests.support.live.dialects import (
    COLUMNS,
    OF_TYPES,
    ROWS_OF_TYPES,
    SIGNALS,
    TYPES,
    Dialect,
    insert,
)

LARGE_ROWS = 3000
# What the first snapshot finds.
ROWS = {"life": 20, "emptied": 5, "grown": 3, "opened": 5, "crashed": 100, "again": 50, "signalled": LARGE_ROWS}
LARGE = ("large_default", "large_full")
# Of these the databases themselves keep a log of every version of a row, by triggers.
LOGGED = ("life", "crashed")
PATIENCE_SECONDS = 30.0


def before_the_snapshot(database: Database, dialect: Dialect) -> None:
    """The tables and what the first snapshot finds in them."""
    dialect.create(database)
    database.execute(
        *(statement for table in LOGGED for statement in dialect.log_versions(table)),
        *(insert(table, range(1, count + 1)) for table, count in ROWS.items() if table in dialect.stories),
    )
    if dialect.kind in OF_TYPES:
        database.execute(f"CREATE TABLE {TYPES} ({OF_TYPES[dialect.kind]})")
        write_types(database, dialect, first=True)
    if dialect.kind == "postgresql":
        database.execute("ALTER TABLE large_full REPLICA IDENTITY FULL")
        for table in LARGE:
            database.execute(
                f"ALTER TABLE {table} ALTER COLUMN note SET STORAGE EXTERNAL",
                *(insert(table, [number], note=f"'{large_text(number)}'") for number in range(1, 9)),
            )


def write_types(database: Database, dialect: Dialect, *, first: bool) -> None:
    """Rows of all types: those with odd numbers for the snapshot, all of them once more, 100 later, for the stream."""
    for row in ROWS_OF_TYPES[dialect.kind]:
        number, rest = row.split(",", maxsplit=1)
        if not first or int(number) % 2:
            with database.session() as cursor:
                # The drivers take a percent sign or a backslash as it is where there are no parameters.
                cursor.execute(f"INSERT INTO {TYPES} VALUES ({number if first else int(number) + 100},{rest})")


def large_text(number: int, length: int = 9000) -> str:
    """Text that PostgreSQL keeps outside of the row."""
    text = sha256(str(number).encode()).hexdigest()
    return (text * (length // len(text) + 1))[:length]


def streamed(database: Database, dialect: Dialect) -> None:
    """What every table is told while its connectors follow."""
    _life(database)
    database.execute("TRUNCATE TABLE emptied", insert("emptied", (3, 7)))
    if dialect.kind == "postgresql":
        _large(database)
    if "grown" in dialect.stories:
        _grown(database)
    if dialect.kind in OF_TYPES:
        write_types(database, dialect, first=False)


def _grown(database: Database) -> None:
    database.execute(
        "ALTER TABLE grown ADD COLUMN channel VARCHAR(16)",
        f"INSERT INTO grown ({', '.join(COLUMNS)}, channel)"
        " VALUES (10, 1, NULL, 'new', 1.50, '2024-05-01 12:00:00', NULL, NULL, 'web')",
        "UPDATE grown SET channel = 'shop' WHERE order_id = 2",
    )


def _life(database: Database) -> None:
    database.execute(
        insert("life", range(21, 31)),
        "UPDATE life SET status = 'completed', total_amount = -12.30 WHERE order_id IN (1, 2, 3)",
        "DELETE FROM life WHERE order_id IN (4, 5)",
        insert("life", [5], status="back"),
        "UPDATE life SET order_id = 1006 WHERE order_id = 6",
        "UPDATE life SET note = '%s \\'' WHERE order_id = 7".replace("\\'", "''"),
    )
    with database.session(autocommit=False) as cursor:
        cursor.execute(insert("life", [40], status="one"))
        cursor.execute("UPDATE life SET status = 'two' WHERE order_id = 40")
        cursor.execute("UPDATE life SET status = 'three', total_amount = 99999999.99 WHERE order_id = 40")
        cursor.execute("UPDATE life SET order_id = 1041 WHERE order_id = 40")
        cursor.execute("DELETE FROM life WHERE order_id = 8")
        cursor.execute(insert("life", [8], status="again"))
    with database.session(autocommit=False) as cursor:
        cursor.execute("UPDATE life SET order_id = order_id + 5000 WHERE order_id BETWEEN 21 AND 25")
        cursor.execute("DELETE FROM life WHERE order_id = 5021")
    _interleaved(database)
    database.execute("UPDATE life SET status = 'all' WHERE order_id BETWEEN 10 AND 20")


def _interleaved(database: Database) -> None:
    """Two transactions insert one key; the second waits for the first, which deletes it again and commits earlier."""
    with database.session(autocommit=False) as first:
        first.execute(insert("life", [99], status="first"))
        second = threading.Thread(target=_insert_the_same, args=(database,))
        second.start()
        second.join(1.0)  # by now it waits for the first
        assert second.is_alive()
        first.execute("UPDATE life SET status = 'first, updated' WHERE order_id = 99")
        first.execute("DELETE FROM life WHERE order_id = 99")
    second.join(PATIENCE_SECONDS)
    assert not second.is_alive()


def _insert_the_same(database: Database) -> None:
    with database.session(autocommit=False) as cursor:
        cursor.execute(insert("life", [99], status="second"))
        cursor.execute("UPDATE life SET product_id = 5 WHERE order_id = 99")


def _large(database: Database) -> None:
    for table in LARGE:
        database.execute(
            # The large value is not in the event: it has not changed.
            f"UPDATE {table} SET status = 'paid' WHERE order_id IN (1, 2, 3)",
            f"UPDATE {table} SET note = '{large_text(100)}' WHERE order_id = 2",
            f"UPDATE {table} SET status = 'sent' WHERE order_id = 2",
            f"UPDATE {table} SET order_id = 1004 WHERE order_id = 4",
            f"UPDATE {table} SET note = NULL WHERE order_id = 5",
            f"DELETE FROM {table} WHERE order_id = 6",
            insert(table, [20], note=f"'{large_text(20)}'"),
        )
        with database.session(autocommit=False) as cursor:
            cursor.execute(insert(table, [21], note=f"'{large_text(21)}'"))
            cursor.execute(f"UPDATE {table} SET status = 'in the same' WHERE order_id = 21")
            cursor.execute(f"UPDATE {table} SET order_id = 1021 WHERE order_id = 21")
            cursor.execute(f"UPDATE {table} SET status = 'after the key' WHERE order_id = 1021")


def streamed_later(postgresql: Database) -> None:
    """After silver has read the first part: large values that no event of the batch brings."""
    for table in LARGE:
        postgresql.execute(
            f"UPDATE {table} SET status = 'late' WHERE order_id IN (1, 20, 1021)",
            f"UPDATE {table} SET order_id = 1007 WHERE order_id = 7",
            f"UPDATE {table} SET total_amount = 7 WHERE order_id = 1007",
        )
    postgresql.execute("UPDATE life SET status = 'late' WHERE order_id IN (1, 99, 1041)")


@contextmanager
def open_transactions(database: Database, slots_begin: Callable[[], None]) -> Iterator[None]:
    """Transactions that are open while connectors start, and commit while they snapshot and after.

    The first is open before, and PostgreSQL's new slots wait for its end; the second begins while they wait; the third
    stays open to the end of the block. `slots_begin` returns when the connectors have begun.
    """
    with database.session(autocommit=False) as first:
        first.execute("UPDATE opened SET status = 'first' WHERE order_id = 1")
        first.execute(insert("opened", [11], status="first"))
        third = database.session(autocommit=False)
        slots_begin()
        with database.session(autocommit=False) as second:
            second.execute("UPDATE opened SET status = 'second' WHERE order_id = 2")
            second.execute(insert("opened", [12], status="second"))
            first.execute("COMMIT")
            threading.Event().wait(2.0)  # the slots take note that the first has ended
            with third as cursor:
                cursor.execute("UPDATE opened SET status = 'third' WHERE order_id = 3")
                cursor.execute("DELETE FROM opened WHERE order_id = 4")
                cursor.execute(insert("opened", [13], status="third"))
                second.execute("COMMIT")
                yield


@contextmanager
def busy(database: Database, table: str) -> Iterator[None]:
    """Small transactions on a table all the time that the block takes."""
    ending = threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        number = 10_000
        try:
            with database.session() as cursor:
                while not ending.wait(0.02):
                    number += 1
                    cursor.execute(insert(table, [number], status="new"))
                    cursor.execute(f"UPDATE {table} SET status = 'w{number}' WHERE order_id = {number % 100 + 1}")
                    if number % 3 == 0:
                        cursor.execute(f"DELETE FROM {table} WHERE order_id = {number - 2}")
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ending.set()
        writer.join(PATIENCE_SECONDS)
    assert not failed, failed
    assert not writer.is_alive()


def between_snapshots(database: Database) -> None:
    """While the connectors stand still and then forget where they were: no event tells of this."""
    database.execute(
        "DELETE FROM again WHERE order_id BETWEEN 11 AND 20",
        "UPDATE again SET status = 'unseen' WHERE order_id BETWEEN 21 AND 25",
        insert("again", range(60, 66)),
        "UPDATE again SET order_id = 1030 WHERE order_id = 30",
    )


def after_the_second_snapshot(database: Database) -> None:
    """The stream goes on."""
    database.execute(
        insert("again", [11], status="back"),
        "DELETE FROM again WHERE order_id = 60",
        "UPDATE again SET status = 'late' WHERE order_id = 1030",
    )


def signal_incremental_snapshot(database: Database, dialect: Dialect, table: str) -> None:
    """Ask the connectors to read a table once more while they stream."""
    data = f'{{"data-collections": ["{dialect.namespace}.{table}"], "type": "incremental"}}'
    database.execute(f"INSERT INTO {SIGNALS} VALUES ('{table}', 'execute-snapshot', '{data}')")
