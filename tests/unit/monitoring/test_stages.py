"""How bad what was seen of each stage is: at every limit, and for every way to stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from lakehouse.contracts.files import load_contracts
from lakehouse.errors import ConnectError, KafkaError
from lakehouse.kafka.offsets import Ends
from monitoring.model import STAGES, Headroom, LevelOrUnknown, Stage, StageName
from monitoring.readings.databases import Database
from monitoring.readings.freshness import Reads
from monitoring.readings.running import Running
from monitoring.readings.topics import SourceTopics
from monitoring.readings.warehouse import Behind
from monitoring.stages import (
    Observations,
    bronze_stage,
    connect_stage,
    database_stage,
    headroom_of,
    stages_of,
    table_stage,
    topics_stage,
)
from monitoring.units import duration
from tests.unit.monitoring.scenes import (
    BEATS,
    NOW,
    ORDERS,
    OUTBOX,
    binlog,
    database,
    mysql,
    postgres,
    running,
    sent,
    slot,
    topics,
)

LIMITS = load_contracts().thresholds
HOUR = 3600.0


def seen(
    runs: Sequence[Running] = (),
    source_topics: SourceTopics | None = None,
    **given: Any,
) -> Observations:
    """What was seen of the source `postgres`."""
    return Observations(
        now=NOW,
        limits=LIMITS,
        running={"postgres": runs},
        topics={} if source_topics is None else {"postgres": source_topics},
        **given,
    )


def of_database(*databases: Database) -> Stage:
    return database_stage(seen([running(postgres(), one) for one in databases]), "postgres")


def of_connect(*runs: Running, source_topics: SourceTopics | None = None) -> Stage:
    return connect_stage(seen(runs, source_topics, asked_connect=True), "postgres")


# The database.


@pytest.mark.parametrize("runs", [[], [running(postgres())]])
def test_a_database_without_a_connector_was_not_looked_at(runs: list[Running]) -> None:
    stage = database_stage(seen(runs), "postgres")
    assert (stage.level, stage.lag_bytes) == ("unknown", None)
    assert "--connect-url" in stage.what


def test_a_database_whose_password_is_unknown_was_not_looked_at() -> None:
    unasked = database(unasked="The variable PASSWORD is not set here.")
    assert of_database(unasked) == Stage(
        "postgres", "database", "unknown", what="The variable PASSWORD is not set here."
    )
    stage = of_database(unasked, database(slot=slot()))
    assert (stage.level, stage.what, stage.lag_bytes) == ("ok", "slot orders is active", 500)


def test_a_database_that_is_well_says_its_slots_and_its_binlog() -> None:
    stage = of_database(database(slot=slot()), database(slot=slot()), database(binlog=binlog()))
    assert stage == Stage(
        "postgres", "database", "ok", lag_bytes=1_070, what="slot orders is active; binlog bin.000002"
    )


def test_a_database_without_a_slot_and_a_binlog_has_nothing_to_say() -> None:
    assert of_database(database()) == Stage("postgres", "database", "ok", lag_bytes=0)


@pytest.mark.parametrize(
    ("one", "level", "what"),
    [
        (database(trouble="db:5432 does not answer."), "critical", "db:5432 does not answer."),
        (database(slot=slot(exists=False)), "critical", "slot orders does not exist"),
        (database(slot=slot(wal_status="lost")), "critical", "slot orders has lost WAL"),
        (database(slot=slot(active=False)), "warning", "slot orders is not active"),
        (database(slot=slot(lag_bytes=99_999_999)), "ok", "slot orders is active"),
        (database(slot=slot(lag_bytes=100_000_000)), "warning", "slot orders keeps 100,000,000 bytes of WAL"),
        (database(slot=slot(lag_bytes=1_000_000_000)), "critical", "slot orders keeps 1,000,000,000 bytes of WAL"),
        (
            database(slot=slot(active=False, lag_bytes=2_000_000_000)),
            "critical",
            "slot orders keeps 2,000,000,000 bytes of WAL",
        ),
        (database(slot=slot(wal_status="unreserved")), "ok", "slot orders is active"),
        (
            database(connector="orders-mysql", binlog=binlog(file="bin.000000", has_file=False)),
            "critical",
            "orders-mysql: its binlog file bin.000000 is purged",
        ),
        (database(binlog=binlog(file=None)), "ok", "binlog bin.000002"),
        (database(binlog=binlog(files=())), "ok", ""),
    ],
)
def test_what_is_wrong_with_a_database(one: Database, level: LevelOrUnknown, what: str) -> None:
    stage = of_database(one)
    assert (stage.level, stage.what) == (level, what)
    assert bool(stage.hint) == (level != "ok")


def test_the_worst_of_several_databases_counts() -> None:
    stage = of_database(database(slot=slot(active=False)), database(slot=slot(name="other", exists=False)))
    assert (stage.level, stage.what) == ("critical", "slot other does not exist")


# Kafka Connect.


def test_connectors_were_not_looked_at_without_an_address() -> None:
    stage = connect_stage(seen(), "postgres")
    assert (stage.level, stage.what) == ("unknown", "not looked at: pass --connect-url")


def test_a_cluster_that_does_not_answer_is_critical() -> None:
    error = ConnectError("Kafka Connect does not answer.", hint="Start a worker.")
    stage = connect_stage(seen(asked_connect=True, troubles={"connect": error}), "postgres")
    assert (stage.level, stage.what, stage.hint) == ("critical", "Kafka Connect does not answer.", "Start a worker.")


def test_a_source_without_a_connector_is_critical() -> None:
    stage = of_connect()
    assert (stage.level, stage.what) == ("critical", "no connector writes to its topics")
    assert "connect deploy" in stage.hint


@pytest.mark.parametrize(
    ("one", "what", "hint"),
    [
        (
            running(postgres(), tasks=("FAILED",), trace="PSQLException: the slot is active\nat x"),
            "orders-postgres has failed: PSQLException: the slot is active",
            "lakehouse connect restart orders-postgres",
        ),
        (running(postgres(), state="FAILED"), "orders-postgres has failed: ", "connect restart orders-postgres"),
        (running(postgres(), state="PAUSED", tasks=("PAUSED",)), "orders-postgres is PAUSED", "connect resume orders"),
        (running(postgres(), state="STOPPED", tasks=()), "orders-postgres is STOPPED", "connect resume orders"),
        (running(postgres(), state="", tasks=()), "orders-postgres is unassigned", "connect resume orders"),
    ],
)
def test_a_connector_that_does_not_run_is_critical(one: Running, what: str, hint: str) -> None:
    stage = of_connect(running(mysql()), one, source_topics=topics())
    assert (stage.level, stage.what, stage.lag_seconds) == ("critical", what, None)
    assert hint in stage.hint


def test_connectors_that_run_are_well_where_the_broker_is_unknown() -> None:
    stage = of_connect(running(postgres()), running(postgres("outbox")))
    assert stage == Stage("postgres", "connect", "ok", what="running: orders-postgres, outbox")


def test_a_source_that_is_idle_and_sends_heartbeats_is_not_late() -> None:
    idle = topics(last={ORDERS: sent(5 * HOUR, delay=40), BEATS: sent(4)})
    stage = of_connect(running(postgres()), source_topics=idle)
    assert (stage.level, stage.lag_seconds) == ("ok", 0.0)


@pytest.mark.parametrize(
    ("seconds", "level"), [(59, "ok"), (60, "warning"), (299, "warning"), (300, "critical"), (9 * HOUR, "critical")]
)
def test_a_source_without_heartbeats_has_stopped(seconds: float, level: LevelOrUnknown) -> None:
    stopped = topics(last={ORDERS: sent(seconds + 5, delay=0.1), BEATS: sent(seconds)})
    stage = of_connect(running(postgres()), source_topics=stopped)
    assert stage.level == level
    if level != "ok":
        assert stage.lag_seconds == seconds
        assert f"no heartbeat for {duration(seconds)}" in stage.what


def test_a_heartbeat_of_the_future_is_fresh() -> None:
    assert of_connect(running(postgres()), source_topics=topics(last={BEATS: sent(-30)})).level == "ok"


def test_a_source_without_any_heartbeat_is_not_judged_by_its_silence() -> None:
    silent = topics(last={ORDERS: sent(9 * HOUR, delay=1)})
    stage = of_connect(running(postgres()), source_topics=silent)
    assert (stage.level, stage.lag_seconds) == ("ok", 0.0)


@pytest.mark.parametrize(
    ("delay", "level", "what"),
    [
        (9.9, "ok", "running: orders-postgres"),
        (10, "warning", "runs 10 s behind the source"),
        (60, "critical", "runs 1 min behind the source"),
        (7_200, "critical", "runs 2 h behind the source"),
    ],
)
def test_a_connector_that_runs_can_be_behind(delay: float, level: LevelOrUnknown, what: str) -> None:
    late = topics(last={ORDERS: sent(1, delay=delay), OUTBOX: sent(1, delay=0.2), BEATS: sent(1)})
    stage = of_connect(running(postgres()), source_topics=late)
    assert (stage.level, stage.lag_seconds, stage.what) == (level, delay, what)


# The topics.


def test_topics_were_not_looked_at_without_a_broker() -> None:
    stage = topics_stage(seen(), "postgres")
    assert stage.level == "unknown"
    assert "--bootstrap-servers" in stage.what


def test_a_broker_that_does_not_answer_is_critical() -> None:
    error = KafkaError("The broker does not answer.", hint="Start it.")
    stage = topics_stage(seen(troubles={"topics": error}), "postgres")
    assert stage == Stage("postgres", "topics", "critical", what="The broker does not answer.", hint="Start it.")


def test_absent_topics_are_critical_and_named() -> None:
    stage = topics_stage(seen((), topics(absent=("a.b.c", "d.e.f"), lost=[ORDERS])), "postgres")
    assert (stage.level, stage.what, stage.rate) == ("critical", "absent: a.b.c, d.e.f", 5.0)


def test_records_that_were_removed_before_they_were_read_are_critical() -> None:
    stage = topics_stage(seen((), topics(lost=[ORDERS])), "postgres")
    assert stage.level == "critical"
    assert stage.what == f"records of {ORDERS.topic}, partition 0, were removed before they were read"
    assert "lakehouse bronze" in stage.hint


def test_topics_that_are_well_have_a_rate() -> None:
    stage = topics_stage(seen((), topics(rate=2.5)), "postgres")
    assert stage == Stage("postgres", "topics", "ok", rate=2.5, what="2 partitions")


# Bronze, silver, gold and the unified topic.


def test_bronze_is_unknown_without_the_broker() -> None:
    assert bronze_stage(seen(), "postgres").level == "unknown"


LAGS: list[tuple[float, LevelOrUnknown]] = [
    *((0, "ok"), (1_799, "ok"), (1_800, "warning"), (3_599, "warning"), (3_600, "critical"), (90_000, "critical")),
]


@pytest.mark.parametrize(("seconds", "level"), LAGS)
def test_bronze_is_as_late_as_the_oldest_unread_record(seconds: float, level: LevelOrUnknown) -> None:
    behind = topics(unread={ORDERS: sent(seconds), OUTBOX: sent(0)}, unread_records=1_234)
    stage = bronze_stage(seen((), behind), "postgres")
    assert (stage.level, stage.lag_records, stage.lag_seconds) == (level, 1_234, seconds)
    assert stage.what == "1,234 pending"
    assert ("lakehouse bronze" in stage.hint) == (level != "ok")


def test_bronze_that_has_read_everything_is_not_late() -> None:
    stage = bronze_stage(seen((), topics()), "postgres")
    assert (stage.level, stage.lag_records, stage.lag_seconds, stage.what) == ("ok", 0, 0.0, "caught up")


LONG_AGO = sent(81_255_014)


@pytest.mark.parametrize(
    ("reads", "seconds", "level"),
    [
        # nothing is known of the past: the timestamp is all there is
        (None, 81_255_014.0, "critical"),
        # a run has begun two minutes ago, and has not come so far
        (Reads({"postgres": NOW - timedelta(minutes=2)}), 120.0, "ok"),
        (Reads({"postgres": NOW - timedelta(days=9)}), 9 * 86_400.0, "critical"),
        # the last run found the partition to end there, or before
        (
            Reads({"postgres": NOW - timedelta(days=9)}, {(ORDERS.topic, 0): ([40], [NOW - timedelta(hours=1)])}),
            *(HOUR, "critical"),
        ),
        # it found the record, and has left it: it is as late as it seems
        (
            Reads({"postgres": NOW - timedelta(days=9)}, {(ORDERS.topic, 0): ([41], [NOW - timedelta(hours=1)])}),
            *(9 * 86_400.0, "critical"),
        ),
    ],
)
def test_a_recording_is_not_late_before_it_could_be_read(
    reads: Reads | None, seconds: float, level: LevelOrUnknown
) -> None:
    behind = topics(unread={ORDERS: LONG_AGO}, unread_from={ORDERS: 40}, unread_records=7)
    stage = bronze_stage(seen((), behind, reads=reads), "postgres")
    assert (stage.level, stage.lag_records, stage.lag_seconds) == (level, 7, seconds)


def test_a_record_that_came_after_the_last_look_is_as_old_as_its_timestamp() -> None:
    reads = Reads({"postgres": NOW - timedelta(days=9)}, {(ORDERS.topic, 0): ([40], [NOW - timedelta(hours=1)])})
    behind = topics(unread={ORDERS: sent(60)}, unread_from={ORDERS: 40}, unread_records=7)
    assert bronze_stage(seen((), behind, reads=reads), "postgres").lag_seconds == 60.0


def test_the_partition_that_waits_longest_counts() -> None:
    reads = Reads({"postgres": NOW - timedelta(days=9)}, {(ORDERS.topic, 0): ([40], [NOW - timedelta(hours=1)])})
    unread = {ORDERS: LONG_AGO, OUTBOX: sent(7_200)}
    behind = topics(unread=unread, unread_from={ORDERS: 40, OUTBOX: 3}, unread_records=7)
    assert bronze_stage(seen((), behind, reads=reads), "postgres").lag_seconds == 7_200.0


def test_what_no_run_has_begun_to_read_has_no_age_and_a_next_step() -> None:
    behind = topics(unread={ORDERS: LONG_AGO}, unread_from={ORDERS: 0}, unread_records=1_200)
    stage = bronze_stage(seen((), behind, reads=Reads({"mysql": NOW})), "postgres")
    what = "1,200 pending; no run has read this source yet"
    assert stage == Stage("postgres", "bronze", "warning", 1_200, None, what=what, hint="lakehouse run")
    assert bronze_stage(seen((), topics(), reads=Reads()), "postgres").level == "ok"


def test_bronze_does_not_say_how_late_it_is_where_no_unread_record_was_seen() -> None:
    stage = bronze_stage(seen((), topics(unread_records=3)), "postgres")
    assert (stage.level, stage.lag_records, stage.lag_seconds) == ("ok", 3, 0.0)


@pytest.mark.parametrize(("seconds", "level"), LAGS)
@pytest.mark.parametrize(("name", "command"), [("silver", "silver"), ("gold", "gold"), ("topic", "publish")])
def test_a_table_is_as_late_as_what_it_has_not_taken(
    name: StageName, command: str, seconds: float, level: LevelOrUnknown
) -> None:
    behind: Mapping[str, Behind] = {"postgres": Behind(7, NOW - timedelta(seconds=seconds))}
    stage = table_stage(seen(), "postgres", name, behind)
    assert (stage.stage, stage.level, stage.lag_records, stage.lag_seconds) == (name, level, 7, seconds)
    assert stage.hint.endswith(f"lakehouse {command}") == (level != "ok")


@pytest.mark.parametrize("behind", [Behind(), Behind(0, NOW - timedelta(days=9))])
def test_a_table_that_has_taken_everything_is_not_late(behind: Behind) -> None:
    stage = table_stage(seen(), "postgres", "silver", {"postgres": behind})
    assert (stage.level, stage.lag_records, stage.lag_seconds) == ("ok", 0, 0.0)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("silver", "not known before the first run"),
        ("gold", "not known before the first run"),
        ("topic", "not known without the broker and gold"),
    ],
)
def test_a_table_of_which_nothing_is_known(name: StageName, what: str) -> None:
    assert table_stage(seen(), "postgres", name, {}) == Stage("postgres", name, "unknown", what=what)


def test_a_source_has_all_stages_in_the_order_of_the_flow() -> None:
    well = seen(
        [running(postgres(), database(slot=slot()))],
        topics(),
        asked_connect=True,
        silver={"postgres": Behind()},
        gold={"postgres": Behind()},
        topic={"postgres": Behind()},
    )
    stages = stages_of(well, "postgres")
    assert [stage.stage for stage in stages] == list(STAGES)
    assert {(stage.source, stage.level) for stage in stages} == {("postgres", "ok")}
    assert {stage.level for stage in stages_of(seen(), "postgres")} == {"unknown"}


# Whether it is caught up with in time.


def test_a_source_that_no_unified_orders_are_made_of_has_no_such_stages() -> None:
    error = KafkaError("the broker is gone", hint="start it")
    none = seen(without_orders={"postgres"}, gold={"postgres": Behind(3)}, troubles={"topic": error})
    gold, topic = stages_of(none, "postgres")[-2:]
    assert [(one.stage, one.level, one.lag_records, one.what) for one in (gold, topic)] == [
        ("gold", "unknown", None, "no unified orders are made of it"),
        ("topic", "unknown", None, "no unified orders are made of it"),
    ]


def room(one: Observations, drain: float | None = None) -> Headroom:
    return headroom_of(one, "postgres", drain=drain)


def test_nothing_pending_is_caught_up_with() -> None:
    assert room(seen()) == Headroom("postgres", None, None, 0.0)
    assert room(seen((), topics()), 80.0) == Headroom("postgres", 5.0, 80.0, 0.0)


def test_it_takes_the_pending_of_bronze_and_silver_to_catch_up() -> None:
    behind = topics(unread={ORDERS: sent(9)}, unread_records=300)
    found = room(seen((), behind, silver={"postgres": Behind(450, NOW)}), 80.0)
    assert (found.arrival, found.drain, found.catch_up_seconds) == (5.0, 80.0, 10.0)
    without_broker = room(seen(silver={"postgres": Behind(450, NOW)}), 90.0)
    assert (without_broker.arrival, without_broker.catch_up_seconds) == (None, 5.0)


@pytest.mark.parametrize("drain", [None, 0.0, 4.9, 5.0])
def test_it_is_never_caught_up_with_where_as_much_comes_as_is_taken(drain: float | None) -> None:
    behind = topics(unread={ORDERS: sent(9)}, unread_records=300)
    assert room(seen((), behind), drain).catch_up_seconds is None


def test_kafkas_retention_loses_what_was_not_read() -> None:
    behind = topics(
        ends={ORDERS: Ends(0, 10), OUTBOX: Ends(0, 10)},
        unread={ORDERS: sent(600), OUTBOX: sent(900)},
        unread_records=2,
        kept_ms={ORDERS.topic: 3_600_000, OUTBOX.topic: 3_600_000},
    )
    found = room(seen((), behind), 80.0)
    assert (found.lost_in_seconds, found.lost_by) == (2_700.0, "Kafka's retention")


def test_a_slots_limit_loses_what_was_not_read_while_it_is_not_active() -> None:
    limited = slot(active=False, safe_bytes=9_000, wal_rate=3.0)
    found = room(seen([running(postgres(), database(slot=limited))]))
    assert (found.lost_in_seconds, found.lost_by) == (3_000.0, "the limit of slot orders")
    active = slot(safe_bytes=9_000, wal_rate=3.0)
    assert room(seen([running(postgres(), database(slot=active))])).lost_in_seconds is None
    for endless in (slot(active=False, wal_rate=3.0), slot(active=False, safe_bytes=9, wal_rate=0.0)):
        assert room(seen([running(postgres(), database(slot=endless))])).lost_in_seconds is None
    past = slot(active=False, safe_bytes=-5, wal_rate=3.0)
    assert room(seen([running(postgres(), database(slot=past))])).lost_in_seconds == 0.0


def test_the_binlogs_expiry_loses_what_was_not_read() -> None:
    now = int(NOW.timestamp())
    old = binlog(file="bin.000001", connector_ts=now - 1_000, expire_seconds=4_000)
    found = room(seen([running(mysql(), database(binlog=old))]))
    assert (found.lost_in_seconds, found.lost_by) == (3_000.0, "the binlog's expiry")
    for kept in (
        binlog(connector_ts=now - 9_000, expire_seconds=4_000),
        binlog(file="bin.000001", expire_seconds=None),
        binlog(file="bin.000001", connector_ts=None),
        binlog(files=()),
    ):
        assert room(seen([running(mysql(), database(binlog=kept))])).lost_in_seconds is None


def test_what_loses_records_first_is_named() -> None:
    now = int(NOW.timestamp())
    behind = topics(unread={ORDERS: sent(600)}, unread_records=2, kept_ms={ORDERS.topic: 3_600_000})
    old = binlog(file="bin.000001", connector_ts=now - 1_000, expire_seconds=3_500)
    runs = [
        running(postgres()),
        running(postgres(), database(slot=slot(active=False, safe_bytes=9_000, wal_rate=3.5))),
        running(mysql(), database(binlog=old)),
    ]
    found = room(seen(runs, behind))
    assert (found.lost_in_seconds, found.lost_by) == (2_500.0, "the binlog's expiry")
