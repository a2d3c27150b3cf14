"""How far a connector has come in its database's log, and what moving it does to the tables.

PostgreSQL: `lsn_proc`, else `lsn`, is where the connector asks the server to go on; transactions that had committed by
`lsn_commit` are not sent again. MySQL and MariaDB: with `gtids` the server decides by them, else by `file` and `pos`.
Seen in what Debezium 3.6.1 loads and stores.

Sets of GTIDs. MySQL: `uuid:1-5:7-9,uuid:...`, with tags `uuid:tag:1-5` since 8.3. MariaDB:
`domain-server-sequence,...`, of each domain the last one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from connectors.connectors import Connector
from connectors.findings import Part
from lakehouse.errors import SettingsError

_MARIADB = re.compile(r"(\d+)-(\d+)-(\d+)")
_INTERVAL = re.compile(r"(\d+)(?:-(\d+))?")


def without_blanks(text: str) -> str:
    """The set in one line."""
    return re.sub(r"\s+", "", text)


def ahead(old: str, new: str) -> Literal["forward", "back", "nowhere", "unknown"]:
    """Whether `new` holds all of `old` and more (forward), or less (back). Unknown: each has what the other lacks."""
    before, after = _parsed(old), _parsed(new)
    if before is None or after is None:
        return "unknown"
    has_all, is_all = _contains(after, before), _contains(before, after)
    if has_all and is_all:
        return "nowhere"
    return "forward" if has_all else "back" if is_all else "unknown"


Intervals = tuple[tuple[int, int], ...]


def _parsed(text: str) -> Mapping[str, Intervals] | None:
    found: dict[str, Intervals] = {}
    for part in filter(None, without_blanks(text).split(",")):
        mariadb = _MARIADB.fullmatch(part)
        if mariadb:
            found[f"domain {mariadb[1]}"] = ((0, int(mariadb[3])),)
            continue
        source, *intervals = part.lower().split(":")
        for one in intervals:
            interval = _INTERVAL.fullmatch(one)
            if interval is None:
                source = f"{source.split(':', maxsplit=1)[0]}:{one}"  # a tag: what follows belongs to it
                continue
            first, last = int(interval[1]), int(interval[2] or interval[1])
            found[source] = (*found.get(source, ()), (first, last))
        if not intervals:
            return None
    return {source: _joined(intervals) for source, intervals in found.items()}


def _joined(intervals: Intervals) -> Intervals:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def _contains(whole: Mapping[str, Intervals], part: Mapping[str, Intervals]) -> bool:
    return all(
        any(first <= one[0] and one[1] <= last for first, last in whole.get(source, ()))
        for source, intervals in part.items()
        for one in intervals
    )


Direction = Literal["forward", "back", "nowhere", "unknown"]

OF_POSTGRESQL = ("lsn", "lsn_proc", "lsn_commit", "ts_usec", "txId")
OF_BINLOG = ("file", "pos", "gtids", "row", "event", "ts_sec", "server_id")
_TEXT = ("file", "gtids")
# Of a snapshot that was not finished: a position that is set by hand is one in the log.
_OF_A_SNAPSHOT = ("snapshot", "snapshot_completed", "last_snapshot_record")
_LSN = re.compile(r"(?P<high>[0-9A-Fa-f]{1,8})/(?P<low>[0-9A-Fa-f]{1,8})")
_BINLOG = re.compile(r"(?P<base>.+)\.(?P<number>\d+)")

Offset = Mapping[str, Any]


class Move(Part):
    """A new offset for one partition of a connector, against the one it has."""

    partition: dict[str, Any]
    old: dict[str, Any] | None
    new: dict[str, Any]
    direction: Direction


def position(offset: Offset) -> str:
    """The position of an offset, for a person."""
    lsn = _lsn_of(offset)
    if lsn is not None:
        return f"lsn {lsn} ({lsn_text(lsn)})"
    if "file" in offset:
        gtids = f", gtids {offset['gtids']}" if offset.get("gtids") else ""
        return f"{offset['file']} at {offset.get('pos', '?')}{gtids}"
    return json.dumps(dict(offset), sort_keys=True)


def lsn_text(lsn: int) -> str:
    """An LSN as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def direction(old: Offset | None, new: Offset) -> Direction:
    """Whether the new offset is later in the log; unknown where the two cannot be compared."""
    if old is None:
        return "unknown"
    here, there = _lsn_of(old), _lsn_of(new)
    if here is not None and there is not None:
        return _sign(there - here)
    if old.get("gtids") and new.get("gtids"):
        return ahead(str(old["gtids"]), str(new["gtids"]))
    before, after = _binlog(old), _binlog(new)
    if before is not None and after is not None and before[0] == after[0]:
        return "forward" if after[1:] > before[1:] else "back" if after[1:] < before[1:] else "nowhere"
    return "unknown"


def _sign(difference: int) -> Direction:
    return "forward" if difference > 0 else "back" if difference < 0 else "nowhere"


def _lsn_of(offset: Offset) -> int | None:
    value = offset.get("lsn_proc", offset.get("lsn"))
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def binlog_file(name: str) -> tuple[str, int] | None:
    """The name of a binlog's files and the number of this one; None for another name.

    Numbers have six digits at least, so they are no text: `.999999` is followed by `.1000000`.
    """
    found = _BINLOG.fullmatch(name)
    return None if found is None else (found["base"], int(found["number"]))


def _binlog(offset: Offset) -> tuple[str, int, int] | None:
    file, pos = binlog_file(str(offset.get("file", ""))), offset.get("pos")
    return (*file, pos) if file is not None and isinstance(pos, int) else None


