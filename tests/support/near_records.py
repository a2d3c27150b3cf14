"""Records of a table that are as a contract declares them, or nearly so: one thing or another is not."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random

from lakehouse.contracts.models import Feed
from lakehouse.contracts.parts.column_types import ArrayType, DecimalType
from lakehouse.contracts.tables import Column
from silver.decode.reference.decoder import placeholders
from silver.decode.reference.message import Record
from silver.decode.reference.values import carries_precise_decimals, epoch_unit
from tests.support.feeds import feed

_TYPES = {
    "id": "BIGINT",
    "small": "SMALLINT",
    "number": "INT",
    "flag": "BOOLEAN",
    "note": "STRING",
    "class": "STRING",  # a word of Python's
    "doc": {"type": "STRING", "source_type": "json"},
    "amount": "DECIMAL(10,2)",
    "wide": "DECIMAL(38,10)",
    "at": "TIMESTAMP",
    "in_millis": {"type": "TIMESTAMP", "epoch_unit": "millis"},
    "day": "DATE",
    "double": "DOUBLE",
    "single": "FLOAT",
    "bytes": "BINARY",
    "ints": "ARRAY<INT>",
    "texts": "ARRAY<STRING>",
    "zoned": {"type": "STRING", "source_type": "timestamptz"},
    "unlimited": {"type": "STRING", "source_type": "numeric"},
    "uuid": {"type": "STRING", "source_type": "uuid"},
    "unsigned": {"type": "DECIMAL(20,0)", "source_type": "unsigned_bigint"},
}
_FEW = ("id", "note", "amount", "at", "day", "ints")
_TABLES = {"tables": ("public.things", "shop.things")}
_TEXTS = {"decimal_handling_mode": "string", "time_precision_mode": "isostring"}


def _columns(*names: str) -> dict[str, object]:
    return {name: _TYPES[name] for name in names}


FEEDS = {
    "all types": feed(columns=_TYPES, **_TABLES),
    "few types": feed(columns=_columns(*_FEW), **_TABLES),
    "texts": feed(columns=_TYPES, kind="mysql", **_TEXTS, **_TABLES),
    "numbers": feed(columns=_TYPES, kind="mysql", decimal_handling_mode="double", time_precision_mode="connect"),
    "numeric format": feed(columns=_columns(*_FEW), decimal_format="numeric"),
    "nanoseconds": feed(
        columns=_columns(*_FEW, "single"), time_precision_mode="nanoseconds", binary_handling_mode="hex"
    ),
    "two keys": feed(columns=_columns("id", "class", "note", "amount"), keys=("id", "class")),
    "keys of dates and decimals": feed(
        columns={**_columns("day", "amount", "at", "note", "number")}, keys=("day", "at", "number")
    ),
    "a column op": feed(columns={**_columns("id", "note", "amount"), "op": "STRING"}, **_TABLES),
    "a text key": feed(columns=_columns("note", "amount"), keys=("note",)),
    "by offset, shards": feed(
        columns={"shard": {"type": "STRING", "from_topic": r"(shop)\."}, **_columns("id", "note", "day")},
        keys=("shard", "id"),
        sequence_by="kafka_offset",
    ),
}

_DEEP = "[" * 480 + "]" * 480
_EDGES = (0, 1, -1, 2**15, -(2**15), 2**31, -(2**31), 2**63, -(2**63), 2**64, 10**8, 10**28, 10**38, 719162, 2932896)
_EDGES_OF_TIME = (-62_135_596_800, 253_402_300_800)
_NAMES = placeholders("__debezium_unavailable_value")
_LEFT_OUT = (*map(json.dumps, _NAMES), *(one for one in _NAMES if one.startswith(("[", "{"))))
ODD = (
    *(
        "null",
        "true",
        "false",
        '""',
        '" "',
        '"x"',
        "-0",
        "-0.0",
        "0.0",
        "1e2",
        "1E+2",
        "1e400",
        "1e-400",
        "1.5",
        "1.10",
    ),
    *(str(sign * edge + near) for edge in _EDGES for near in (-1, 0, 1) for sign in (1, -1)),
    *(str(edge * unit + near) for edge in _EDGES_OF_TIME for unit in (10**3, 10**6, 10**9) for near in (-1, 0, 1)),
    *('"1"', '"-0"', '"+1"', '"01"', '"1.50"', '"1e2"', '"1.5E+1"', '"NaN"', '"Infinity"', '"infinity"', "9" * 5000),
    *('"ZA=="', '"ZA"', '"A+g="', '"AAAA"', '"ZA==\\n"', '"_w=="', '"/w=="', '"00ff"', f'"{"/" * 24}"'),
    *("{}", "[]", "[1]", "[null]", "[1.5]", '["a"]', '{"a":1}', '{"scale":2,"value":"ZA=="}', '"[1,2]"', '"[1"'),
    *('"0001-01-01"', '"9999-12-31"', '"2024-02-30"', '"0000-01-01"', '"1582-10-10"', '"2024-02-29Z"', '"10000-01-01"'),
    *('"2024-02-29T12:34:56Z"', '"2024-02-30T00:00:00Z"', '"2024-02-29 24:00:00Z"', '"2024-02-29T12:34:56+02:00"'),
    *('"0001-01-01T00:00:00Z"', '"1000-01-01T00:00:00Z"', '"9999-12-31T23:59:59.999999Z"', '"2024-01-01T00:00:60Z"'),
    *('"2024-01-01T00:00:00.1234567Z"', '"2024-01-01T00:00:00.5Z"', '"2024-01-01T00:00:00"', '"2024-01-01T00:00Z"'),
    *('"\\ud83d\\ude80"', '"\\ud83d"', '"\\u0000"', '"\\ufdd0"', '"注文"', '"\\/"', '"a\\u0062"', '"\u2028"'),
    *('{"\\ud83d":1}', '{"a":1,"a":2}', '{"op":1}', '{"op":1,"op":2}', '{"op":"c","x":[{"op":1}]}', _DEEP, f"[{_DEEP}"),
    *('{"a":' * 490 + "1" + "}" * 490, "[" * 30 + '"\\udc00"' + "]" * 30, '{"a":"\\"op\\":"}', '"\\"op\\":\\"c\\""'),
    # What is not JSON.
    *(
        "01",
        "+1",
        "1.",
        ".5",
        "1e",
        "NaN",
        "Infinity",
        "'x'",
        "tru",
        '"\\x"',
        '"\t"',
        '"\\u12"',
        "[1,]",
        '{"a":1,}',
        "",
    ),
    *_LEFT_OUT,
)
# Words of the source block's `snapshot`, of a flattened row's operation, and what is none.
_SNAPSHOTS = ('"true"', '"first"', '"incremental"', "true", "false", "null", '"LAST"', '"maybe"', '""', "1")
_WORDS = ('"c"', '"u"', '"d"', '"D"', '"delete"', '"true"', '"false"', '"True"', "true", "1", '""', "null", '["d"]')
# What other tools have around a row, or in it.
_FOREIGN = (
    '{"specversion":"1.0","id":1,"source":"/shop","type":"x","data":%s}',
    '{"database":"shop","table":"things","type":"insert","ts":1,"data":%s,"id":1}',
    '{"database":"shop","table":"things","type":"INSERT","isDdl":false,"data":[%s],"id":1}',
    '{"table":"things","op_type":"U","op_ts":"","before":%s,"after":{}}',
    '{"id":1,"_cdc":{"op":"D"},"note":%s}',
    '{"op":"u","op_type":"U","source":{},"before":null,"after":%s}',
)
_RAW_KEYS = (
    *(b"\0\0\0\xc8", b"\0\0\0A", b"\0\0\0\0\0\0\0\xc8", b"\xff\xff\xff\xff", b"\0\0\0\0\x07", b"Struct{id=1}"),
    *(b'\xef\xbb\xbf{"id":1}', b'{"id":1', b'"1', b"[1", b"abc", b"1", b'"1"', b"null", b'{"id":null}', b"a\x00"),
)
_RUNS = (b"run", b"\xff", None, b'"run"', b'{"schema":{"type":"string"},"payload":"run"}', b"null", b'"run')
_SPACES = (" ", "\n", "\t", "\r", "  ")
_OPS = ("t", "m", "x", "", "C", "\\u0063")


@dataclass
class Part:
    """A field of an object: its name as it is written, and its value as JSON."""

    name: str
    value: str


Parts = list[Part]


def usual(random: Random, declared: Column, of: Feed) -> str:
    """The JSON of a value as the connector writes it."""
    held = declared.element_type
    if isinstance(declared.type, ArrayType):
        return f"[{','.join(_usual(random, held.ddl) for _ in range(random.randrange(4)))}]"
    if declared.source_name == "numeric":
        return '{"scale":2,"value":"A+g="}' if carries_precise_decimals(of) else '"1.50"'
    if declared.source_name == "unsigned_bigint":
        return str(random.randrange(2**63))
    if isinstance(held, DecimalType):
        return _decimal(random, held, of)
    if held.ddl == "TIMESTAMP":
        unit = epoch_unit(declared, of)
        seconds = random.choice([*_EDGES_OF_TIME, random.randrange(2 * 10**9)]) - random.randrange(2)
        by_unit = {"millis": seconds * 1000, "micros": seconds * 10**6 + random.randrange(10**6)}
        return '"2024-02-29T12:34:56.5Z"' if unit is None else str(by_unit.get(unit, seconds * 10**9))
    by_source = {
        "timestamptz": '"2024-02-29T12:34:56.500000Z"',
        "uuid": '"00000000-0000-0000-0000-00000000000A"',
        "json": '"{\\"a\\": 1.50}"',
    }
    return by_source.get(declared.source_name or "") or _usual(random, held.ddl)


def _usual(random: Random, ddl: str) -> str:
    small = random.randrange(-1000, 1000)
    values = {
        "BOOLEAN": random.choice(["true", "false"]),
        "DATE": str(small * 20),
        "DOUBLE": repr(random.random() * small),
        "FLOAT": str(small / 8),
        "BINARY": '"AP8Q"',
        "STRING": random.choice(['"a"', '"注文 🚀"', '"a \\"b\\" \\\\ \\n"', '""', f'"{small}"']),
    }
    return values.get(ddl, str(small))


def _decimal(random: Random, held: DecimalType, of: Feed) -> str:
    unscaled = random.choice([0, random.randrange(-(10**9), 10**9), 10**held.precision - 1, 1 - 10**held.precision])
    if carries_precise_decimals(of):
        length = (unscaled + (unscaled < 0)).bit_length() // 8 + 1
        return json.dumps(base64.b64encode(unscaled.to_bytes(length, "big", signed=True)).decode())
    number = format(Decimal(f"{unscaled}E-{held.scale}"), "f")
    return json.dumps(number) if of.decimal_handling_mode == "string" and of.decimal_format == "base64" else number


def near_record(random: Random, of: Feed, *, mutations: int) -> Record:
    """A record of the feed with so many things that are not as usual."""
    row = [Part(name, usual(random, one, of)) for name, one in of.columns.items() if one.from_topic is None]
    source = _source(random, of)
    op = random.choice("rcuud")
    key = [Part(one.name, one.value) for one in row if one.name in of.keys]
    before = [Part(one.name, one.value) for one in random.choice([row, key])]
    event = [Part("before", ""), Part("after", ""), Part("source", ""), Part("op", f'"{op}"'), Part("ts_ms", "17")]
    objects = {"row": row, "source": source, "key": key, "before": before, "event": event}
    told_later = []
    for _ in range(mutations):
        later = _mutate(random, objects)
        if later is not None:
            told_later.append(later)
    texts = {"before": _text(before), "after": _text(row), "source": _text(source)}
    if random.randrange(3) == 0 or op in "rc":
        texts["before"] = "null"
    if op == "d":
        texts["after"] = "null"
    value = _text([Part(one.name, one.value or texts.get(one.name, "")) for one in event])
    key_text = _text(key)
    headers: list[tuple[str, bytes | None]] = []
    if random.randrange(3) == 0:
        headers.append(("__debezium.context.runId", random.choice(_RUNS)))
    for later in told_later:
        key_text, value = later_mutation(random, later, key_text, value, headers)
    raw_key, raw_value = key_text.encode(), value.encode()
    if "bytes" in told_later:
        place = random.randrange(len(raw_value) + 1)
        raw_value = (
            raw_value[:place] + random.choice([b"\xff", b"\x00", b"\xed\xa0\x80", b"\xef\xbb\xbf"]) + raw_value[place:]
        )
    if "raw key" in told_later:
        raw_key = random.choice(_RAW_KEYS)
    none = random.choice([None, b""])
    topic = of.topics[0]
    return Record(
        topic, none if "no key" in told_later else raw_key, none if "no value" in told_later else raw_value, headers
    )


def _source(random: Random, of: Feed) -> Parts:
    lsn = random.randrange(10**6)
    told = {"name": "shop", "ts_ms": 1_767_225_600_123, "snapshot": random.choice(["false", "last"]), "table": "things"}
    if of.kind == "postgresql":
        sequence = json.dumps([random.choice([None, "5"]), str(lsn)], separators=(",", ":"))
        told |= {"db": "shop", "schema": "public", "lsn": lsn, "sequence": sequence, "ts_us": 1_767_225_600_123_456}
    else:
        told |= {"db": "shop", "file": "bin.000001", "pos": lsn, "row": 0, "sequence": None}
    return [Part(name, json.dumps(value)) for name, value in told.items()]


_UNKNOWN = ("other", "op", "payload", "schema", "c0", "\\ud83d", "", "after", "op_type", "type", "data", "_cdc")
_LATER = (
    "spaces",
    "cut",
    "bytes",
    "more",
    "other key",
    "no key",
    "no value",
    "headers",
    "op again",
    "payload",
    "bare key",
    "raw key",
    "flattened",
    "foreign",
)


def _mutate(random: Random, objects: dict[str, Parts]) -> str | None:
    if random.randrange(4) == 0:
        return random.choice(_LATER)
    parts = objects[random.choice(["row", "row", "row", "source", "key", "before", "event"])]
    at = random.randrange(len(parts)) if parts else 0
    kinds = ["odd", "odd", "odd", "odd", "missing", "twice", "unknown", "escaped", "op", "left out", "snapshot"]
    kind = random.choice(kinds)
    odd = random.choice(_LEFT_OUT if kind == "left out" else ODD)
    if kind == "unknown" or not parts:
        parts.insert(at, Part(random.choice(_UNKNOWN), odd))
    elif kind == "snapshot":
        objects["source"].append(Part("snapshot", random.choice(_SNAPSHOTS)))
    elif kind in ("odd", "left out"):
        parts[at] = Part(parts[at].name, odd)
    elif kind == "missing":
        del parts[at]
    elif kind == "twice":
        parts.insert(random.randrange(len(parts) + 1), Part(parts[at].name, random.choice([odd, parts[at].value])))
    elif kind == "escaped":
        name = parts[at].name
        parts[at] = Part(f"\\u{ord(name[0]):04x}{name[1:]}" if name else name, parts[at].value)
    else:
        parts[at] = Part(parts[at].name, f'"{random.choice(_OPS)}"')
    return None


def later_mutation(
    random: Random, kind: str, key: str, value: str, headers: list[tuple[str, bytes | None]]
) -> tuple[str, str]:
    """Key and value with something else about their text; or more headers."""
    space = random.choice(_SPACES)
    if kind == "spaces":
        mark = random.choice([",", ":", "{", "}"])
        return key.replace(mark, f"{space}{mark}{space}"), value.replace(mark, f"{space}{mark}{space}")
    if kind == "headers":
        names = ["__debezium.oldkey", "__debezium.newkey", "__deleted", "__op", "id", "eventType"]
        forms = (b'{"id":1}', b'"d"', b"d", b"true", b'{"schema":null,"payload":{"id":1}}', b"null")
        headers.insert(0, (random.choice(names), random.choice(forms)))
    at = random.randrange(len(value) + 1)
    again = random.choice(["op", "\\u006fp", "o\\u0070", "after"])
    by_kind = {
        "cut": (key, value[:at]),
        "more": (key, value + random.choice(["x", " ", "\n", "{}", ",", "\x00"])),
        "other key": (random.choice(ODD), value),
        "op again": (key, f'{value[:-1]},"{again}":"d"}}'),
        "payload": (key, f'{{"payload":{value}}}'),
        "flattened": (key, _flattened(random, key)),
        "foreign": (key, random.choice(_FOREIGN) % value),
        "bare key": (key.partition(":")[2].removesuffix("}"), value),
    }
    return by_kind.get(kind, (key, value))


def _flattened(random: Random, row: str) -> str:
    """The object with what ExtractNewRecordState adds to a row."""
    added = random.choice(["__op", "__deleted", "__source_snapshot", "op"])
    return f'{row[:-1]},"note":"a","{added}":{random.choice((*_WORDS, *_SNAPSHOTS))}}}'


def _text(parts: Sequence[Part]) -> str:
    return "{" + ",".join(f'"{one.name}":{one.value}' for one in parts) + "}"
