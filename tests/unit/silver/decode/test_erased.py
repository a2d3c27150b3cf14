"""Records that were erased: they state where they were in the log, and nothing of their row."""

from __future__ import annotations

import json

import pytest

from lakehouse.erasure.names import ERASED_HEADER
from silver.decode.reference.decoder import RUN_ID, ReferenceDecoder
from silver.decode.reference.erased import erased_header
from silver.decode.reference.message import Record, Statement
from tests.support.decoding import batch_of, decoded
from tests.support.events import change, compact, mysql_source, postgres_source
from tests.support.feeds import feed

THINGS = feed(columns={"id": "BIGINT", "note": "STRING"}, tables=("public.orders",))


def erased(record: Record, decoder: ReferenceDecoder) -> Record:
    header = erased_header(decoder.statement(record))
    run = [(name, value) for name, value in record.headers if name == RUN_ID]
    return Record(record.topic, None, None, [*run, (ERASED_HEADER, header)])


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_an_erased_record_has_the_source_block_of_the_record_and_no_value(kind: str) -> None:
    source = postgres_source(7, last_commit=5, snapshot="last") if kind == "postgresql" else mysql_source(7, row=3)
    tables = {"postgresql": "public.orders", "mysql": "ecommerce.orders"}
    own = feed(kind=kind, columns={"id": "BIGINT", "note": "STRING"}, tables=(tables[kind],))
    decoder = ReferenceDecoder(own)
    value = change("u", source, {"id": 1, "note": "a secret"}, ts_ms=99)
    record = Record("shop.things", b'{"id":1}', value.encode(), [("other", b"a secret"), (RUN_ID, b"run-1")])
    before, after = decoder.event(record), decoder.event(erased(record, decoder))
    assert (after.kind, after.row, after.problems, after.op) == ("erased", None, [], None)
    assert (after.source, after.run_id, after.read_ms) == (before.source, "run-1", 99)
    assert decoder.own_event(erased(record, decoder)) == after
    text = repr(erased(record, decoder))
    assert "secret" not in text
    assert '"id"' not in text
    # Erased again, it is the same.
    assert erased(erased(record, decoder), decoder) == erased(record, decoder)


def test_it_is_of_the_feed_that_has_its_table() -> None:
    """Feeds that share a topic: each record is of one of them."""
    others = {"topics": THINGS.model_copy(update={"name": "others", "tables": ("public.others",)}), "keys": (("id",),)}
    shared = THINGS.model_copy(
        update={"siblings": (_sibling(others, is_first=False),)},
    )
    second = THINGS.model_copy(
        update={
            "tables": ("public.others",),
            "siblings": (_sibling({**others, "topics": THINGS}, is_first=True),),
        }
    )
    for table, own, other in (("public.orders", shared, second), ("public.others", second, shared)):
        header = erased_header(Statement("change", table=table))
        record = Record("shop.things", None, None, [(ERASED_HEADER, header)])
        assert ReferenceDecoder(own).own_event(record) is not None
        assert ReferenceDecoder(other).own_event(record) is None
    unknown = Record("shop.things", None, None, [(ERASED_HEADER, b"{}")])
    assert [ReferenceDecoder(one).own_event(unknown) is not None for one in (shared, second)] == [True, False]


def _sibling(given: dict[str, object], *, is_first: bool) -> object:
    from lakehouse.contracts.models import Sibling

    return Sibling.model_construct(topics=given["topics"], keys=given["keys"], is_first=is_first)


@pytest.mark.parametrize("text", ["not JSON", "[1]", "{}", '{"source": 1}', '{"source": {"lsn": "x"}}'])
def test_a_header_of_any_text_is_an_erased_record_without_a_position(text: str) -> None:
    event = ReferenceDecoder(THINGS).event(Record("shop.things", None, None, [(ERASED_HEADER, text.encode())]))
    assert (event.kind, event.row) == ("erased", None)
    assert event.source is None or event.source.lsn is None


def test_a_record_with_a_key_or_a_value_is_not_erased_whatever_its_headers() -> None:
    decoder = ReferenceDecoder(THINGS)
    header = [(ERASED_HEADER, b"{}")]
    assert decoder.event(Record("shop.things", b'{"id":1}', None, header)).kind == "tombstone"
    value = change("c", postgres_source(1, last_commit=1), {"id": 1, "note": "x"}).encode()
    assert decoder.event(Record("shop.things", b'{"id":1}', value, header)).kind == "change"
    assert decoder.event(Record("shop.things", None, None)).kind == "tombstone"


def test_among_others_of_a_batch_it_is_read_by_the_definition() -> None:
    value = change("c", postgres_source(1, last_commit=1), {"id": 1, "note": "x"}).encode()
    plain = Record("shop.things", compact({"id": 1}).encode(), value)
    gone = Record("shop.things", None, None, [(ERASED_HEADER, json.dumps({"table": "public.orders"}).encode())])
    found = decoded([batch_of([plain, gone, plain])], THINGS)
    assert [found[offset].kind for offset in range(3)] == ["change", "erased", "change"]
