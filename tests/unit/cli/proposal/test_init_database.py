"""`lakehouse init --database` as a person meets it: the table, the files, the answer as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.proposal import broker
from cli.proposal.sample import NO_TIME, Unread
from lakehouse.contracts.files import SCHEMAS, load_contracts
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.kafka.registry import SchemaRegistry
from lakehouse.registered import RegisteredSchema
from silver.decode.reference.message import Record
from tests.support import command_line
from tests.unit.cli.proposal.dw import ROWS, change, schema_changes

OF_BROKER: dict[str, Sequence[Record] | Unread] = {
    "late": NO_TIME,
    **{f"order_dw.order_dw.{table}": [change("", row, table=table)] for table, row in ROWS.items()},
    "order_dw": schema_changes(),
    "avro": [Record("avro", b"\0\0\0\0\1\2", b"\0\0\0\0\2\2")],
    "shop.crm.client": [change("", {"id": 1}, table="client", db="crm")],
}
SERVERS = ("--bootstrap-servers", "127.0.0.1:1")


@pytest.fixture(autouse=True)
def _broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker with these topics, and some that are not read."""

    def samples(_kafka: object, topics: Mapping[str, object], **_bounds: object) -> Iterator[Mapping[str, Any]]:
        for topic in topics:
            found = OF_BROKER[topic]
            yield {topic: found if isinstance(found, Unread) else [one._replace(topic=topic) for one in found]}

    known = dict.fromkeys([*OF_BROKER, "__consumer_offsets", "__debezium-heartbeat.order_dw"], (0,))
    monkeypatch.setattr(broker, "partitions", lambda _kafka: known)
    monkeypatch.setattr(broker, "samples", samples)
    monkeypatch.setattr(broker, "sample", lambda _kafka, topic, **_bounds: OF_BROKER[topic])


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """`lakehouse init` with these arguments."""
    return command_line.run(capsys, "init", *arguments)


def test_a_folder_for_a_database_loads_and_says_what_is_next(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "dw"
    code, out, err = run(capsys, str(folder), "--database", "order_dw", *SERVERS)
    assert code == 0
    assert "8 of 9 topics looked at" in err
    assert "Topics of order_dw" in out
    assert f"Next: check every comment in them, then: lakehouse validate --contracts {folder}" in out
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert written == {"bronze/topics.yaml", "gold/tables.yaml", *(f"schemas/{name}" for name in SCHEMAS)}
    contracts = load_contracts(folder)
    rule = contracts.topics.sources["order_dw"].by_rule["order_dw"]
    assert (rule.include, rule.schema_changes) == ((r"order_dw\.order_dw\..*",), "order_dw")
    assert contracts.may_be_discovered("order_dw_order")
    assert "s3cr3t" not in out + err + "".join((folder / name).read_text() for name in written)


def test_a_dry_run_as_data_writes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _err = run(capsys, str(tmp_path / "dw"), "--database", "order_dw", *SERVERS, "--dry-run", "--json")
    answer = json.loads(out)
    assert (code, answer["dry_run"], answer["database"]) == (0, True, "order_dw")
    assert not (tmp_path / "dw").exists()
    by_topic = {one["topic"]: one for one in answer["topics"]}
    assert set(by_topic) == {*OF_BROKER, "__consumer_offsets", "__debezium-heartbeat.order_dw"}
    assert by_topic["order_dw.order_dw.user"] == {
        "topic": "order_dw.order_dw.user",
        "taken": True,
        "table": "order_dw.user",
        "silver_table": "silver.order_dw_user",
        "keys": ["id"],
        "columns": 3,
        "types_by": "topic of schema changes",
        "records": 1,
        "remark": "",
    }
    assert by_topic["late"]["remark"] == "not looked at: the time was over"
    assert by_topic["__consumer_offsets"]["remark"].startswith("internal")


def test_what_is_not_there_and_what_is_given_twice(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _out, err = run(capsys, str(tmp_path / "dw"), "--database", "order_dv", *SERVERS)
    assert code == 4
    assert "did you mean 'order_dw'?" in err
    assert "1 of 9 topics were not looked at" in err
    assert not (tmp_path / "dw").exists()
    code, _out, err = run(capsys, str(tmp_path / "dw"), "--database", "a", "--from-topic", "b", *SERVERS)
    assert code == 2
    assert "--from-topic and --database exclude each other." in err


def test_a_schema_of_the_registry_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Registry:
        def schema(self, number: int) -> RegisteredSchema | None:
            asked.append(number)
            return None

        def close(self) -> None:
            pass

    monkeypatch.setattr(broker, "registry", lambda _registry: Registry())
    kafka = KafkaConnection(bootstrap_servers="127.0.0.1:1", schema_registry=SchemaRegistry(url="http://127.0.0.1:2"))
    monkeypatch.setitem(OF_BROKER, "late", OF_BROKER["avro"])
    assert broker.registered_schemas({7}, kafka) == {}
    assert broker.registered_schemas(set(), kafka) is None
    assert asked.pop() == 7
    proposal = broker.proposed_database("order_dw", kafka, _Note())  # type: ignore[arg-type]
    assert sorted(asked) == [1, 2]
    assert [one.remark for one in proposal.rows if one.topic == "avro"] == ["1 record: 1 binary value"]


def test_a_database_without_schema_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OF_BROKER, "order_dw", ())
    proposal = broker.proposed_database("order_dw", KafkaConnection(bootstrap_servers="127.0.0.1:1"), _Note())  # type: ignore[arg-type]
    assert {one.types_by for one in proposal.rows if one.taken} == {"values"}


class _Note:
    def __call__(self, _text: str) -> None:
        pass

    def now(self, _text: str) -> None:
        pass
