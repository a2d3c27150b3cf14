"""`lakehouse verify` names what was dropped, doubled or never read, exactly that, and nothing in a sound warehouse."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from bronze.batches import Planned, planned_of, write_down_batch
from bronze.events import events_table
from bronze.source_state import OffsetMove, write_down
from cli.main import main
from cli.tables import verify, verify_messages
from cli.tables.accounts import account_of, audit_now
from demo.__main__ import DATA
from gold import build
from lakehouse.batches import BATCHES, batches
from lakehouse.config import settings
from lakehouse.contracts.models import Contracts
from lakehouse.delta.tables import Warehouse, inline_rows
from lakehouse.errors import TableError
from lakehouse.kafka.ranges import contiguous, overlaid
from silver.accounts.audit import begin_generations, finished, read_state
from silver.apply import compact_state
from silver.order.state import batch_name, writer_of
from tests.support.bronze import bronze_rows
from tests.support.gold import ungated
from tests.support.silver import apply

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EVENTS = "bronze.postgres_events"
ORDERS, HEARTBEATS = "postgres_prod_tables.public.orders", "__debezium-heartbeat.postgres_prod_tables"
TOPICS = {"pg.public.orders": ORDERS, "__debezium-heartbeat.pg": HEARTBEATS}
GAP = 50  # Kafka has given this offset of the orders to no record
Damage = Callable[[Warehouse, Contracts], None]


@pytest.fixture(scope="module")
def sound(
    empty_silver: Callable[[], Warehouse], contracts: Contracts, tmp_path_factory: pytest.TempPathFactory
) -> Warehouse:
    """Three batches of orders, with the first heartbeats, through bronze and silver."""
    warehouse = empty_silver()
    for number, (first, until) in enumerate([(0, 40), (40, 80), (80, 121)]):
        parts = [Planned(ORDERS, "first", 0, first, until)]
        read(warehouse, contracts, number, [*parts, Planned(HEARTBEATS, "first", 0, 0, 5)] if number == 0 else parts)
    return warehouse


@pytest.fixture
def copied(sound: Warehouse, tmp_path: Path) -> Warehouse:
    shutil.copytree(sound.location, tmp_path / "w")
    return Warehouse(sound.spark, str(tmp_path / "w"), str(tmp_path / "w" / "_checkpoints"))


def read(
    warehouse: Warehouse, contracts: Contracts, number: int, planned: list[Planned], *, silver: bool = True
) -> None:
    """One batch of bronze, a minute after the one before, and the same one of silver."""
    records = recorded(warehouse.spark, planned).withColumn(
        "_ingested_at", F.timestamp_seconds(F.lit(1_767_225_600 + 60 * number))
    )
    if silver:
        apply(warehouse, contracts, "postgres", records)
    else:
        warehouse.append(EVENTS, records)
    warehouse.ensure(BATCHES)
    write_down_batch(
        warehouse,
        warehouse.read(EVENTS),
        planned,
        batch={"source": "postgres", "checkpoint": "c", "batch": number, "sequence": number + 1},
        number=number,
        writer="test",
        some_were_there=False,
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def recorded(spark: SparkSession, planned: list[Planned]) -> DataFrame:
    rows = bronze_rows(spark, DATA / "pg_default.jsonl.gz", topics=TOPICS)
    is_planned = F.lit(False)
    for one in planned:
        is_in = (F.col("offset") >= one.from_offset) & (F.col("offset") < one.until_offset) & (F.col("offset") != GAP)
        is_planned = is_planned | ((F.col("topic") == one.topic) & is_in)
    return rows.where(is_planned)


def condense(warehouse: Warehouse) -> None:
    """As a run long after all batches does."""
    compact_state(warehouse, now=datetime.now(UTC) + timedelta(days=365))


def by_hand(warehouse: Warehouse, table: str, statement: str) -> None:
    warehouse.spark.sql(
        f"ALTER TABLE {warehouse.sql_name(table)} SET TBLPROPERTIES ('delta.appendOnly' = 'false')"
    ).collect()
    warehouse.spark.sql(statement.format(warehouse.sql_name(table))).collect()


def drop_one(warehouse: Warehouse, _contracts: Contracts) -> None:
    by_hand(warehouse, EVENTS, f"DELETE FROM {{}} WHERE topic = '{ORDERS}' AND offset = 7")


def double_one(warehouse: Warehouse, _contracts: Contracts) -> None:
    warehouse.append(EVENTS, warehouse.read(EVENTS).where((F.col("topic") == ORDERS) & (F.col("offset") == 90)))


def skip_some(warehouse: Warehouse, contracts: Contracts) -> None:
    """The next batch of heartbeats begins three offsets too late."""
    read(warehouse, contracts, 3, [Planned(HEARTBEATS, "first", 0, 8, 15)])


def pass_over_some(warehouse: Warehouse, _contracts: Contracts) -> None:
    by_hand(warehouse, "ops.batches", f"DELETE FROM {{}} WHERE layer = 'silver' AND topic = '{ORDERS}' AND batch = 1")


def count_some_twice(warehouse: Warehouse, _contracts: Contracts) -> None:
    again = batches(warehouse, "silver").where((F.col("topic") == ORDERS) & (F.col("batch") == 1))
    warehouse.append("ops.batches", again.withColumn("batch", F.lit(9).cast("bigint")))


def lose_an_outcome(warehouse: Warehouse, _contracts: Contracts) -> None:
    by_hand(warehouse, "ops.batches", f"UPDATE {{}} SET ignored = ignored - 1 WHERE topic = '{HEARTBEATS}'")


def read_too_few(warehouse: Warehouse, _contracts: Contracts) -> None:
    by_hand(warehouse, "ops.batches", f"UPDATE {{}} SET read = 4, ignored = 4 WHERE topic = '{HEARTBEATS}'")


def drop_before_silver_reads(warehouse: Warehouse, contracts: Contracts) -> None:
    """A batch with a gap at its end that nothing tells from the record that was dropped."""
    read(warehouse, contracts, 3, [Planned(HEARTBEATS, "first", 0, 5, 18)], silver=False)
    by_hand(warehouse, EVENTS, f"DELETE FROM {{}} WHERE topic = '{HEARTBEATS}' AND offset = 9")


DAMAGES: dict[Damage, tuple[str, str]] = {
    drop_one: ("missing", f"topic {ORDERS}, partition 0: offset 7 was read, and is not in {EVENTS} any more."),
    double_one: ("stored_twice", f"topic {ORDERS}, partition 0: offset 90 is in {EVENTS} more than once."),
    skip_some: (
        "never_read",
        f"topic {HEARTBEATS}, partition 0: offsets 5 to 7 were never read: between two batches of bronze, "
        "and not skipped by command.",
    ),
    pass_over_some: (
        "not_counted",
        f"topic {ORDERS}, partition 0: offsets 40 to 49 are in bronze, and silver has passed over them.",
    ),
    count_some_twice: (
        "counted_twice",
        f"topic {ORDERS}, partition 0: offsets 40 to 49 were counted by more than one batch of silver.",
    ),
    lose_an_outcome: (
        "unbalanced",
        f"topic {HEARTBEATS}, partition 0: batch 0 of silver, offsets 0 to 4, read 5 records and accounts for 4.",
    ),
    read_too_few: (
        "read_otherwise",
        f"topic {HEARTBEATS}, partition 0: batch 0 of silver, offsets 0 to 4, read 4 records where there are 5.",
    ),
    drop_before_silver_reads: (
        "missing",
        f"topic {HEARTBEATS}, partition 0: 1 of the offsets 9 to 17 was read, and is not in {EVENTS} any more.",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_each_damage_is_named_alone(copied: Warehouse, contracts: Contracts, damage: Damage) -> None:
    damage(copied, contracts)
    account = account_of(copied, "postgres")
    kind, sentence = DAMAGES[damage]
    assert set(account.findings) - {"pending"} == {kind}
    said = verify_messages.sentences(account)
    assert said[0] == sentence
    assert said[1 if account.findings[kind].number == 1 else 2].startswith("  Next: ")
    # Of what is damaged in a batch with a gap, the two sides of the gap.
    assert account.findings[kind].number == (2 if "40 to 49" in sentence else 1)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_each_damage_is_found_where_old_batches_are_one_row(
    copied: Warehouse, contracts: Contracts, damage: Damage
) -> None:
    damage(copied, contracts)
    before = account_of(copied, "postgres")
    condense(copied)
    account = account_of(copied, "postgres")
    assert {kind: found.records for kind, found in account.findings.items()} == {
        kind: found.records for kind, found in before.findings.items()
    }
    assert account.topic_partitions == before.topic_partitions


def test_silver_goes_on_behind_batches_that_are_one_row(copied: Warehouse, contracts: Contracts) -> None:
    """It knows what it knew, and what was condensed once is condensed again with what came since."""
    known, rows = read_state(copied, "postgres"), batches(copied, "silver").count()
    name = batch_name(writer_of("postgres", known.generation), 1)
    condense(copied)
    assert read_state(copied, "postgres") == known
    assert finished(copied, {name}) == {name}
    few = batches(copied, "silver").count()
    assert few < rows
    read(copied, contracts, 3, [Planned(HEARTBEATS, "first", 0, 5, 18)])
    account = account_of(copied, "postgres")
    assert account.findings == {}
    condense(copied)
    assert batches(copied, "silver").count() == few
    assert account_of(copied, "postgres").topic_partitions == account.topic_partitions
    (plan,) = planned_of(batches(copied, "bronze")).where(F.col("topic") == HEARTBEATS).collect()
    assert (plan["from_offset"], plan["until_offset"]) == (0, 18)


def test_several_damages_are_each_named(
    copied: Warehouse, contracts: Contracts, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for damage in (drop_one, double_one, skip_some):
        damage(copied, contracts)
    code, answer = verified(copied, capsys, monkeypatch)
    assert (code, answer["ok"], answer["exit_code"]) == (8, False, 8)
    found = answer["sources"]["postgres"]["findings"]
    offsets = {kind: [(one["first"], one["last"]) for one in of_kind["shown"]] for kind, of_kind in found.items()}
    assert offsets == {"missing": [(7, 7)], "stored_twice": [(90, 90)], "never_read": [(5, 7)]}
    assert "3 records" in answer["errors"][0]["what"]


def test_a_sound_warehouse_has_nothing_to_say(
    sound: Warehouse, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, answer = verified(sound, capsys, monkeypatch)
    assert (code, answer["ok"], answer["sources"]["postgres"]["findings"]) == (0, True, {})
    partitions = {
        topic_partition["topic"]: topic_partition for topic_partition in answer["sources"]["postgres"]["partitions"]
    }
    assert {topic: topic_partition["read"] for topic, topic_partition in partitions.items()} == {
        ORDERS: 120,
        HEARTBEATS: 5,
    }
    assert partitions[HEARTBEATS]["ignored"] == 5
    code, text = verified(sound, capsys, monkeypatch, as_json=False)
    assert code == 0
    assert "Source postgres: every record that was read is accounted for, once." in text


def test_what_waits_and_what_was_skipped_by_command_is_told(
    copied: Warehouse, contracts: Contracts, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_down(copied, [OffsetMove("postgres", 1, HEARTBEATS, "first", 0, 5, 8, "of no use")])
    read(copied, contracts, 3, [Planned(HEARTBEATS, "first", 0, 8, 15)], silver=False)
    code, answer = verified(copied, capsys, monkeypatch)
    assert code == 0
    assert answer["sources"]["postgres"]["sentences"] == [
        f"topic {HEARTBEATS}, partition 0: offsets 5 to 7 were skipped by command (ops.batches says why).",
        "7 records of bronze are pending for silver. Next: lakehouse silver",
    ]


def test_a_second_pass_of_silver_is_counted_alone(copied: Warehouse) -> None:
    """Silver was made anew: the batch audit has both passes, and the generation tells them apart."""
    audit = batches(copied, "silver")
    anew = audit.withColumns({"generation": F.lit("anew"), "sequence": F.col("sequence") + 100})
    copied.append("ops.batches", anew.where("batch < 2"))
    assert {row["generation"] for row in audit_now(copied, "postgres").collect()} == {"anew"}, "it wrote last"
    account = account_of(copied, "postgres")
    assert {kind: found.records for kind, found in account.findings.items()} == {"pending": 41}
    begin_generations(copied, {"postgres": read_state(copied, "postgres")})
    assert {kind: found.records for kind, found in account_of(copied, "postgres").findings.items()} == {"pending": 125}


def test_a_long_list_is_cut_and_counted(copied: Warehouse) -> None:
    by_hand(copied, EVENTS, f"DELETE FROM {{}} WHERE topic = '{ORDERS}' AND offset % 2 = 0")
    account = account_of(copied, "postgres")
    missing = account.findings["missing"]
    assert (missing.number, missing.records, len(missing.shown)) == (60, 60, 20)
    assert "… and 40 more: 60 records in all." in verify_messages.sentences(account)


def test_a_gap_of_kafka_is_no_hole_where_a_batch_was_never_ended(copied: Warehouse) -> None:
    """The source was moved after a crash: bronze has the batch's records, and its plan was not written down."""
    by_hand(copied, BATCHES.name, f"DELETE FROM {{}} WHERE layer = 'bronze' AND topic = '{ORDERS}' AND batch = 1")
    assert account_of(copied, "postgres").findings == {}


