"""Random histories of a model of a database, each read in one of several ways: cases of the laws.

Few: what the rules make of thousands is told in plain Python (tests/unit/silver/order, `make fuzz`). These show that
Spark, Delta and the state between batches keep to it, so every feature is in some of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from lakehouse.contracts.topics import SourceKind
from tests.support.events import Record
from tests.support.laws.played import BATCHES, Cases
from tests.support.model.batches import WAYS, Batches, Way, in_offset_order, in_one, one_batch, sent_again
from tests.support.model.history import History
from tests.support.model.stories import random_history
from tests.support.sharded import topic_of

SOURCES: Mapping[str, Sequence[SourceKind]] = {"postgres": ("postgresql",), "mysql": ("mysql", "mariadb")}
# Of each source.
HISTORIES = int(os.environ.get("HISTORIES", "16"))
# Always the same ones here; with HISTORIES and LAWS_SEED others, and more.
SEED = 3_010
# Beside those: so many that are sent again.
SENT_AGAIN = HISTORIES // 4


def every_record_sent_again(history: History, random: Random) -> Batches:
    """Of a history in which it is (`sent_again`): in one batch, or cut anywhere."""
    if random.random() < 0.3:
        return in_one(history.records)
    return in_offset_order(history.records, random, count=BATCHES)


ALL_WAYS = (*WAYS, every_record_sent_again)
# What they make may be one batch.
UNCUT: Sequence[Way] = (one_batch, every_record_sent_again)


@dataclass(frozen=True)
class Histories:
    """By source and case, the histories and how each is read; and their records: the last batch has all of them."""

    of_source: Mapping[str, Mapping[str, tuple[History, Way]]]
    cases: Cases


def read_histories(seed: int) -> Histories:
    """The same histories, cut into the same batches, for the same seed."""
    found: dict[str, dict[str, tuple[History, Way]]] = {}
    batches: dict[str, list[list[Record]]] = {}
    for source in SOURCES:
        found[source], batches[source] = {}, [[] for _ in range(BATCHES)]
        for number in range(HISTORIES + SENT_AGAIN):
            case, random = f"{source}{number}", Random(f"{seed} {source} {number}")  # noqa: S311
            way = WAYS[number % len(WAYS)] if number < HISTORIES else every_record_sent_again
            kind = random.choice(SOURCES[source])
            history = random_history(kind, random, topic=topic_of(case, f"{source}_orders"), features=None)
            if way is every_record_sent_again:
                history = sent_again(history, random)
            found[source][case] = history, way
            first, behind = _in_two(history, way, random)
            for batch, records in enumerate((first, [*behind, *first])):
                batches[source][batch] += records
    return Histories(found, Cases(batches))


def _in_two(history: History, way: Way, random: Random) -> Batches:
    """The first batch of this way, and those behind it together; neither is empty, where the way cuts at all."""
    while True:
        first, *others = way(history, random)
        behind = [record for batch in others for record in batch]
        if (first and behind) or way in UNCUT:
            return [first, behind]
