"""What the first decoder, of Spark expressions, made of 36,000 records, against what `silver.decode` makes of them.

`frozen/` has its output: a line `{"feed": …}`, then of each record of that feed `{"in": …, "out": …}`. Every difference
is one of `DIFFERENCES`, each of which was looked at and is wanted.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from lakehouse.column_types import ArrayType, DecimalType, Type
from lakehouse.contracts import Feed
from silver.decode.arrow import decode_batches, row_of
from silver.decode.explain import Explaining
from silver.decode.message import Record

FROZEN = Path(__file__).with_name("frozen")
NAMES = sorted(path.name.removesuffix(".jsonl.gz") for path in FROZEN.iterdir())
FIELDS = (
    *("run_id", "kind", "op", "is_delete", "source_ts", "read_ms", "source", "event_id", "old_key", "new_key"),
    *("absent", "left_out", "untold", "problems"),
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Outcome = Mapping[str, Any]


class Case(NamedTuple):
    feed: Feed
    record: Record
    old: Outcome


def cases(name: str) -> Iterator[list[Case]]:
    """The cases of one file, feed by feed."""
    of_feed: list[Case] = []
    with gzip.open(FROZEN / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            one = json.loads(line)
            if "feed" in one:
                if of_feed:
                    yield of_feed
                feed, of_feed = Feed.model_validate(one["feed"]), []
            else:
                came = one["in"]
                headers = [(header, _bytes(value)) for header, value in came["headers"] or ()]
                record = Record(came["topic"], _bytes(came["key"]), _bytes(came["value"]), headers)
                of_feed.append(Case(feed, record, _old(one["out"], feed)))
    yield of_feed


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _old(out: dict[str, Any], feed: Feed) -> Outcome:
    """A frozen output with its values as Python has them. One that raised has `raises` alone."""
    if "raises" in out:
        return {"raises": out["raises"]}
    found = {name: out[name] for name in FIELDS}
    found["source_ts"] = _old_time(out["source_ts"])
    row = out["row"]
    found["row"] = row and {name: _old_value(row[name], column.type) for name, column in feed.columns.items()}
    return found


def _old_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=UTC)


def _old_value(value: Any, held: Type) -> Any:
    if value is None:
        return None
    if isinstance(held, ArrayType):
        return [_old_value(one, held.element) for one in value]
    if isinstance(held, DecimalType):
        return Decimal(value)
    of: dict[str, Callable[[Any], Any]] = {
        "TIMESTAMP": _old_time,
        "DATE": date.fromisoformat,
        "BINARY": base64.b64decode,
    }
    return of[held.ddl](value) if held.ddl in of else value


def by_definition(of_feed: Sequence[Case]) -> list[Outcome]:
    explaining = Explaining(of_feed[0].feed)
    found: list[Outcome] = []
    for feed, record, _old in of_feed:
        event = explaining.event(record)
        outcome = event._asdict()
        outcome["source"] = event.source and event.source._asdict()
        outcome["source_ts"] = _time(event.source_ts)
        outcome["row"] = event.row and {
            name: _value(value, column.type)
            for (name, column), value in zip(feed.columns.items(), event.row, strict=True)
        }
        found.append(outcome)
    return found


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)


def _value(value: Any, held: Type) -> Any:
    if value is None:
        return None
    if isinstance(held, ArrayType):
        return [_value(one, held.element) for one in value]
    if held.ddl == "TIMESTAMP":
        return _time(value)
    if held.ddl == "DATE":
        return (_EPOCH + timedelta(days=value)).date()
    return repr(value) if held.ddl in ("DOUBLE", "FLOAT") else value


def by_batches(of_feed: Sequence[Case]) -> list[Outcome]:
    """The same through Arrow, twice: the second time the schemas of wrapped messages are known."""
    feed = of_feed[0].feed
    columns = {
        "topic": pa.array([case.record.topic for case in of_feed], pa.string()),
        "topic_id": pa.nulls(len(of_feed), pa.string()),
        "partition": pa.array([0] * len(of_feed), pa.int32()),
        "offset": pa.array(range(len(of_feed)), pa.int64()),
        "timestamp": pa.nulls(len(of_feed), pa.timestamp("us", tz="UTC")),
        "key": pa.array([case.record.key for case in of_feed], pa.binary()),
        "value": pa.array([case.record.value for case in of_feed], pa.binary()),
        "headers": pa.array(
            [[{"key": name, "value": value} for name, value in case.record.headers] for case in of_feed],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    topics = {case.record.topic for case in of_feed}
    # Which topics are a feed's is not asked here.
    feed = feed.model_copy(update={"topics": tuple(topics), "topic_patterns": ()})
    found: dict[int, dict[str, Any]] = {}
    for events in decode_batches([batch, batch], feeds=[feed]):
        for one in events.to_pylist():
            one["row"] = one[row_of(feed.name)] and {
                name: _of_arrow(one[row_of(feed.name)][name], column.type) for name, column in feed.columns.items()
            }
            found[one["offset"]] = one
    return [found[number] for number in range(len(of_feed))]


def _of_arrow(value: Any, held: Type) -> Any:
    if isinstance(held, ArrayType):
        return value and [_of_arrow(one, held.element) for one in value]
    return repr(value) if held.ddl in ("DOUBLE", "FLOAT") and value is not None else value


class Difference(NamedTuple):
    """`what`: a field of the outcome, or a column; then `old` and `new` are its value and what is said of it.

    Where the kinds are two nothing else is compared: `what` is `kind`, `old` and `new` the whole outcomes.
    """

    what: str
    case: Case
    old: Any
    new: Any
    outcome: Outcome

    @property
    def is_cell(self) -> bool:
        return self.what in self.case.feed.columns

    @property
    def field(self) -> Any:
        """What the record has for the column; numbers as `Literal`."""
        row = fields_of(self.case.record.value)
        found = [row[name] for name in self.case.feed.fields_of(self.what) if row.get(name) is not None]
        return found[0] if found else None

    @property
    def text(self) -> str:
        """The column's field as JSON, or the text that it is."""
        return self.field if type(self.field) is str else json.dumps(self.field, ensure_ascii=False)

    @property
    def schema(self) -> Mapping[str, Any]:
        """What the record's schema says of the column."""
        return next((s[n] for n in self.case.feed.fields_of(self.what) if n in (s := schemas_of(self.value))), {})

    @property
    def value(self) -> str:
        return (self.case.record.value or b"").decode(errors="replace")

    @property
    def kinds(self) -> tuple[str | None, str]:
        return self.case.old.get("kind"), self.outcome["kind"]


