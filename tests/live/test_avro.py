"""Orders of a real database through the Avro converter to gold, and on in Avro, which fastavro and Connect read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import fastavro
import pytest
import requests
import yaml

from cli.jobs import JOBS, RunContext, run_jobs
from cli.monitoring.doctor import scene_of
from demo.stack.database import Database
from demo.stack.registry import CONVERTER, avro_options
from demo.stack.stack import Stack
from demo.stack.topics import wait_for
from gold.topics import publish
from gold.topics.compare import compare, compare_upsert
from lakehouse.config import Settings, settings
from lakehouse.contracts.files import load_contracts
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from lakehouse.errors import RegistryError
from lakehouse.kafka.broker import partitions
from lakehouse.kafka.log import committed_records
from lakehouse.process.steps import Steps, wide_console
from monitoring.doctor import results_of
from monitoring.readings.tables import DeltaFiles
from monitoring.readings.warehouse import kept_schemas
from monitoring.status import View
from silver.rejects.quarantine import QUARANTINE
from tests.support.live.connectors import Config
from tests.support.live.dialects import insert
from tests.support.live.told import until
from tools.bundle import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.live]

PREFIX, NAME, FEED = "avro_orders", "avro-orders", "postgres_orders"
TOPIC, UPSERT = "avro.unified.orders", "avro.silver.orders"
ORDERS = range(8101, 8121)
SECONDS = 90.0
FILES = ("bronze/topics.yaml", "silver/tables.yaml", "silver/gate.yaml", "gold/tables.yaml", "gold/gate.yaml")


@dataclass(frozen=True)
class Flow:
    """What came of the orders."""

    stack: Stack
    spark: SparkSession
    contracts: Contracts
    chosen: Settings

    @property
    def warehouse(self) -> Warehouse:
        """The tables."""
        return Warehouse(self.spark, self.chosen.warehouse, self.chosen.checkpoints)

    def run(self) -> None:
        """All jobs once."""
        steps = Steps(wide_console(stderr=True))
        known = partitions(self.chosen.kafka())
        work = RunContext(self.spark, self.chosen, self.contracts, steps, known, uuid4().hex)
        assert run_jobs(tuple(JOBS), work).failures == []

    def datum(self, message: bytes) -> Mapping[str, Any]:
        """A key or value of a topic, as fastavro reads it with the registry's schema."""
        assert message[0] == 0
        schema = self.stack.registry.schema(int.from_bytes(message[1:5], "big"))
        found: Any = fastavro.schemaless_reader(BytesIO(message[5:]), schema, None)
        assert isinstance(found, dict)
        return found

    def last_values(self, topic: str) -> dict[str, Mapping[str, Any] | None]:
        """Of every key of a topic, as text, its last value."""
        records = committed_records(self.chosen.kafka(), topic)
        return {
            str(next(iter(self.datum(one.key).values()))): None if one.value is None else self.datum(one.value)
            for one in records
        }


def documents(folder: Path) -> Path:
    """The packaged contracts for the orders of this connector alone, published in Avro, and silver's rows too."""
    read = {name: yaml.safe_load((ROOT / "src" / name).read_text(encoding="utf-8")) for name in FILES}
    feed = {"topics": [f"{PREFIX}.public.orders"], "tables": ["public.orders"], "envelope": "table"}
    read["bronze/topics.yaml"]["sources"] = {"postgres": {"kind": "postgresql", "feeds": {FEED: feed}}}
    table = read["silver/tables.yaml"]["tables"][FEED]
    table["columns"]["of_table"] = {"type": "STRING", "metadata": "source.table"}
    table["columns"]["written_with"] = {"type": "STRING", "metadata": "schema"}
    read["silver/tables.yaml"]["tables"] = {FEED: table}
    for name in ("silver/gate.yaml", "gold/gate.yaml"):
        read[name]["feeds"] = [FEED]
        rules = [rule for rule in read[name]["expectations"] if FEED in rule.get("feeds", [FEED])]
        read[name]["expectations"] = [{**rule, **({"feeds": [FEED]} if "feeds" in rule else {})} for rule in rules]
    gold = read["gold/tables.yaml"]
    gold["sources"] = {"postgres": {**gold["sources"]["postgres"], "feeds": [FEED]}}
    gold["columns"]["of_table"] = "STRING"
    gold["publication"] |= {"topic": TOPIC, "format": "avro"}
    of_silver = {"table": f"silver.{FEED}", "topic": UPSERT, "format": "avro", "partitions": 1, "replication_factor": 1}
    gold["upsert_topics"] = {"orders": {**of_silver, "key_prefix": "key_", "value_fields": "except_key"}}
    for name, document in read.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(yaml.safe_dump(document), encoding="utf-8")
    return folder


