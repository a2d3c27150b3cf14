"""Laws of decoding: it says something of any bytes, what the fast way takes the definition reads the same, and no
sentence has a value in it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lakehouse.contract_files import load_contracts
from lakehouse.contracts import Column, Feed
from silver.decode import arrow
from silver.decode.explain import Explaining
from silver.decode.message import Record
from tests.support.feeds import feed

CONTRACTS = load_contracts()
TABLE, MYSQL = CONTRACTS.feeds["postgres_orders"], CONTRACTS.feeds["mysql_orders"]
OUTBOX = CONTRACTS.feeds["postgres_outbox_orders"]
TYPES = {
    "id": "BIGINT",
    "small": "SMALLINT",
    "text": "STRING",
    "amount": "DECIMAL(10,2)",
    "day": "DATE",
    "at": "TIMESTAMP",
    "yes": "BOOLEAN",
    "double": "DOUBLE",
    "raw": "BINARY",
    "many": "ARRAY<INT>",
    "words": "ARRAY<STRING>",
}
MODES: Sequence[Mapping[str, Any]] = (
    {},
    {"decimal_handling_mode": "string", "time_precision_mode": "isostring"},
    {"decimal_format": "numeric", "time_precision_mode": "connect", "kind": "mysql"},
    {"tables": ("public.orders", "ecommerce.orders")},
)


def of_all_types(**options: Any) -> Feed:
    columns = {name: Column.model_validate({"type": kind}) for name, kind in TYPES.items()}
    return feed(**options).model_copy(update={"columns": columns, "keys": ("id",), **options})


FEEDS = [of_all_types(**modes) for modes in MODES]
LIST = TABLE.model_copy(update={"append_only": True, "keys": ()})
EXPLAINING = [(one, Explaining(one)) for one in (*FEEDS, TABLE, MYSQL, OUTBOX, LIST)]
GOOD = {"before": None, "after": {"id": 1, "text": "x"}, "source": {"lsn": 1, "sequence": '["1","1"]'}, "op": "c"}
ENVELOPE = json.dumps(GOOD).encode()
laws = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))

json_like = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["op", "after", "before", "source", "payload", "schema", "fields", "id", "ts_ms", "lsn"]),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=12,
)
some_bytes = st.one_of(
    st.none(),
    st.binary(max_size=60),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
    json_like.map(lambda value: json.dumps(value).encode()),
    st.tuples(st.integers(0, len(ENVELOPE)), st.binary(max_size=3)).map(
        lambda cut: ENVELOPE[: cut[0]] + cut[1] + ENVELOPE[cut[0] + len(cut[1]) :]
    ),
)


@laws
@given(key=some_bytes, value=some_bytes, headers=st.lists(st.tuples(st.text(max_size=9), some_bytes), max_size=3))
@example(key=b"[" * 100_000, value=b'{"a":' * 100_000, headers=[])
@example(key=None, value=b'{"after":{"id":' + b"9" * 100_000 + b'},"op":"c"}', headers=[("__op", None)])
def test_something_is_said_of_any_bytes(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    for one, explaining in EXPLAINING:
        event = explaining.event(Record(one.topics[0], key, value, headers))
        assert event.kind in ("change", "truncate", "tombstone", "ignored", "unreadable")
        assert (event.kind == "unreadable") == (event.kind != "change" and bool(event.problems))
    # And Arrow takes it.
    (found,) = arrow.decode_batches([batch_of(FEEDS[0], [(key, value, headers)])], feeds=FEEDS[:1])
    assert found.num_rows == 1


class Raw(str):
    """JSON as it stands."""

    __slots__ = ()


def dumped(value: Any) -> str:
    if isinstance(value, Raw):
        return value
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{dumped(one)}" for name, one in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def row_of(number: int, modes: Mapping[str, Any]) -> dict[str, Any]:
    """A row of all types, as the connector writes it in these modes."""
    is_text = modes.get("decimal_handling_mode") == "string"
    amount: Any = "-1.50" if is_text else Raw("-1.50") if "decimal_format" in modes else "A+g="
    times = {"connect": 1_767_225_600_123, "isostring": "2026-01-01T00:00:00.000001Z"}
    at = times.get(modes.get("time_precision_mode", ""), 1_767_225_600_000_001)
    row = {"id": number, "small": -7, "text": "é", "amount": amount, "day": 20_000, "at": at, "yes": True}
    return {**row, "double": 0.1, "raw": "AP8=", "many": [1, None], "words": ["a"], "not declared": {"b": 1}}


FRAGMENTS = [
    *("null", "-0", "0", "1", "-1", "1.0", "1e2", "1.50", "007", "NaN", "true", '"1"', '""', '"x"', "[]", "{}"),
    *(str(2**15), str(2**31), str(2**63), str(-(2**63)), "9" * 400, "1" * 2000, "2932896", "2932897", "-719163"),
    *("253402300799999999", "253402300800000000", "-62135596800000000", "-62135596800000001", "253402300799999"),
    *('"12345678.90"', '"123456789.01"', '"1.234"', '"1."', '"+1"', '" 1"', '"1e1"', '"007.10"', '"-0.00"'),
    *('"2026-02-29"', '"2026-02-28"', '"0000-01-01"', '"9999-12-31"', '"2026-01-01T24:00:00Z"', '"infinity"'),
    *('"2026-01-01T00:00:00Z"', '"2026-01-01T00:00:00.1234567Z"', '"2026-01-01T00:00:00+01:00"'),
    *('"2026-02-30T00:00:00Z"', '"0999-01-01T00:00:00Z"', '"ZQ=="', '"ZQ"', '"/w=="', '"gAAAAAAAAAAAAAAAAAAAAAA="'),
    *('"__debezium_unavailable_value"', '"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="', "[1,2.5]", '["a",null]'),
    *(
        '["__debezium_unavailable_value"]',
        '"\\ud83d"',
        '"\\ud83d\\ude80"',
        '"\\u0000"',
        '"\\"op\\":"',
        '{"op":1,"op":2}',
    ),
    *("[" * 400 + "]" * 400, "[" * 700 + "]" * 700, '{"scale":1,"value":"ZQ=="}', '"[1,2]"', "01", "'x'", "[1,]"),
]
PLACES = [
    *(("after", name) for name in [*TYPES, "not declared"]),
    *(("before", name) for name in ("id", "text")),
    *(
        ("source", name)
        for name in ("lsn", "sequence", "ts_us", "ts_ms", "snapshot", "table", "schema", "db", "pos", "row")
    ),
    *(("", name) for name in ("op", "ts_ms", "after", "before", "source", "extra", "transaction")),
    ("key", "id"),
]
MARKED = '"SECRET 7654321"'
SEQUENCES = ['["1","2"]', '[null,"2"]', '["-1","2"]', '["1"]', "[1,2]", '["1","2","3"]', "x", "[]", '["a","b"]']
fragment = st.one_of(st.sampled_from(FRAGMENTS), st.sampled_from(SEQUENCES).map(json.dumps))
mutation = st.tuples(
    st.sampled_from(["set", "set", "set", "drop", "twice", "space"]), st.sampled_from(PLACES), fragment
)
one_record = st.tuples(
    st.sampled_from("ccuudrtm"),
    st.lists(mutation, max_size=2),
    st.sampled_from(["", "", "schema", "schema with names", "key alone"]),
    st.sampled_from([(), (), ("__debezium.context.runId",), ("__debezium.oldkey",), ("__debezium.newkey",)]),
)


def message(number: int, modes: Mapping[str, Any], told: Any) -> tuple[bytes | None, bytes | None, Any]:
    op, mutations, wrapper, names = told
    table = {"schema": "public", "db": "ecommerce", "table": "orders"}
    source = {
        "ts_us": 1_767_225_600_000_001,
        "ts_ms": 1_767_225_600_000,
        "lsn": 5,
        "file": "mysql-bin.000001",
        "pos": 4,
    }
    event: dict[str, Any] = {
        "before": row_of(number, modes) if op in "ud" else None,
        "after": row_of(number, modes) if op in "cur" else None,
        "source": {**source, **table, "row": 0, "snapshot": "false", "sequence": '["4","5"]'},
        "op": op,
        "ts_ms": 1_767_225_600_005,
    }
    key: dict[str, Any] = {"id": number}
    end = ""
    for how, (outer, name), json_text in mutations:
        place: Any = key if outer == "key" else event if not outer else event.get(outer)
        if not isinstance(place, dict):
            continue
        if how == "drop":
            place.pop(name, None)
        elif how == "space":
            end = " \n"
        elif how == "twice":
            place[name] = Raw(f"{dumped(place.get(name))},{json.dumps(name)}:{json_text}")
        else:
            place[name] = Raw(json_text)
    of_key, of_value = dumped(key), dumped(event) + end
    if wrapper:
        kinds = {"id": "int64", "small": "int16", "text": "string", "day": "int32", "at": "int64", "yes": "boolean"}
        semantic = {"day": "io.debezium.time.Date", "at": "io.debezium.time.MicroTimestamp"}
        fields = [
            {"type": kinds.get(name, "string"), "field": name}
            | ({"name": semantic[name]} if name in semantic and wrapper == "schema with names" else {})
            for name in TYPES
        ]
        schema = {"type": "struct", "fields": [{"type": "struct", "fields": fields, "field": "after"}, {"field": "op"}]}
        if wrapper != "key alone":
            of_value = f'{{"schema":{json.dumps(schema, separators=(",", ":"))},"payload":{of_value}}}'
        of_key = f'{{"schema":{{"type":"struct"}},"payload":{of_key}}}'
    headers = [(name, b'{"id":0}') for name in names]
    return of_key.encode("utf-8", "surrogatepass"), of_value.encode("utf-8", "surrogatepass"), headers


def batch_of(one: Feed, messages: Sequence[tuple[Any, Any, Any]]) -> pa.RecordBatch:
    number = len(messages)
    headers = [[{"key": name, "value": value} for name, value in headers] for _key, _value, headers in messages]
    columns: dict[str, pa.Array] = {
        "topic": pa.array([one.topics[0]] * number),
        "topic_id": pa.array([""] * number),
        "partition": pa.array([0] * number, pa.int32()),
        "offset": pa.array(range(number), pa.int64()),
        "timestamp": pa.array([0] * number, pa.timestamp("us", tz="UTC")),
        "key": pa.array([key for key, _value, _headers in messages], pa.binary()),
        "value": pa.array([value for _key, value, _headers in messages], pa.binary()),
        "headers": pa.array(headers, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in arrow.RECORD], names=list(arrow.RECORD))


def events(one: Feed, batch: pa.RecordBatch, *, definition_alone: bool) -> list[dict[str, Any]]:
    found = arrow.decode_batches([batch], feeds=[one], definition_alone=definition_alone)
    rows = [row for part in found for row in part.to_pylist()]
    return sorted(rows, key=lambda row: int(row["offset"]))


@pytest.mark.parametrize("modes", MODES, ids=str)
def test_what_the_fast_way_takes_the_definition_reads_the_same(modes: Mapping[str, Any]) -> None:
    one = of_all_types(**modes)
    taken: list[int] = []

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(records=st.lists(one_record, min_size=30, max_size=60))
    def law(records: list[Any]) -> None:
        batch = batch_of(one, [message(number, modes, told) for number, told in enumerate(records)])
        parts = list(arrow.decode_batches([batch], feeds=[one]))
        taken.append(sum(part.num_rows for part in parts[:-1]))
        quick, slow = (events(one, batch, definition_alone=alone) for alone in (False, True))
        for mine, defined, (key, value, _headers) in zip(quick, slow, message_bytes(batch), strict=True):
            assert repr(mine) == repr(defined), (key, value)

    law()
    assert sum(taken) > 150  # the law is about something


def message_bytes(batch: pa.RecordBatch) -> list[tuple[Any, Any, Any]]:
    columns = (batch.column(name).to_pylist() for name in ("key", "value", "headers"))
    return list(zip(*columns, strict=True))


@laws
@given(told=one_record, modes=st.sampled_from(MODES))
def test_no_sentence_has_a_value_in_it(told: Any, modes: Mapping[str, Any]) -> None:
    op, mutations, wrapper, names = told
    hidden = [(how, place, MARKED if how == "set" else json_text) for how, place, json_text in mutations]
    one = of_all_types(**modes)
    event = Explaining(one).event(Record(one.topics[0], *message(1, modes, (op, hidden, wrapper, names))))
    assert [sentence for sentence in event.problems if "SECRET" in sentence or "7654321" in sentence] == []


def test_decoding_needs_no_spark() -> None:
    program = "import sys, silver.decode.arrow; sys.exit(any(name.startswith('pyspark') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