def test_a_source_that_was_never_read_has_no_table(copied: Warehouse) -> None:
    with pytest.raises(TableError, match=r"There is no table bronze\.mysql_events"):
        account_of(copied, "mysql")


def test_rows_become_ranges_whatever_is_there_twice(spark: SparkSession) -> None:
    topic_partition = {"topic": "t", "topic_id": "", "partition": 0}
    offsets = [0, 1, 1, 2, 5, 999_999, 1_000_000]
    columns = "topic STRING, topic_id STRING, partition INT, offset BIGINT, ingested_at TIMESTAMP"
    rows = inline_rows(spark, [{**topic_partition, "offset": offset} for offset in offsets], columns)
    over = overlaid({"stored": contiguous(rows)}).where("stored > 0").orderBy("first").collect()
    found = [(row["first"], row["last"], row["stored"]) for row in over]
    assert found == [(0, 0, 1), (1, 1, 2), (2, 2, 1), (5, 5, 1), (999_999, 999_999, 1), (1_000_000, 1_000_000, 1)]


@pytest.mark.parametrize("table", ["gold.unified_orders", "gold.orders_daily"])
def test_a_table_of_gold_whose_file_is_gone_could_not_be_compared(
    copied: Warehouse,
    contracts: Contracts,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    table: str,
) -> None:
    copied.ensure(events_table("mysql"))
    chosen = settings(warehouse=copied.location, checkpoints=copied.checkpoints)
    build.run(copied.spark, chosen, ungated(contracts), run_id="gold")
    code, answer = verified(copied, capsys, monkeypatch, of="all")
    assert (code, answer["errors"]) == (0, [])
    assert [(one["table"], one["differing"], one["why_not"]) for one in answer["gold"]] == [
        ("gold.unified_orders", 0, None),
        ("gold.orders_daily", 0, None),
    ]
    assert answer["gold"][0]["rows"] > 0
    for file in copied.read(table).inputFiles():
        Path(re.sub(r"^file:(//)?(?=/)", "", file)).unlink()
    copied.spark.catalog.clearCache()
    code, answer = verified(copied, capsys, monkeypatch, of="all")
    assert (code, answer["ok"]) == (5, False)
    assert all(f"a file of {table} is not there any more" in error["what"] for error in answer["errors"])
    # Every other comparison was made.
    assert set(answer["sources"]) == {"postgres", "mysql"}
    build.run(copied.spark, chosen, ungated(contracts), run_id="again", full_refresh=True)
    assert verified(copied, capsys, monkeypatch, of="all")[0] == 0


