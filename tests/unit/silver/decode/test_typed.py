"""The fast way takes what is as declared, and leaves the rest to the definition."""

from __future__ import annotations

import msgspec
import pytest

from lakehouse.contracts.parts.schema_policy import OnSchemaChange
from silver.decode.fast.json_records import FastDecoder, typed
from silver.decode.reference.message import Record
from silver.decode.reference.values import CONVERSION_ERROR
from tests.support.decoding import batch_of, decoded
from tests.support.feeds import feed

# All but the key are read cell by cell; those of variable length may be left out of a change.
OF_CELLS = feed(columns={"id": "BIGINT", "number": "DOUBLE", "bytes": "BINARY", "texts": "ARRAY<STRING>"})
KEY = b'{"id":1}'


def update(number: str = "1.5", of_bytes: str = '"AP8="', texts: str = '["a"]', source: str = "{}") -> bytes:
    """The update of a row with these fields."""
    row = f'{{"id":1,"number":{number},"bytes":{of_bytes},"texts":{texts}}}'
    return f'{{"op":"u","after":{row},"source":{source}}}'.encode()


def reader_of(reads: FastDecoder | None) -> FastDecoder:
    assert reads is not None
    return reads


@pytest.mark.parametrize(
    "cell",
    [b'"\\ud83d"', b'"\xff"', b"[" * 501 + b"]" * 501, b"[1"],
    ids=["half a pair", "no UTF-8", "deep", "cut off"],
)
def test_a_cell_that_is_not_json_is_left_to_the_definition(cell: bytes) -> None:
    """Which of them the parser of the whole record refuses already is its own matter."""
    reads = reader_of(typed(OF_CELLS))
    _key, *columns = reads.columns
    sound = {"number": (b"1.5", 1.5), "bytes": (b'"AP8="', b"\0\xff"), "texts": (b'["a"]', ["a"])}
    for column in columns:
        fragment, value = sound[column.name]
        cells = [msgspec.Raw(fragment), msgspec.Raw(cell), None]
        assert reads.values(column, cells) == [value, CONVERSION_ERROR, None]


def test_a_placeholder_in_a_cell_is_no_value_of_its_column() -> None:
    """In bytes it is base64, and an array of texts may have it as its only element."""
    in_base64, name = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==", "__debezium_unavailable_value"
    values = [update(), update(of_bytes=f'"{in_base64}"'), update(texts=f'["{name}"]')]
    events = decoded([batch_of([Record("shop.things", KEY, one) for one in values])], OF_CELLS)
    assert [events[n].unchanged_toast for n in range(3)] == [[], ["bytes"], ["texts"]]
    assert [events[n].row for n in (1, 2)] == [[1, 1.5, None, ["a"]], [1, 1.5, b"\0\xff", None]]
    assert [events[n].problems for n in range(3)] == [[], [], []]


def test_of_which_tables_records_are_is_remembered_of_few_and_right_of_all() -> None:
    """A table whose name differs in every record does not fill the memory."""
    of = feed(columns=OF_CELLS.columns, tables=("public.things",))
    reads = reader_of(typed(of))
    others = [update(source=f'{{"schema":"public","table":"things_{number}"}}') for number in range(1_500)]
    own = update(source='{"schema":"public","table":"things"}')
    assert reads.read([KEY] * len(others), others).at == []
    assert len(reads._known_tables) == 1_000
    assert reads.read([KEY] * 4, [others[0], own, others[-1], own]).at == [1, 3]


def test_a_key_that_is_deeper_than_the_definition_reads_is_left_to_it() -> None:
    """Also where its own fields are as declared: the whole key is none then."""
    deep = b"[" * 501 + b"]" * 501
    keys = [KEY, b'{"id":1,"other":%s}' % deep, b'{"id":1,"other":"%s"}' % (b"x" * 2_000)]
    delete = b'{"op":"d","before":null,"after":null,"source":{}}'
    of = OF_CELLS.model_copy(update={"on_schema_change": OnSchemaChange(key="evolve")})
    assert reader_of(typed(of)).read(keys, [delete] * 3).at == [0, 2]
    events = decoded([batch_of([Record("shop.things", key, delete) for key in keys])], of)
    nothing = [None, None, None]
    assert [events[n].row for n in range(3)] == [[1, *nothing], None, [1, *nothing]]
    assert events[1].problems == ["The key is nested more than 500 levels deep."]