class Literal(str):
    """A JSON number as it is written."""


@cache
def parsed(text: str) -> Any:
    """JSON with numbers as they are written; None of what is none."""
    try:
        return json.loads(text, parse_int=Literal, parse_float=Literal)
    except (ValueError, RecursionError):
        return None


@cache
def fields_of(value: bytes | None) -> Mapping[str, Any]:
    """The fields of the row in a record, whatever is around them."""
    found = parsed((value or b"").decode(errors="replace"))
    for around in ("payload", "after", "payload"):
        if isinstance(found, dict) and around in found:
            found = found[around]
        if type(found) is str:
            found = parsed(found)
    return found if isinstance(found, dict) else {}


@cache
def schemas_of(text: str) -> Mapping[str, Mapping[str, Any]]:
    """The schemas of the row's fields in a wrapped message."""
    message = parsed(text)
    schema = message.get("schema") if isinstance(message, dict) else None
    fields = schema.get("fields") if isinstance(schema, dict) else None
    named = {str(one.get("field")): one for one in fields or () if isinstance(one, dict)}
    if "after" in named:
        named = {str(one.get("field")): one for one in named["after"].get("fields") or () if isinstance(one, dict)}
    return named


def differences(case: Case, new: Outcome) -> Iterator[Difference]:
    feed, old = case.feed, case.old
    if "raises" in old or old["kind"] != new["kind"]:
        yield Difference("kind", case, old, new, new)
        return
    said = [_of_columns(outcome["problems"], feed) for outcome in (old, new)]
    for name in FIELDS:
        one, other = (said[0][""], said[1][""]) if name == "problems" else (old[name], new[name])
        if one != other:
            yield Difference(name, case, one, other, new)
    for name in feed.columns:
        one, other = ((row and row[name], of.get(name)) for row, of in zip((old["row"], new["row"]), said, strict=True))
        if one != other:
            yield Difference(name, case, one, other, new)
    assert (old["row"] is None) is (new["row"] is None)


def _of_columns(problems: Sequence[str], feed: Feed) -> dict[str, Any]:
    """The sentences about columns, by column, and under no name the others."""
    found: dict[str, Any] = {"": []}
    for problem in problems:
        column, _, sentence = problem.partition(": ")
        if column in feed.columns and sentence:
            found[column] = sentence
        else:
            found[""].append(problem)
    return found