def parsed(pairs: Sequence[str], connector: Connector) -> dict[str, Any]:
    """The offset that KEY=VALUE of the command line say, complete and consistent.

    Of PostgreSQL an lsn alone will do, as a number or as PostgreSQL writes it: the others follow it. Of MySQL and
    MariaDB, gtids where the server has them, else file and pos. Raises SettingsError for everything else.
    """
    known = OF_POSTGRESQL if connector.database == "postgresql" else OF_BINLOG
    given: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not value:
            raise SettingsError(f"--offset {pair!r} has no value.", remedy="Write --offset KEY=VALUE.")
        if key not in known:
            raise SettingsError(f"An offset of this connector has no {key!r}.", remedy=f"It has: {', '.join(known)}.")
        given[key] = without_blanks(value) if key == "gtids" else value if key in _TEXT else _number(key, value)
    return _of_postgresql(given) if connector.database == "postgresql" else _of_binlog(given)


def _of_postgresql(given: Mapping[str, Any]) -> dict[str, Any]:
    lsn = given.get("lsn", given.get("lsn_proc"))
    if lsn is None:
        raise SettingsError("The offset has no lsn.", remedy="Give --offset lsn=16/B374D848, or its number.")
    return {"lsn": lsn, "lsn_proc": lsn, "lsn_commit": lsn, **given}


def _of_binlog(given: Mapping[str, Any]) -> dict[str, Any]:
    has_place = {"file", "pos"} <= given.keys()
    if not has_place and ("gtids" not in given or {"file", "pos"} & given.keys()):
        raise SettingsError(
            "The offset has no file, or no pos.",
            remedy="Give both, as SHOW BINARY LOGS has them: --offset file=binlog.000012 --offset pos=4; or gtids.",
        )
    if has_place and binlog_file(str(given["file"])) is None:
        raise SettingsError(f"{given['file']!r} is no binlog file.", remedy="A name ends in a number: binlog.000012.")
    return dict(given)


def _number(key: str, value: str) -> int:
    text = _LSN.fullmatch(value) if key.startswith("lsn") else None
    if text is not None:
        return (int(text["high"], 16) << 32) + int(text["low"], 16)
    if not re.fullmatch(r"[0-9]{1,18}", value):
        raise SettingsError(f"--offset {key}={value}: not a number.", remedy="Give digits.")
    return int(value)


def saved(text: str, *, file: str) -> list[dict[str, Any]]:
    """The offsets that `lakehouse connect offsets show --json` wrote. Raises SettingsError for anything else."""
    remedy = "Give a file that `lakehouse connect offsets show NAME --json` wrote."
    try:
        told = json.loads(text)
    except ValueError:
        raise SettingsError(f"{file} is not JSON.", remedy=remedy) from None
    offsets = told.get("offsets") if isinstance(told, dict) else None
    is_whole = isinstance(offsets, list) and all(
        isinstance(one, dict) and isinstance(one.get("partition"), dict) and isinstance(one.get("offset"), dict)
        for one in offsets
    )
    if not offsets or not is_whole:
        raise SettingsError(f"{file} has no offsets.", remedy=remedy)
    return [{"partition": one["partition"], "offset": one["offset"]} for one in offsets]


def moves(current: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> tuple[Move, ...]:
    """Of every wanted partition the move. Raises SettingsError for a partition that the connector does not have."""
    now = {_key(one["partition"]): one["offset"] for one in current}
    found = []
    for one in wanted:
        if now and _key(one["partition"]) not in now:
            raise SettingsError(
                f"The connector has no partition {json.dumps(one['partition'])}.",
                remedy="Was the file saved from another connector? Look: lakehouse connect offsets show.",
            )
        old, new = now.get(_key(one["partition"])), dict(one["offset"])
        found.append(Move(partition=dict(one["partition"]), old=old, new=new, direction=direction(old, new)))
    return tuple(found)


def wanted_from(offset: Offset, current: Sequence[Mapping[str, Any]], connector: Connector) -> list[dict[str, Any]]:
    """The offset for the one partition of the connector; gtids alone keep its file and pos, which are not asked then.

    Raises SettingsError when it has several partitions, and for a position without the gtids that its server uses.
    """
    if len(current) > 1:
        raise SettingsError(
            f"The connector has {len(current)} partitions.", remedy="Save them, change the file, and use --to-file."
        )
    partition = current[0]["partition"] if current else {"server": connector.get("topic.prefix")}
    present: Offset = current[0]["offset"] if current else {}
    if "gtids" in offset and not {"file", "pos"} <= {*offset, *present}:
        raise SettingsError(
            "The connector has no offset whose file and pos could be kept.", remedy="Give file and pos, too."
        )
    if present.get("gtids") and connector.database == "mysql" and "gtids" not in offset:
        # The connector asks a server that has GTIDs by them, and fails at an offset without (Debezium 3.6.1).
        raise SettingsError(
            "The server has GTIDs, and goes by them: file and pos alone are no place.",
            remedy="Give --offset gtids=...: what was executed before the place. For the beginning of a file:"
            " SHOW BINLOG EVENTS IN 'FILE' LIMIT 2, its Previous_gtids.",
        )
    kept = {key: present[key] for key in ("file", "pos") if "gtids" in offset and key in present}
    return [{"partition": partition, "offset": {**kept, **offset}}]


def _key(partition: Mapping[str, Any]) -> str:
    return json.dumps(dict(partition), sort_keys=True)


def is_in_snapshot(offset: Offset) -> bool:
    """Whether a snapshot was under way when the offset was stored."""
    return any(offset.get(key) not in {None, False} for key in _OF_A_SNAPSHOT if key != "snapshot_completed")
