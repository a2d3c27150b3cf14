"""All stories told at once on the running stack, and what bronze and silver made of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from bronze import ingest
from connectors.cluster import State, settled
from demo.stack.database import Database
from demo.stack.offsets import delete_offsets, is_stopped, stop
from demo.stack.stack import Stack
from demo.stack.topics import json_event, wait_for
from lakehouse.config import settings
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse
from lakehouse.kafka.broker import partitions
from silver import apply
from tests.support.live import stories
from tests.support.live.connectors import PUBLICATION, VARIANTS, Config, Variant
from tests.support.live.contracts import contracts_of_stories, tables_of
from tests.support.live.dialects import FINISHED, MARIADB, MYSQL, POSTGRESQL, Dialect, insert

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_SECONDS = 90.0
PLACES: Mapping[str, Dialect] = {"live_postgres": POSTGRESQL, "live_mysql": MYSQL, "live_mariadb": MARIADB}
ALL = {source: tables_of(dialect) for source, dialect in PLACES.items()}


@dataclass
class Told:
    """The stack with the stories' databases by source, and the warehouse that follows them."""

    stack: Stack
    spark: SparkSession
    packaged: Contracts
    folder: Path
    finished: int = 0
    runs: int = 0

    @property
    def contracts(self) -> Contracts:
        """Of all sources."""
        return contracts_of_stories(self.packaged, ALL)

    @property
    def warehouse(self) -> Warehouse:
        """Where the tables are."""
        return Warehouse(self.spark, str(self.folder / "warehouse"), str(self.folder / "checkpoints"))

    @property
    def databases(self) -> Mapping[str, Database]:
        """The database of each source."""
        return dict(zip(PLACES, self.stack.databases, strict=True))

    def everywhere(self, tell: Callable[[Database, Dialect], None]) -> None:
        """Tell a part of the stories in every database."""
        for source, database in self.databases.items():
            tell(database, PLACES[source])

    def register(self, packaged: Mapping[str, Config]) -> None:
        """Create every connector."""
        for variant in VARIANTS:
            self.stack.connect.worker.put_config(variant.name, self._config(variant, packaged))

    def _config(self, variant: Variant, packaged: Mapping[str, Config]) -> Config:
        return variant.config(packaged[variant.packaged], self.stack.registry)

    def wait_until(self, is_so: Callable[[State], bool]) -> None:
        """Wait until this is true of every connector; fails with the state of one of which it is not."""

        def state_of(variant: Variant) -> State:
            return settled(self.stack.connect.worker, variant.name, seconds=PATIENCE_SECONDS, is_there=is_so)

        with ThreadPoolExecutor() as threads:
            for state in threads.map(state_of, VARIANTS):
                assert is_so(state), f"{state.connector}: {state.state}. {state.first_line}"

    def drain(self) -> None:
        """Wait until the connectors have told everything that was committed by now."""
        self.finished += 1
        number = self.finished
        for database in self.databases.values():
            database.execute(insert(FINISHED, [number]))
        for variant in VARIANTS:
            self.wait_for(variant, FINISHED, number)

    def wait_for(self, variant: Variant, table: str, order_id: int) -> None:
        """Wait until a connector has told of a row."""

        def is_it(event: Mapping[str, object]) -> bool:
            after = event.get("after")
            return isinstance(after, dict) and after["order_id"] == order_id

        self.wait_for_event(variant, table, is_it)

    def wait_for_event(self, variant: Variant, table: str, is_it: Callable[[Mapping[str, object]], bool]) -> None:
        """Wait until a connector has told of something in a table, in the way it writes."""
        event_of = self.stack.registry.event_of if variant.way == "avro" else json_event
        wait_for(self.stack.bootstrap_servers, variant.topic(table), is_it, event_of=event_of)

    def run(self, tables: Mapping[str, Sequence[str]]) -> None:
        """Bronze and silver of these tables of each source, as the jobs."""
        self.runs += 1
        contracts = contracts_of_stories(self.packaged, tables)
        chosen = settings(
            warehouse=str(self.folder / "warehouse"),
            checkpoints=str(self.folder / "checkpoints"),
            kafka_config=self._kafka_config(),
        )
        ingest.run(self.spark, chosen, contracts.topics, known=partitions(chosen.kafka()))
        apply.run(self.spark, chosen, contracts, run_id=f"run {self.runs}")

    def _kafka_config(self) -> Path:
        """The file that says where the broker is, and the registry with the schemas of Avro."""
        file = self.folder / "kafka.yaml"
        told = {
            "bootstrap_servers": self.stack.bootstrap_servers,
            "schema_registry": {"url": self.stack.registry.confluent_url},
        }
        file.write_text(yaml.safe_dump(told), encoding="utf-8")
        return file