class Wanted(NamedTuple):
    """A difference that is wanted: where it is met, and why."""

    why: str
    is_met: Callable[[Difference], bool]


def _cell(one: Difference, *kinds: type, before: bool | None = None, after: bool | None = None) -> bool:
    """Whether it is a cell whose field is of these kinds, with a value before and after, or without."""
    if not one.is_cell or not isinstance(one.old, tuple) or not isinstance(one.field, kinds):
        return False
    had, has = (side[0] is not None for side in (one.old, one.new))
    return before in (None, had) and after in (None, has)


SILENT = ("ignored", "unreadable")
OF_EVENT = ("op", "is_delete", "source", "source_ts", "read_ms", "event_id", "old_key", "new_key", "run_id")
WANTED = (
    Wanted(
        "What is ignored or unreadable says nothing of positions and times.",
        lambda one: one.what in OF_EVENT and one.kinds[0] == one.kinds[1] and one.kinds[0] in SILENT,
    ),
    Wanted(
        "The reason says more, or is found earlier.",
        lambda one: one.what == "problems" and one.kinds == ("unreadable", "unreadable"),
    ),
    Wanted("A schema with fields of no name, or of one name, is read.", lambda one: "raises" in one.case.old),
    Wanted(
        "Read now: numbers of 1,000 digits, wrappers with white space or fields that are there twice, an envelope"
        " without op, a payload without its schema, U+FDD0.",
        lambda one: one.what == "kind" and one.kinds[0] == "unreadable" and one.kinds[1] != "unreadable",
    ),
    Wanted(
        "Of a field that is there twice the last counts: so a key contradicts its row, or a value is none.",
        lambda one: one.what == "kind" and one.kinds[0] == "change" and one.kinds[1] in ("unreadable", "tombstone"),
    ),
    Wanted(
        "A flattened row without op may leave out large values.",
        lambda one: one.what in ("left_out", "untold") and one.old != one.new and '"op"' not in one.value,
    ),
    Wanted(
        "Of a field that is there twice the last counts, and numbers in the source are as written.",
        lambda one: one.what in OF_EVENT or one.what in ("absent", "left_out", "untold", "problems"),
    ),
    Wanted(
        "A JSON number, true and false are themselves, never base64; numbers of 64 bits are read in every mode.",
        lambda one: _cell(one, Literal, bool),
    ),
    Wanted(
        "Text is strict: base64 with its padding, ISO 8601 times without blanks and names of zones.",
        lambda one: _cell(one, str, before=True, after=False),
    ),
    Wanted(
        "Texts of custom converters are read, and zones with seconds.",
        lambda one: _cell(one, str, before=False, after=True),
    ),
    Wanted("The sentence says more.", lambda one: _cell(one, str, dict, list, before=False, after=False)),
    Wanted("Of a field that is there twice the last counts.", lambda one: _cell(one, str, before=True, after=True)),
    Wanted("What an array or object holds is read as such.", lambda one: _cell(one, list, dict)),
    Wanted(
        "Of a field that is there twice the last counts, and it may be null.",
        lambda one: _cell(one, type(None)),
    ),
)


def test_every_difference_is_wanted() -> None:
    met: Counter[str] = Counter()
    unwanted: list[tuple[Any, ...]] = []
    for name in NAMES:
        for of_feed in cases(name):
            defined = by_definition(of_feed)
            for case, outcome in zip(of_feed, defined, strict=True):
                for one in differences(case, outcome):
                    why = next((wanted.why for wanted in WANTED if wanted.is_met(one)), None)
                    met.update([why] if why else [])
                    unwanted += [] if why else [(one.what, one.kinds, one.old, one.new, one.value)]
    assert unwanted == []
    assert set(met) == {wanted.why for wanted in WANTED}, "one that is never met is no difference"


@pytest.mark.parametrize("name", NAMES)
def test_batches_say_what_the_definition_says(name: str) -> None:
    for of_feed in cases(name):
        for case, defined, found in zip(of_feed, by_definition(of_feed), by_batches(of_feed), strict=True):
            same = {field: (defined[field], found[field]) for field in (*FIELDS, "row")}
            wrong = {field: pair for field, pair in same.items() if _plain(pair[0]) != _plain(pair[1])}
            assert wrong == {}, case.record


def _plain(value: Any) -> Any:
    """Equal where the values are: lists and tuples, NaN and NaN."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, dict) else value
