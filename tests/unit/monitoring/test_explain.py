"""What `lakehouse explain` says of an order, by the events that bronze has of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from lakehouse.contracts.files import MODELS, load_contracts
from lakehouse.contracts.models import Contracts, GoldTables
from lakehouse.errors import SettingsError, TableError
from lakehouse.secrets import MASK
from monitoring import explain as explaining
from monitoring.explain import Explained, Explanation, as_json, explain
from tests.support.events import change, compact, order, postgres_image, postgres_source, run_headers
from tests.support.shared import TOPIC as SHARED_TOPIC
from tests.support.shared import of_customer, of_order, sharing
from tests.unit.monitoring.delta import (
    BATCHES,
    BRONZE,
    CHANGE_DATA,
    GOLD,
    NOON,
    QUARANTINE,
    SILVER,
    at,
    tables_in,
    write,
)

SOURCES = Path(__file__).parents[3] / "src"
CONTRACTS = load_contracts()
TOPIC, OUTBOX = "postgres_prod_tables.public.orders", "outbox.event.postgres.orders"


def stored(offset: int, key: object, value: str | None, *, run: str = "run-1", **given: Any) -> dict[str, Any]:
    """A record in bronze: a minute after the one before it."""
    headers = run_headers(run, source={"name": "postgres_prod_tables", "connector": "postgresql"}) if run else []
    return {
        **{"topic": TOPIC, "_topic_id": "id", "partition": 0, "offset": offset, "timestamp": at(offset)},
        **{"key": None if key is None else compact(key).encode(), "value": None if value is None else value.encode()},
        "headers": [{"key": name, "value": text.encode()} for name, text in headers],
        **given,
    }


def stated(op: str, offset: int, lsn: int, number: int = 7, *, run: str = "run-1", **columns: Any) -> dict[str, Any]:
    """A change of an order by the connector of its table."""
    source = postgres_source(lsn, last_commit=lsn, ts_ms=1_767_225_600_000 + lsn)
    row = postgres_image(order(number, **columns))
    text = change(op, source, None if op == "d" else row, before={"order_id": number} if op == "d" else None)
    return stored(offset, {"order_id": number}, text, run=run)


def life(*, deleted: bool) -> list[dict[str, Any]]:
    """A create, an update, the update again by the next run of the connector, and other orders between them."""
    events = [
        stated("c", 0, 100),
        stated("c", 1, 110, 77),
        stated("c", 2, 120, 17),
        stated("u", 3, 200, status="completed", note="secret words"),
        stated("u", 4, 200, status="completed", note="secret words", run="run-2"),
        stated("u", 5, 210, 71, note="7", run="run-2"),
    ]
    if deleted:
        events += [stated("d", 6, 300, run="run-2"), stored(7, {"order_id": 7}, None, run="")]
    return events


def explained(
    folder: Path, *events: Mapping[str, Any], contracts: Contracts = CONTRACTS, key: str = "PG-7"
) -> Explanation:
    """What is said of an order where bronze has these events, and silver has read them, unless it was written."""
    write(folder, "bronze.postgres_events", BRONZE, events)
    if not tables_in(folder).exists("ops.batches"):
        write(folder, "ops.batches", BATCHES, [read(topic) for topic in (TOPIC, OUTBOX, SHARED_TOPIC)])
    return explain(tables_in(folder), contracts, key)


def read(topic: str, last_offset: int = 1000) -> dict[str, Any]:
    """Silver has read the topic up to there."""
    source = {TOPIC: "postgres", OUTBOX: "postgres"}.get(topic, "mysql")
    place = {"source": source, "topic": topic, "topic_id": "id", "partition": 0}
    audit = {"layer": "silver", "generation": "one", "sequence": 0, "writer": "silver", "batch": 0, "written_at": NOON}
    return {**audit, **place, "last_offset": last_offset, "read": last_offset}


def outcomes(explanation: Explanation) -> list[tuple[int, str | None, str]]:
    return [(one.offset, one.op, one.outcome) for one in explanation.events]


def test_the_events_of_an_order_alone_have_outcomes(tmp_path: Path) -> None:
    found = explained(tmp_path, *life(deleted=False))
    assert (found.composite_key, found.source) == ("PG-7", "postgres")
    assert [(one.offset, one.op) for one in found.events] == [(0, "c"), (3, "u"), (4, "u")]
    assert [one.outcome for one in found.events] == ["superseded", "duplicate", "applied"]


def test_the_last_change_of_an_order_is_applied(tmp_path: Path) -> None:
    found = explained(tmp_path, stated("c", 0, 100), stated("u", 3, 200, status="completed"))
    assert outcomes(found) == [(0, "c", "superseded"), (3, "u", "applied")]
    first, last = found.events
    assert first.why == "A later change of its key has taken its place: offset 3."
    assert last.why == "It is the last word on its key, or on a column."
    assert (last.feed, last.topic, last.partition, last.at, last.kind) == ("postgres_orders", TOPIC, 0, at(3), "change")
    assert last.source_ts_ms == 1_767_225_600_200
    assert first.position is not None
    assert last.position is not None
    assert first.position < last.position
    assert last.values == {
        **{"order_id": "7", "customer_id": "7", "product_id": "70", "status": "completed", "total_amount": "10.00"},
        "created_at": last.values["created_at"],
    }


def test_a_delete_takes_the_place_of_what_came_before_and_its_tombstone_follows(tmp_path: Path) -> None:
    found = explained(tmp_path, *life(deleted=True))
    assert [(one.offset, one.kind) for one in found.events] == [
        *((0, "change"), (3, "change"), (4, "change"), (6, "change"), (7, "tombstone"))
    ]
    by_offset: Mapping[int, Explained] = {one.offset: one for one in found.events}
    assert {by_offset[offset].outcome for offset in (0, 3, 4)} == {"superseded"}
    assert by_offset[3].why == "A later change of its key has taken its place: offset 6."
    assert (by_offset[6].outcome, by_offset[6].values) == ("applied", {})
    assert by_offset[7].outcome == "tombstone"
    assert by_offset[7].why == "It follows the delete of its key, or deletes it."


def segment(run: str, first: int, last: int, *, lowest: int, highest: int, sequence: int) -> dict[str, Any]:
    """What silver remembers of a run of the connector in the topic-partition."""
    known = {
        **{"first_offset": first, "last_offset": last, "lowest": [lowest, lowest], "highest": [highest, highest]},
        **{"has_end": False, "first_ms": first, "source_names": ["postgres_prod_tables"], "last_is_delete": False},
        **{"with_unchanged_toast": 0, "judged": 1, "absent_columns": {"note": 1}},
    }
    return {
        **{"layer": "silver", "source": "postgres", "writer": "silver/postgres/one", "generation": "one"},
        **{"batch": sequence, "sequence": sequence, "written_at": NOON, "feed": "postgres_orders"},
        **{"topic": TOPIC, "topic_id": "id", "partition": 0, "run_id": run, "segment": known},
    }


def test_what_a_run_sends_again_of_an_earlier_one_is_a_duplicate(tmp_path: Path) -> None:
    write(
        tmp_path,
        "ops.batches",
        BATCHES,
        [
            segment("run-2", 4, 7, lowest=200, highest=300, sequence=2),
            segment("run-1", 0, 3, lowest=100, highest=200, sequence=1),
            read(TOPIC),
        ],
    )
    found = explained(tmp_path, *life(deleted=True))
    assert outcomes(found) == [
        *((0, "c", "superseded"), (3, "u", "superseded"), (4, "u", "duplicate"), (6, "d", "applied")),
        (7, None, "tombstone"),
    ]
    assert found.events[2].why == "Another record states the same change: it was sent twice."


def test_keys_with_a_schema_and_as_text_are_found(tmp_path: Path) -> None:
    with_schema = {"schema": {"type": "struct", "optional": False}, "payload": {"order_id": 7}}
    one = stated("c", 0, 100)
    found = explained(tmp_path, {**one, "key": compact(with_schema).encode()}, {**one, "offset": 1, "key": None})
    assert [event.offset for event in found.events] == [0]


def test_a_key_that_has_the_number_beside_its_own_is_another_one(tmp_path: Path) -> None:
    one = stated("c", 1, 110, 8)
    found = explained(tmp_path, stated("c", 0, 100), {**one, "key": compact({"order_id": 8, "line": 7}).encode()})
    assert [event.offset for event in found.events] == [0]


def test_what_states_no_row_is_ignored(tmp_path: Path) -> None:
    source = postgres_source(50, last_commit=50)
    message = compact({"op": "m", "source": source, "ts_ms": 1, "message": {"prefix": "7", "content": ""}})
    found = explained(tmp_path, stored(0, {"prefix": "7"}, message))
    assert [(one.kind, one.outcome, one.why) for one in found.events] == [("ignored", "ignored", "It changes no row.")]


def test_records_of_another_feed_that_shares_the_topic_are_not_of_the_order(tmp_path: Path) -> None:
    shared = sharing(CONTRACTS)
    sources = {"mysql": shared.gold.sources["mysql"].model_copy(update={"feeds": ("mysql_orders",)})}
    contracts = shared.model_copy(update={"gold": shared.gold.model_copy(update={"sources": sources})})
    records = [
        stored(
            one["offset"],
            json.loads(one["key"]),
            one["value"],
            topic=SHARED_TOPIC,
            headers=[{"key": name, "value": text.encode()} for name, text in one["headers"]],
        )
        for one in (of_order("c", 7, 0), of_customer("c", 7, 1))
    ]
    write(tmp_path, "bronze.mysql_events", BRONZE, records)
    found = explained(tmp_path, contracts=contracts, key="MY-7")
    assert outcomes(found) == [(0, "c", "applied")]


def of_outbox(offset: int, number: int, event_id: str, **given: Any) -> dict[str, Any]:
    payload = {**order(number), "updated_at": None, **given}
    headers = [{"key": "id", "value": event_id.encode()}]
    return stored(offset, str(number), compact(payload), topic=OUTBOX, headers=headers)


def test_events_of_an_outbox_are_explained_too(tmp_path: Path) -> None:
    found = explained(
        tmp_path,
        stated("c", 0, 100),
        of_outbox(1, 7, "a", status="pending"),
        of_outbox(2, 7, "b", status="completed"),
        of_outbox(3, 7, "b", status="completed"),
        of_outbox(4, 77, "c"),
    )
    assert [(one.feed, one.offset, one.outcome) for one in found.events] == [
        ("postgres_orders", 0, "applied"),
        ("postgres_outbox_orders", 1, "superseded"),
        ("postgres_outbox_orders", 2, "applied"),
        ("postgres_outbox_orders", 3, "duplicate"),
    ]


def test_an_event_that_cannot_be_decoded_says_why(tmp_path: Path) -> None:
    damaged = stated("u", 3, 200, total_amount=None)
    row = json.loads(damaged["value"])
    row["after"]["total_amount"] = "no base64!"
    found = explained(
        tmp_path,
        stated("c", 0, 100),
        {**damaged, "value": compact(row).encode()},
        stored(4, {"order_id": 7}, "no JSON"),
    )
    by_offset = {one.offset: one for one in found.events}
    assert by_offset[0].outcome == "applied"
    assert by_offset[3].outcome == "quarantined"
    assert by_offset[3].why.startswith("total_amount: the value is ")
    assert (by_offset[4].outcome, by_offset[4].why) == ("quarantined", "The value is not JSON of the declared shape.")


def test_an_event_in_quarantine_has_the_reasons_of_its_entry(tmp_path: Path) -> None:
    entry = {
        **{"source": "postgres", "feed": "postgres_orders", "topic": TOPIC, "topic_id": "id", "partition": 0},
        **{"offset": 3, "reasons": ["amount_not_negative", "It is too late."], "state": "open"},
    }
    others = [
        {**entry, "offset": 0, "state": "retried"},
        {**entry, "offset": 0, "topic_id": "another"},
        {**entry, "offset": 0, "feed": "postgres_outbox_orders"},
    ]
    write(tmp_path, "quality.quarantine", QUARANTINE, [entry, *others])
    found = explained(tmp_path, stated("c", 0, 100), stated("u", 3, 200, status="completed"))
    assert outcomes(found) == [(0, "c", "applied"), (3, "u", "quarantined")]
    assert found.events[1].why == "amount_not_negative It is too late."


def at_lsn(lsn: int) -> dict[str, int]:
    """A position in PostgreSQL's log, as a cutoff has it."""
    return {
        **{"epoch": 0, "ordered_lsn": lsn, "streamed": 1, "commit_lsn": lsn, "lsn": lsn},
        "kafka_offset": 9,
    }