def is_of(event: Mapping[str, Any], order_id: int) -> bool:
    """Whether it has a row of this order."""
    return event["after"] is not None and bool(event["after"]["order_id"] == order_id)


def wait_until_sent(stack: Stack, is_it: Callable[[Mapping[str, Any]], bool]) -> None:
    """Wait until the connector has written an event of which this is true."""
    wait_for(stack.bootstrap_servers, f"{PREFIX}.public.orders", is_it, event_of=stack.registry.event_of)


@pytest.fixture(scope="module")
def flow(
    stack: Stack,
    spark: SparkSession,
    packaged_connectors: Mapping[str, Config],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Flow]:
    """Orders of PostgreSQL as the Avro converter writes them, inserted, changed and deleted, taken to the topics."""
    folder, database = tmp_path_factory.mktemp("avro"), stack.postgresql
    file = folder / "kafka.yaml"
    registry = {"url": stack.registry.confluent_url}
    file.write_text(yaml.safe_dump({"bootstrap_servers": stack.bootstrap_servers, "schema_registry": registry}))
    chosen = settings(warehouse=str(folder / "warehouse"), kafka_config=file)
    own = {"topic.prefix": PREFIX, "slot.name": PREFIX}
    worker = stack.connect.worker
    worker.put_config(NAME, {**packaged_connectors["postgres-tables-connector"], **own, **avro_options(stack.registry)})
    try:
        database.execute(insert("orders", ORDERS))
        first, last = ORDERS[0], ORDERS[-1]
        wait_until_sent(stack, lambda event: is_of(event, last))
        database.execute(f"UPDATE orders SET status = 'completed' WHERE order_id = {first}")
        database.execute(f"DELETE FROM orders WHERE order_id = {first + 1}")
        database.execute(f"UPDATE orders SET total_amount = 12345678.90 WHERE order_id = {last}")
        wait_until_sent(stack, lambda event: event["op"] == "u" and is_of(event, last))
        flow = Flow(stack, spark, load_contracts(documents(folder / "contracts")), chosen)
        flow.run()
        yield flow
    finally:
        worker.delete(NAME)
        # The stack goes on to other tests as it was.
        until(lambda: is_dropped(database, PREFIX), SECONDS)
        database.execute(f"DELETE FROM orders WHERE order_id BETWEEN {ORDERS[0]} AND {ORDERS[-1]}")