def tell(told: Told, packaged: Mapping[str, Config]) -> None:
    """All stories from the beginning to the end."""
    postgresql = told.stack.postgresql
    told.everywhere(stories.before_the_snapshot)
    told.everywhere(lambda database, dialect: database.execute(dialect.grant))
    postgresql.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    with _open_transactions(told, packaged):
        told.wait_until(_runs)
        for variant in VARIANTS:
            told.wait_for(variant, "again", stories.ROWS["again"])
    told.everywhere(stories.streamed)
    told.drain()
    told.run({"live_postgres": ("life", *stories.LARGE)})
    stories.streamed_later(postgresql)
    _crash(told)
    _signal(told)
    _forget(told)
    told.drain()
    told.run(ALL)


@contextmanager
def _open_transactions(told: Told, packaged: Mapping[str, Config]) -> Iterator[None]:
    """The connectors start while transactions are open in every database."""
    slots = [variant.name for variant in VARIANTS if variant.source == "live_postgres"]

    def slots_begin() -> None:
        told.register(packaged)
        until(lambda: len(_slots(told.stack.postgresql, slots)) == len(slots))

    with ExitStack() as open_now:
        for source, database in told.databases.items():
            if source == "live_mysql":
                open_now.enter_context(stories.open_transactions(database, lambda: None))
        open_now.enter_context(stories.open_transactions(told.stack.postgresql, slots_begin))
        yield


def _slots(database: Database, names: list[str]) -> list[str]:
    there = database.rows("SELECT slot_name FROM pg_replication_slots")
    return [row["slot_name"] for row in there if row["slot_name"] in names]


def _crash(told: Told) -> None:
    """Kafka Connect dies while rows are written, and comes back while they still are."""
    with _busy(told, "crashed"):
        told.drain()
        told.stack.connect.kill()
        told.stack.connect.start()
        told.stack.connect.wait()
        told.wait_until(_runs)
    told.drain()


def _signal(told: Told) -> None:
    """An incremental snapshot while rows are written."""
    with _busy(told, "signalled"):
        for source, database in told.databases.items():
            if "signalled" in PLACES[source].stories:
                stories.signal_incremental_snapshot(database, PLACES[source], "signalled")
        for variant in VARIANTS:
            if "signalled" in variant.dialect.stories:
                told.wait_for_event(variant, "signalled", _is_last_of_the_increment)


def _is_last_of_the_increment(event: Mapping[str, object]) -> bool:
    source, after = event.get("source"), event.get("after")
    return (
        isinstance(source, dict)
        and source.get("snapshot") == "incremental"
        and isinstance(after, dict)
        and int(after["order_id"]) >= stories.LARGE_ROWS
    )


def _forget(told: Told) -> None:
    """The connectors stand still, forget where they were, and read everything once more."""
    worker = told.stack.connect.worker
    told.drain()
    for variant in VARIANTS:
        stop(worker, variant.name)
    told.wait_until(is_stopped)
    told.everywhere(lambda database, _dialect: stories.between_snapshots(database))
    for variant in VARIANTS:
        delete_offsets(worker, variant.name)
        worker.resume(variant.name)
    told.wait_until(_runs)
    for variant in VARIANTS:
        told.wait_for(variant, "again", 65)
    told.everywhere(lambda database, _dialect: stories.after_the_second_snapshot(database))


def _runs(state: State) -> bool:
    return state.state == "RUNNING" and state.is_unchanged and not state.has_failed


@contextmanager
def _busy(told: Told, table: str) -> Iterator[None]:
    with ExitStack() as writers:
        for source, database in told.databases.items():
            if table in PLACES[source].stories:
                writers.enter_context(stories.busy(database, table))
        yield


def until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until it is so; fails when it has not come to pass."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "It has not come to pass."
        time.sleep(0.2)