def test_what_silver_has_not_taken_is_pending(tmp_path: Path) -> None:
    write(tmp_path, "ops.batches", BATCHES, [read(TOPIC, 2)])
    found = explained(tmp_path, stated("c", 0, 100), stated("u", 3, 200, status="completed"))
    assert outcomes(found) == [(0, "c", "applied"), (3, "u", "pending")]
    assert found.events[1].why == "Silver has not taken it yet, or its table is suspended."


def test_an_event_below_a_cutoff_that_silver_remembers_is_superseded(tmp_path: Path) -> None:
    position = compact(at_lsn(150))
    cutoff = {
        **{"reason": "truncate", "topic": None, "at_topic": TOPIC, "at_partition": 0, "at_offset": 9},
        "position": position,
    }
    common = {
        **{"layer": "silver", "source": "postgres", "writer": "silver/postgres/one", "generation": "one"},
        **{"batch": 0, "sequence": 1, "written_at": NOON},
    }
    older = {
        **common,
        "feed": "postgres_orders",
        "generation": "zero",
        "sequence": 0,
        "written_at": NOON - timedelta(hours=1),
    }
    write(
        tmp_path,
        "ops.batches",
        BATCHES,
        [
            {**common, "feed": "postgres_orders", "cutoffs": [cutoff]},
            {**common, "feed": "postgres_outbox_orders"},
            read(TOPIC),
            {**older, "cutoffs": [{**cutoff, "position": compact(at_lsn(900))}]},
        ],
    )
    found = explained(tmp_path, stated("c", 0, 100))
    assert outcomes(found) == [(0, "c", "superseded")]
    assert found.events[0].why == (
        "A later change of its key has taken its place: a cutoff (truncate or completed snapshot)."
    )
    assert outcomes(explained(tmp_path, stated("u", 1, 200))) == [(0, "c", "superseded"), (1, "u", "applied")]


