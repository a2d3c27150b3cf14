"""Records in Avro on their way into silver: what the registry is asked, what is kept, what waits while it is gone."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from pyspark.sql import functions as F

from benchmarks.records import store
from benchmarks.tables import jobs
from bronze.events import events_table
from lakehouse.batches import batches
from lakehouse.config import Settings
from lakehouse.contracts.models import Contracts
from lakehouse.errors import RegistryError, RegistryGoneError
from lakehouse.kafka.registry import SchemaRegistry
from lakehouse.kafka.retry import RetryPolicy
from lakehouse.registered import RegisteredSchema
from monitoring.readings.tables import DeltaFiles, SparkTables
from monitoring.readings.warehouse import kept_schemas
from silver import apply
from silver.accounts.audit import StateCache
from silver.job import SilverJob
from silver.rejects.decisions import Request, ask, carry_out, judged_again
from silver.rejects.quarantine import QUARANTINE
from silver.schema.schemas import SCHEMAS, schemas
from tests.spark.test_decisions import AMOUNT, FEED, TOPIC, event
from tests.support.avro import confluent
from tests.support.bronze import bronze_rows
from tests.support.events import Record
from tests.support.recordings import write
from tests.support.registry import RegistryServer, registry_server
from tests.support.silver import apply_rows, job_of, with_gate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakehouse.delta.tables import Warehouse

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SOURCE = "mysql"
IN_AVRO = "avro:"
BYTES = f"unbase64(substring(CAST(%s AS STRING), {len(IN_AVRO) + 1}))"
NOT_NAMED = "The value is in the Confluent wire format (Avro), and no schema registry is named: set schema_registry."
KEY: Mapping[str, Any] = {"type": "record", "name": "Key", "fields": [{"name": "order_id", "type": "long"}]}
DECIMAL = {
    "type": "bytes",
    "connect.name": "org.apache.kafka.connect.data.Decimal",
    "connect.parameters": {"scale": "2"},
}
ZONED = {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}
COLUMNS: Mapping[str, Any] = {
    "order_id": "long",
    "customer_id": "long",
    "product_id": ["null", "long"],
    "status": "string",
    "total_amount": ["null", DECIMAL],
    "created_at": ZONED,
    "updated_at": ["null", ZONED],
    "note": ["null", "string"],
}
OF_SOURCE: Mapping[str, Any] = {
    **dict.fromkeys(("version", "connector", "name", "snapshot", "db", "table", "file"), "string"),
    "sequence": ["null", "string"],
    **dict.fromkeys(("ts_ms", "ts_us", "pos"), "long"),
    "row": "int",
}


def struct(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": one, "type": of} for one, of in fields.items()]}


def envelope(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of the changes of a table with these columns."""
    places = {"before": ["null", struct("Value", columns)], "after": ["null", "Value"]}
    return struct("Envelope", {**places, "source": struct("Source", OF_SOURCE), "op": "string", "ts_ms": "long"})


OLDER, NEWER = envelope(COLUMNS), envelope({**COLUMNS, "channel": ["null", "string"]})


def in_avro(one: Record, number_of: Callable[[str], int], schema: Mapping[str, Any] = OLDER) -> Record:
    """The record in the wire format: its bytes as text, for `Told.rows`."""
    value = None
    if one["value"] is not None:
        value = json.loads(one["value"])
        if value["after"] is not None:
            amount = base64.b64decode(value["after"]["total_amount"])
            value["after"] = {**value["after"], "total_amount": amount, "channel": None}
    messages = {"key": (KEY, json.loads(one["key"])), "value": (schema, value)}
    found = dict(one)
    for topic_partition, (of, message) in messages.items():
        if message is not None:
            written = confluent(number_of(json.dumps(of)), of, message)
            found[topic_partition] = IN_AVRO + base64.b64encode(written).decode()
    return found


