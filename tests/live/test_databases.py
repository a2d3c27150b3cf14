"""The files of resources/databases on real servers: what they make, and what their user may not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pg8000.dbapi
import pymysql
import pytest

from demo.stack.database import Database
from demo.stack.stack import Stack

pytestmark = pytest.mark.live

OLD = "INSERT INTO outbox_events (aggregatetype, aggregateid, type, payload, created_at) VALUES"
REFUSED = (pg8000.dbapi.DatabaseError, pymysql.err.MySQLError)


@pytest.fixture(params=range(3), ids=["postgresql", "mysql", "mariadb"])
def database(request: pytest.FixtureRequest, stack: Stack) -> Database:
    number: int = request.param
    return stack.databases[number]


@pytest.fixture
def as_connector(database: Database) -> Callable[[str], Any]:
    """Runs a statement as the user that replicates."""

    def execute(statement: str) -> Any:
        connection = database.connect(user="debezium_user", password=database.replication_password)
        try:
            cursor = connection.cursor()
            cursor.execute(statement)
            return cursor.rowcount
        finally:
            connection.close()

    return execute


def test_the_files_can_be_run_again(database: Database) -> None:
    database.set_up()


def test_the_user_that_replicates_reads_and_signals_and_nothing_else(
    database: Database, as_connector: Callable[[str], Any]
) -> None:
    for table in ("orders", "outbox_events"):
        as_connector(f"SELECT * FROM {table}")
        with pytest.raises(REFUSED):
            as_connector(f"DELETE FROM {table}")
    with pytest.raises(REFUSED):
        as_connector("CREATE TABLE mine (number INT)")
    with pytest.raises(REFUSED):
        as_connector("DELETE FROM debezium_signal")
    as_connector("INSERT INTO debezium_signal VALUES ('nothing', 'log', '{\"message\": \"a test\"}')")


def test_an_event_gets_an_id_and_a_time(database: Database) -> None:
    for _ in range(2):
        database.execute(
            "INSERT INTO outbox_events (aggregatetype, aggregateid, type, payload) VALUES ('tests', '1', 'A', '{}')"
        )
    rows = database.rows("SELECT id, created_at FROM outbox_events WHERE aggregatetype = 'tests'")
    assert len({str(row["id"]) for row in rows}) == 2
    assert {len(str(row["id"])) for row in rows} == {36}
    assert all(row["created_at"] is not None for row in rows)


def test_old_rows_of_the_outbox_are_removed_in_batches(database: Database) -> None:
    for number in range(7):
        database.execute(f"{OLD} ('old', '{number}', 'A', '{{}}', '2024-01-0{number + 1} 00:00:00')")
    database.execute(
        "INSERT INTO outbox_events (aggregatetype, aggregateid, type, payload) VALUES ('old','9','A','{}')"
    )
    database.execute("CALL remove_old_outbox_events(7, 3)")
    rows = database.rows("SELECT aggregateid FROM outbox_events WHERE aggregatetype = 'old'")
    assert [row["aggregateid"] for row in rows] == ["9"]
    with pytest.raises(REFUSED, match="must be 1 or more"):
        database.execute("CALL remove_old_outbox_events(0, 3)")