def test_the_rows_of_silver_and_gold_and_their_changes(tmp_path: Path) -> None:
    for status in ("pending", "completed"):
        rows = [{"order_id": number, "status": status, "note": None} for number in (7, 77)]
        path = write(tmp_path, "silver.postgres_orders", SILVER, rows, configuration=CHANGE_DATA)
        if status == "pending":
            DeltaTable(path).delete()
    write(
        tmp_path,
        "gold.unified_orders",
        GOLD,
        [{"composite_key": key, "order_id": 7, "status": "completed"} for key in ("PG-7", "PG-77", "MY-7")],
    )
    found = explained(tmp_path, stated("c", 0, 100))
    assert found.silver == {"postgres_orders": {"order_id": "7", "status": "completed"}}
    versions = found.versions["postgres_orders"]
    assert [(one["_commit_version"], one["_change_type"], one["status"]) for one in versions] == [
        *(("0", "insert", "pending"), ("1", "delete", "pending"), ("2", "insert", "completed"))
    ]
    assert found.gold == {"composite_key": "PG-7", "order_id": "7", "status": "completed"}


def test_without_silver_and_gold_there_are_events_alone(tmp_path: Path) -> None:
    found = explained(tmp_path, stated("c", 0, 100))
    assert (found.silver, found.versions, found.gold) == ({}, {}, None)