@dataclass
class Told:
    """A warehouse whose silver is told batches of one source, with a registry or without one."""

    warehouse: Warehouse
    contracts: Contracts
    folder: Path
    registry: SchemaRegistry | None
    batch: int = 0
    job: SilverJob = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self, registry: SchemaRegistry | None = None) -> None:
        """As a process that has just started: it knows what the warehouse has. `registry`: another one from now on."""
        self.registry = registry or self.registry
        known = schemas(self.warehouse, self.registry)
        self.job = replace(job_of(self.warehouse, self.contracts, SOURCE), schemas=known)

    def rows(self, *records: Record) -> DataFrame:
        """The records as bronze has them, and from now on bronze has them."""
        file = write(self.folder / f"{uuid4().hex}.jsonl.gz", list(records))
        rows = bronze_rows(self.warehouse.spark, file, topics={TOPIC: TOPIC})
        for topic_partition in ("key", "value"):
            is_avro = F.expr(f"startswith(CAST({topic_partition} AS STRING), '{IN_AVRO}')")
            rows = rows.withColumn(
                topic_partition, F.when(is_avro, F.expr(BYTES % topic_partition)).otherwise(F.col(topic_partition))
            )
        table = events_table(SOURCE)
        self.warehouse.ensure(table)
        store(self.warehouse, SOURCE, rows)
        return rows

    def apply(self, rows: DataFrame) -> None:
        """One batch of these."""
        apply_rows(self.warehouse, rows, job=self.job)
        self.batch += 1

    def tell(self, *records: Record) -> None:
        self.apply(self.rows(*records))

    def silver(self) -> list[tuple[Any, ...]]:
        """All that the table has, but when it came there."""
        return rows_of(self.warehouse)

    def reasons(self) -> dict[int, list[str]]:
        """Of what is open in quarantine, by offset."""
        rows = self.warehouse.read(QUARANTINE.name).where("state = 'open'").collect()
        return {row["offset"]: list(row["reasons"]) for row in rows}

    def stored(self) -> dict[int, RegisteredSchema]:
        """What `ops.schemas` has; every schema is there once."""
        rows = self.warehouse.read(SCHEMAS.name).collect()
        assert len({row["id"] for row in rows}) == len(rows)
        assert {row["registry"] for row in rows} <= {self.registry.url if self.registry else ""}
        return {row["id"]: RegisteredSchema(row["kind"], row["schema"]) for row in rows}


def rows_of(warehouse: Warehouse) -> list[tuple[Any, ...]]:
    table = warehouse.read(f"silver.{FEED}")
    columns = [name for name in table.columns if name not in ("_applied_at", "_batch_id", "_ingested_at")]
    return sorted((tuple(row) for row in table.select(*columns).collect()), key=repr)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's proxies are not the tests'."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with registry_server() as server:
        yield server


@pytest.fixture
def told(empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path, registry: RegistryServer) -> Told:
    return Told(empty_silver(), with_gate(contracts, AMOUNT), tmp_path, registry.connection)


def first_batch() -> list[Record]:
    return [
        event("c", 1, 100, 0),
        event("c", 2, 200, 1, "-2.00"),
        event("u", 1, 300, 2, "3.00", note="注文"),
        event("c", 3, 400, 3),
        event("d", 3, 500, 4),
        {**event("d", 3, 0, 5), "value": None},
        event("c", 4, 600, 6, "4.00"),
    ]


def second_batch() -> list[Record]:
    return [event("u", 4, 700, 7, "5.00"), event("c", 5, 800, 8, "6.00")]


def written(records: list[Record], registry: RegistryServer, *, every: int = 1) -> list[Record]:
    """These records in Avro, or `every` so many of them alone; the last with a schema of its own."""
    number_of = registry.registered.number_of
    last = len(records) - 1
    return [
        in_avro(one, number_of, NEWER if number == last else OLDER) if number % every == 0 else one
        for number, one in enumerate(records)
    ]


def test_records_in_avro_and_in_json_become_the_same_rows(
    told: Told, registry: RegistryServer, empty_silver: Callable[[], Warehouse], tmp_path: Path
) -> None:
    in_json = Told(empty_silver(), told.contracts, tmp_path, None)
    told.tell(*written(first_batch(), registry, every=2))
    in_json.tell(*first_batch())
    assert told.silver() == in_json.silver()
    assert told.reasons() == in_json.reasons() == {1: [f"total_amount: {AMOUNT.description}"]}
    assert told.stored() == registry.registered.schemas
    address = told.warehouse.address
    assert kept_schemas(DeltaFiles(address)) == kept_schemas(SparkTables(told.warehouse)) == told.stored()
    assert registry.asked == dict.fromkeys(registry.registered.schemas, 1)
    assert len(registry.asked) == 3
    told.tell(*written(second_batch(), registry))
    in_json.tell(*second_batch())
    assert told.silver() == in_json.silver()
    told.begin()
    told.tell(*written([event("u", 5, 900, 9, "7.00")], registry))
    in_json.tell(event("u", 5, 900, 9, "7.00"))
    assert told.silver() == in_json.silver()
    assert registry.asked.total() == 3, "neither the second batch nor another process asks for what is known"
    assert not in_json.warehouse.exists(SCHEMAS.name)