def is_dropped(database: Database, slot: str) -> bool:
    """Drops the slot; not while its connector still has it."""
    there = database.rows(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'")
    if there and not there[0]["active"]:
        database.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    return not there


def test_silver_and_gold_equal_the_source(flow: Flow) -> None:
    rows = flow.stack.postgresql.rows("SELECT order_id, status, total_amount FROM orders ORDER BY order_id")
    wanted = [(row["order_id"], row["status"], row["total_amount"]) for row in rows]
    silver = flow.warehouse.read(f"silver.{FEED}").where("NOT _is_deleted")
    gold = flow.warehouse.read("gold.unified_orders")
    for table in (silver, gold):
        assert table.orderBy("order_id").select("order_id", "status", "total_amount").collect() == wanted
    assert flow.warehouse.read(QUARANTINE.name).count() == 0
    assert len(wanted) >= len(ORDERS) - 1


def test_metadata_columns_say_where_a_row_is_from(flow: Flow) -> None:
    rows = flow.warehouse.read(f"silver.{FEED}").where("NOT _is_deleted").select("of_table", "written_with").distinct()
    ((of_table, written_with),) = rows.collect()
    assert of_table == "orders"
    assert {row["of_table"] for row in flow.warehouse.read("gold.unified_orders").collect()} == {"orders"}
    schema = json.loads(written_with)
    assert (schema["namespace"], schema["name"]) == (f"{PREFIX}.public.orders", "Envelope")


def test_the_registry_has_the_schemas_that_were_kept(flow: Flow) -> None:
    tables, kafka = DeltaFiles(flow.chosen.address), flow.chosen.kafka()
    assert len(kept_schemas(tables)) >= 2
    results = results_of(scene_of(View(flow.contracts, tables, kafka)))
    found = [one for one in results if one.where == flow.stack.registry.confluent_url]
    assert {one.check: one.ok for one in found} == {"registry-answers": True, "schema-ids": True}


def test_the_unified_topic_is_read_by_fastavro(flow: Flow) -> None:
    gold = {row["composite_key"]: row for row in flow.warehouse.read("gold.unified_orders").collect()}
    found = flow.last_values(TOPIC)
    assert found.keys() == gold.keys()
    for key, value in found.items():
        assert value is not None
        row = gold[key].asDict()
        assert (value["total_amount"], value["of_table"]) == (row["total_amount"], "orders")
        assert value["created_at"].replace(tzinfo=None) == row["created_at"].replace(tzinfo=None)
    assert compare(flow.warehouse, flow.chosen, flow.contracts).differing == 0


def test_the_upsert_topic_has_silvers_rows(flow: Flow) -> None:
    """The key stands in the record's key alone, under its prefix; what was deleted before is not there."""
    found = flow.last_values(UPSERT)
    rows = flow.warehouse.read(f"silver.{FEED}").where("NOT _is_deleted").collect()
    assert found.keys() == {str(row["order_id"]) for row in rows}
    record = next(committed_records(flow.chosen.kafka(), UPSERT))
    assert list(flow.datum(record.key)) == ["key_order_id"]
    assert all(value is not None and "order_id" not in value for value in found.values())
    compared = compare_upsert(flow.warehouse, flow.chosen, flow.contracts, "orders")
    assert (compared.orders, compared.differing) == (len(rows), 0)


def test_what_changes_later_is_sent_and_what_is_gone_is_deleted(flow: Flow) -> None:
    gone, changed = ORDERS[2], ORDERS[3]
    database = flow.stack.postgresql
    database.execute(f"DELETE FROM orders WHERE order_id = {gone}")
    database.execute(f"UPDATE orders SET status = 'cancelled' WHERE order_id = {changed}")
    wait_until_sent(flow.stack, lambda event: event["op"] == "u" and is_of(event, changed))
    flow.run()
    unified, silver = flow.last_values(TOPIC), flow.last_values(UPSERT)
    assert (unified[f"PG-{gone}"], silver[str(gone)]) == (None, None)
    last = unified[f"PG-{changed}"]
    assert last is not None
    assert last["fulfillment_status"] == "CANCELLED"


def test_a_schema_that_the_subject_does_not_allow_stops_the_publication(flow: Flow) -> None:
    """Before the first record; and nothing of it is registered."""
    subject, url = "refused.orders-value", flow.stack.registry.confluent_url
    numbers = {"type": "array", "items": "int"}
    before = {"type": "record", "name": "Value", "fields": [{"name": "order_id", "type": numbers}]}
    schema = {"schema": json.dumps(before)}
    requests.post(f"{url}/subjects/{subject}/versions", json=schema, timeout=10).raise_for_status()
    requests.put(f"{url}/config/{subject}", json={"compatibility": "FULL"}, timeout=10).raise_for_status()
    publication = flow.contracts.gold.unified_topic.model_copy(update={"topic": "refused.orders"})
    gold = flow.contracts.gold.model_copy(update={"publication": publication, "upsert_topics": {}})
    with pytest.raises(RegistryError, match=r"finds the new schema of refused\.orders-value not compatible"):
        publish.run(flow.spark, flow.chosen, flow.contracts.model_copy(update={"gold": gold}))
    assert "refused.orders" not in partitions(flow.chosen.kafka())


def test_kafka_connects_converter_reads_both_topics(flow: Flow, tmp_path: Path) -> None:
    """A sink of Kafka Connect writes down what its Avro converter has made of key and value."""
    worker = flow.stack.connect.worker
    file = tmp_path / "read.txt"
    wanted = {row["composite_key"] for row in flow.warehouse.read("gold.unified_orders").collect()}
    config = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
        "tasks.max": "1",
        "topics": f"{TOPIC},{UPSERT}",
        "file": str(file),
        **avro_options(flow.stack.registry),
    }
    worker.put_config("avro-reader", config)
    try:

        def lines() -> list[str]:
            return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

        until(
            lambda: wanted <= {key for line in lines() for key in re.findall(r"composite_key=(PG-\d+)", line)}, SECONDS
        )
        until(lambda: any("of_table=orders" in line for line in lines()), SECONDS)
        status = worker.status("avro-reader")
        assert [task["state"] for task in status["tasks"]] == ["RUNNING"]
        (one,) = [line for line in lines() if f"composite_key=PG-{ORDERS[-1]}," in line][:1]
        assert "total_amount=12345678.90" in one
        assert CONVERTER in config["value.converter"]
    finally:
        worker.delete("avro-reader")
