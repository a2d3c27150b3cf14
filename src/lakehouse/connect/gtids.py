"""Sets of GTIDs, MySQL's and MariaDB's, as far as one can be ahead of another.

MySQL: `uuid:1-5:7-9,uuid:...`, with tags `uuid:tag:1-5` since 8.3. MariaDB: `domain-server-sequence,...`, of each
domain the last one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

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