@pytest.fixture
def sensitive(tmp_path: Path) -> Contracts:
    """The packaged contracts, with a column that is sensitive."""
    for name in MODELS:
        copy = tmp_path / "contracts" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCES / name, copy)
    tables = tmp_path / "contracts" / "silver" / "tables.yaml"
    text = tables.read_text()
    assert "note: STRING" in text
    tables.write_text(text.replace("note: STRING", "note: {type: STRING, sensitive: true}"))
    return load_contracts(tmp_path / "contracts")


def test_a_sensitive_column_is_shown_nowhere(tmp_path: Path, sensitive: Contracts) -> None:
    row = {"order_id": 7, "status": "completed", "note": "secret words"}
    write(tmp_path, "silver.postgres_orders", SILVER, [row], configuration=CHANGE_DATA)
    found = explained(tmp_path, *life(deleted=False), contracts=sensitive)
    assert found.events[1].values["note"] == MASK
    assert found.silver["postgres_orders"]["note"] == MASK
    assert [one["note"] for one in found.versions["postgres_orders"]] == [MASK]
    text = json.dumps(as_json(found))
    assert "secret words" not in text
    assert "completed" in text


@pytest.mark.parametrize("key", ["XX-7", "PG", "PG-", "PG-x", "PG--7", "7", "", "pg-7", "PG-7'", "PG-1.0"])
def test_a_key_that_no_source_has_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(SettingsError, match="is no composite key") as refused:
        explain(tables_in(tmp_path), CONTRACTS, key)
    assert "PG-<order_id>, MY-<order_id>" in refused.value.hint