def test_gold_that_another_hand_has_changed_is_named(
    copied: Warehouse, contracts: Contracts, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied.ensure(events_table("mysql"))
    chosen = settings(warehouse=copied.location, checkpoints=copied.checkpoints)
    build.run(copied.spark, chosen, ungated(contracts), run_id="gold")
    (row,) = copied.read("gold.unified_orders").limit(1).collect()
    copied.delta("gold.unified_orders").delete(f"composite_key = '{row['composite_key']}'")
    code, answer = verified(copied, capsys, monkeypatch, of="all")
    assert code == 8
    assert [error["what"] for error in answer["errors"]] == [
        "gold.unified_orders is not what the tables that it is computed from give, in 1 key."
    ]


def verified(
    warehouse: Warehouse,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    as_json: bool = True,
    of: str = "postgres",
) -> tuple[int, Any]:
    """Exit code and answer of the command."""
    monkeypatch.setattr(verify, "opened", lambda _chosen, _steps: warehouse)
    given = ["verify", "--warehouse", warehouse.location, *([] if of == "all" else ["--source", of])]
    code = 0
    try:
        main([*given, "--json"] if as_json else given)
    except SystemExit as end:
        code = int(end.code or 0)
    out = capsys.readouterr().out
    return code, json.loads(out) if as_json else out