def test_a_batch_waits_for_a_registry_that_is_gone(told: Told, registry: RegistryServer) -> None:
    registry.is_on = False
    rows = told.rows(*written(first_batch(), registry))
    with pytest.raises(RegistryGoneError, match=r"does not answer \(HTTP 503\)"):
        told.apply(rows)
    assert told.silver() == []
    assert told.reasons() == {}
    assert batches(told.warehouse, "silver").count() == 0
    assert not told.warehouse.exists(SCHEMAS.name)
    registry.is_on = True
    told.apply(rows)
    assert len(told.silver()) == 3
    assert [*told.reasons()] == [1]
    assert told.stored() == registry.registered.schemas


def test_an_id_that_the_registry_does_not_have_stops_its_record_alone(told: Told, registry: RegistryServer) -> None:
    known = written(first_batch(), registry)
    later: dict[str, int] = {}
    strange = in_avro(event("c", 9, 950, 10), lambda text: later.setdefault(text, 900 + len(later)))
    strange = {**strange, "key": in_avro(event("c", 9, 950, 10), registry.registered.number_of)["key"]}
    told.tell(*known, strange)
    (number,) = [number for text, number in later.items() if "Envelope" in text]
    told.job.schemas.learn(told.warehouse, [2**31])
    assert 2**31 not in registry.asked, "no registry has such ids"
    absent = f"The value names schema {number}, which the registry does not have."
    assert told.reasons()[10] == [absent]
    before = told.silver()
    assert number not in told.stored()
    chosen = F.col("offset") == 10
    entry = told.warehouse.read(QUARANTINE.name).where(chosen)
    registry.registered.schemas[number] = RegisteredSchema("AVRO", json.dumps(OLDER))
    # The same process asks again.
    again = judged_again(told.warehouse, told.contracts, entry, "retried", known=told.job.schemas)
    assert again == {FEED: {"pass": 1}}
    told.begin()
    ask(told.warehouse, Request("retried", "a person", "a test", uuid4().hex), chosen=chosen)
    assert carry_out(told.warehouse, told.job) == {FEED: {"applied": 1}}
    assert len(told.silver()) == len(before) + 1
    assert 10 not in told.reasons()
    assert told.stored() == registry.registered.schemas


def test_a_requeue_learns_schemas_and_waits_for_the_registry(told: Told, registry: RegistryServer) -> None:
    without = Told(told.warehouse, told.contracts, told.folder, None)
    # With a key that can be read among them, the table is not suspended.
    without.tell(*written(second_batch(), registry), event("c", 6, 900, 9))
    assert without.reasons() == {7: [NOT_NAMED.replace("value", "key")], 8: [NOT_NAMED.replace("value", "key")]}
    ask(told.warehouse, Request("retried", "a person", "a test", uuid4().hex), chosen=F.col("state") == "open")
    told.begin(registry.connection)
    registry.is_on = False
    with pytest.raises(RegistryGoneError):
        carry_out(told.warehouse, told.job)
    assert len(told.silver()) == 1
    registry.is_on = True
    assert carry_out(told.warehouse, told.job) == {FEED: {"applied": 2}}
    assert len(told.silver()) == 3


def test_without_a_registry_avro_waits_in_quarantine(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path, registry: RegistryServer
) -> None:
    told = Told(empty_silver(), with_gate(contracts, AMOUNT), tmp_path, None)
    with_text = {**event("c", 1, 100, 0), "value": written([event("c", 1, 100, 0)], registry)[0]["value"]}
    told.tell(with_text, event("c", 2, 200, 1))
    assert told.reasons() == {0: [NOT_NAMED]}
    assert len(told.silver()) == 1
    assert not told.warehouse.exists(SCHEMAS.name)