def test_without_unified_orders_there_is_nothing_to_explain(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="There are no unified orders"):
        explain(tables_in(tmp_path), CONTRACTS.model_copy(update={"gold": GoldTables()}), "PG-7")


def test_a_key_with_a_sign_that_is_no_digit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is no composite key"):
        explain(tables_in(tmp_path), CONTRACTS, "PG-²")


def test_without_bronze_there_is_nothing_to_explain(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"There is no bronze\.postgres_events yet"):
        explain(tables_in(tmp_path), CONTRACTS, "PG-7")


def test_an_order_that_nobody_knows_has_no_events(tmp_path: Path) -> None:
    assert explained(tmp_path, stated("c", 0, 100), key="PG-1").events == []


def test_of_a_long_history_the_newest_records_are_looked_at_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files with older ones are not opened, as one that is gone shows."""
    monkeypatch.setattr(explaining, "MAX_RECORDS", 3)
    folder = write(tmp_path, "bronze.postgres_events", BRONZE, [stated("c", 0, 100), stated("u", 1, 110, note="a")])
    (oldest,) = folder.glob("*.parquet")
    found = explained(tmp_path, stated("u", 2, 200, note="b"), stated("u", 3, 210, 8), stated("u", 4, 220, note="c"))
    assert (outcomes(found), found.since) == (
        [(2, "u", "superseded"), (4, "u", "applied")],
        at(1) + timedelta(milliseconds=1),
    )
    whole = explain(tables_in(tmp_path), CONTRACTS, "PG-7", whole=True)
    assert ([one.offset for one in whole.events], whole.since) == ([0, 1, 2, 4], None)
    oldest.unlink()
    assert explain(tables_in(tmp_path), CONTRACTS, "PG-7") == found
    with pytest.raises(TableError):
        explain(tables_in(tmp_path), CONTRACTS, "PG-7", whole=True)
    monkeypatch.setattr(explaining, "MAX_RECORDS", 5)
    with pytest.raises(TableError):
        explain(tables_in(tmp_path), CONTRACTS, "PG-7")


def test_headers_that_are_no_text_are_no_hindrance(tmp_path: Path) -> None:
    record = stated("c", 0, 100)
    foreign = [{"key": "trace", "value": b"\xff\xfe"}, {"key": "", "value": None}, *record["headers"]]
    assert outcomes(explained(tmp_path, {**record, "headers": foreign})) == [(0, "c", "applied")]


def test_an_explanation_says_when_the_row_was_changed_last(tmp_path: Path) -> None:
    rows = [{"order_id": 7, "_applied_at": at(5)}, {"order_id": 8, "_applied_at": at(9)}]
    write(tmp_path, "silver.postgres_orders", SILVER, rows, configuration=CHANGE_DATA)
    assert explained(tmp_path, stated("c", 0, 100)).changed_at == at(5)
    write(tmp_path, "gold.unified_orders", GOLD, [{"composite_key": "PG-7", "processed_at": at(7)}])
    assert explain(tables_in(tmp_path), CONTRACTS, "PG-7").changed_at == at(7)
    assert explain(tables_in(tmp_path), CONTRACTS, "PG-1").changed_at is None


def test_an_explanation_is_json(tmp_path: Path) -> None:
    found = as_json(explained(tmp_path, *life(deleted=True)))
    assert json.loads(json.dumps(found)) == found
    assert (found["composite_key"], found["source"]) == ("PG-7", "postgres")
    first = found["events"][0]
    assert (first["offset"], first["outcome"]) == (0, "superseded")
    assert datetime.fromisoformat(first["at"]).astimezone(UTC) == NOON
