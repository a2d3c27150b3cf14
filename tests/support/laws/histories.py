"""Random histories of a model of a database, each read in one of several ways: cases of the laws."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from lakehouse.contracts.topics import SourceKind
from tests.support.events import Record
from tests.support.laws.played import Cases
from tests.support.model.batches import BATCHES, WAYS, Batches, Way, in_offset_order, in_one, sent_again
from tests.support.model.history import History
from tests.support.model.stories import random_history
from tests.support.sharded import topic_of

SOURCES: Mapping[str, Sequence[SourceKind]] = {"postgres": ("postgresql",), "mysql": ("mysql", "mariadb")}
# Of each source. What the fold makes of many more is told in plain Python: tests/unit/silver/order, `make fuzz`.
HISTORIES = int(os.environ.get("HISTORIES", "100"))
# Always the same ones here; with HISTORIES and LAWS_SEED others, and more. `make fuzz` tells them without Spark.
SEED = 3_194_370_849
# Beside those: so many that are sent again.
SENT_AGAIN = HISTORIES // 5


def every_record_sent_again(history: History, random: Random) -> Batches:
    """Of a history in which it is (`sent_again`): in one batch, or cut anywhere."""
    if random.random() < 0.3:
        return in_one(history.records)
    return in_offset_order(history.records, random, count=BATCHES)


ALL_WAYS = (*WAYS, every_record_sent_again)


@dataclass(frozen=True)
class Histories:
    """By source and case, the histories and how each is read; and their records, all of them once more at the end."""

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
            for batch, records in enumerate(way(history, random)):
                batches[source][batch] += records
    again = {source: [record for batch in of_source for record in batch] for source, of_source in batches.items()}
    return Histories(found, Cases(batches, again))
