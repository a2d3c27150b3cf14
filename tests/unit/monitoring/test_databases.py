"""What a database says of its connector, by a server that answers a few queries."""

from __future__ import annotations

from typing import Any

import pytest

from monitoring.readings import databases
from monitoring.readings.databases import Database
from monitoring.readings.running import offset_of
from tests.unit.connectors.stand_in import at_once, connect_stand_in
from tests.unit.monitoring.scenes import mysql


class Server:
    """Answers the queries of MySQL."""

    def __init__(self, *logs: tuple[str, int]) -> None:
        self.logs = logs
        self.asked: list[str] = []

    def __call__(self, query: str, *_parameters: object) -> list[tuple[Any, ...]]:
        self.asked.append(query)
        return [*self.logs] if query == "SHOW BINARY LOGS" else []


def asked(server: Server, file: str | None, pos: int = 0) -> Database:
    return databases._mysql(mysql(), server, {} if file is None else {"file": file, "pos": pos})


LOGS = (("binlog.999998", 1), ("binlog.999999", 10), ("binlog.1000000", 100), ("binlog.1000001", 1_000))


@pytest.mark.parametrize(
    ("file", "pos", "behind"),
    [
        ("binlog.999998", 0, 1_111),
        ("binlog.999999", 4, 1_106),
        ("binlog.1000000", 0, 1_100),
        ("binlog.1000001", 1_000, 0),
        # the server does not have it: nothing can be counted
        ("binlog.999997", 0, 0),
        ("binlog.1000002", 0, 0),
        ("other.999999", 0, 0),
        ("binlog", 0, 0),
        (None, 0, 0),
    ],
)
def test_binlog_files_are_in_the_order_of_their_numbers(file: str | None, pos: int, behind: int) -> None:
    binlog = asked(Server(*LOGS), file, pos).binlog
    assert binlog is not None
    assert binlog.behind_bytes == behind
    assert binlog.has_file == (file is None or file in dict(LOGS))


def test_doctor_asks_for_every_setting_by_which_updates_are_lost() -> None:
    server = Server()
    asked(server, None)
    (query,) = [one for one in server.asked if "VARIABLES" in one]
    for name in ("log_bin", "binlog_format", "binlog_row_image", "binlog_row_value_options"):
        assert f"'{name}'" in query


def test_the_offset_of_a_connector_is_that_of_kafka_connect() -> None:
    connector = mysql()
    with connect_stand_in() as connect:
        connect.add(connector.name, connector.config)
        assert offset_of(at_once(connect.url), connector) is None
        offset = {"file": "binlog.000001", "pos": 4}
        connect.offsets[connector.name] = [{"partition": {"server": "my"}, "offset": offset}]
        assert offset_of(at_once(connect.url), connector) == offset