def test_an_unknown_id_without_a_registry_stops_where_schemas_are_kept(told: Told, registry: RegistryServer) -> None:
    """Once it was read from a registry: that none is named now is a mistake, and no record is put aside for it."""
    told.tell(*written(first_batch(), registry)[:-1])
    before, reasons = told.silver(), told.reasons()
    without = Told(told.warehouse, told.contracts, told.folder, None, batch=told.batch)
    without.tell(*[in_avro(one, registry.registered.number_of) for one in second_batch()])
    known = without.silver()
    assert len(known) == len(before) + 2, "what is kept needs no registry"
    newer = written([event("c", 6, 900, 9)], registry)
    with pytest.raises(RegistryError, match="which this warehouse does not have; no schema registry is named") as error:
        without.tell(*newer)
    assert not isinstance(error.value, RegistryGoneError)
    assert (without.silver(), without.reasons()) == (known, reasons)
    assert batches(told.warehouse, "silver").where(f"batch = {without.batch}").count() == 0


def test_a_run_says_that_it_waits_and_a_rebuild_needs_no_registry(
    empty_silver: Callable[[], Warehouse],
    contracts: Contracts,
    tmp_path: Path,
    registry: RegistryServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warehouse = empty_silver()
    gated = with_gate(contracts, AMOUNT)
    for source in contracts.topics.sources:
        warehouse.ensure(events_table(source))
    chosen = Settings(warehouse.location, warehouse.checkpoints, kafka_config=registry.kafka_config(tmp_path))
    Told(warehouse, gated, tmp_path, None).rows(*written([*first_batch(), *second_batch()], registry))
    said: list[str] = []

    def note(sentence: str) -> None:
        said.append(sentence)
        registry.is_on = len(said) == 2

    registry.is_on = False
    policy = RetryPolicy("silver", note, waits=(0, 0))
    apply.run(warehouse.spark, chosen, gated, run_id="first", retry_policy=policy)
    assert said == [
        f"silver mysql: the schema registry at {registry.url} does not answer; trying again in 0 s ({number} of 2)"
        for number in (1, 2)
    ]
    rows = rows_of(warehouse)
    assert len(rows) == 4
    said.clear()
    # From here on it is gone for good.
    registry.is_on = False
    Told(warehouse, gated, tmp_path, None).rows(*written([event("c", 7, 900, 9)], registry)[:1])
    registry.registered.schemas.clear()
    shutil.rmtree(Path(warehouse.location) / "silver" / FEED)
    apply.run(warehouse.spark, chosen, gated, run_id="second")
    assert [row for row in rows_of(warehouse) if row[0] != 7] == rows
    assert len(rows_of(warehouse)) == 5
    # A process that goes on reads them once.
    state_caches: dict[str, StateCache] = {}
    apply.run(warehouse.spark, chosen, gated, run_id="third", state_caches=state_caches)
    monkeypatch.setattr(apply, "schemas", lambda *_given: pytest.fail("the schemas were read again"))
    apply.run(warehouse.spark, chosen, gated, run_id="fourth", state_caches=state_caches)


def test_a_run_ends_with_the_error_of_a_registry_that_stays_gone(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path, registry: RegistryServer
) -> None:
    warehouse = empty_silver()
    for source in contracts.topics.sources:
        warehouse.ensure(events_table(source))
    Told(warehouse, contracts, tmp_path, None).rows(*written(second_batch(), registry))
    registry.is_on = False
    chosen = Settings(warehouse.location, warehouse.checkpoints, kafka_config=registry.kafka_config(tmp_path))
    said: list[str] = []
    with pytest.raises(RegistryGoneError, match="does not answer") as error:
        apply.run(
            warehouse.spark, chosen, contracts, run_id="r", retry_policy=RetryPolicy("silver", said.append, waits=(0,))
        )
    assert error.value.servers == registry.url
    assert len(said) == 1
    assert rows_of(warehouse) == []


def test_what_is_known_costs_no_job(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path: Path, registry: RegistryServer
) -> None:
    counted = []
    for connection in (None, registry.connection):
        told = Told(empty_silver(), with_gate(contracts, AMOUNT), tmp_path, connection)
        batches_told = [first_batch(), second_batch()]
        for number, records in enumerate(batches_told):
            rows = told.rows(*(records if connection is None else written(records, registry))).cache()
            rows.count()
            before = jobs(told.warehouse.spark)
            told.apply(rows)
            if number:
                counted.append(jobs(told.warehouse.spark) - before)
            rows.unpersist()
    without, with_registry = counted
    assert with_registry == without
