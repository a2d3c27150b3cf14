"""A history, and the names of all things that it can contain."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from lakehouse.contracts.topics import SourceKind
from tests.support.events import Record
from tests.support.model.table import Row

POSTGRES_ONLY = frozenset(
    {
        "interleaved",  # transactions write their LSNs by turns and are sent in the order of their commits
        "null_first",  # a run without stored offsets: `sequence` begins with null for the whole first transaction
        "open_transaction",  # a transaction is open while a snapshot is taken, and commits behind it
        "toast",  # large notes, which an update that does not touch them leaves out
        "key_change_toast",  # a changed key whose new row leaves out the note of the old one
    }
)
BINLOG_ONLY = frozenset(
    {
        "rotation",  # mysql-bin.999999 is followed by mysql-bin.1000000
    }
)
EVERYWHERE = frozenset(
    {
        "several_rows",  # one statement writes several rows at one position
        "key_change",  # a delete and a create with one source block, linked by headers
        "first_snapshot",  # the first run opens with a full snapshot
        "truncate",  # op t, without a key
        "full_snapshot",  # a later run opens with a full snapshot, since the connector lost its offsets
        "broken_snapshot",  # the full snapshot is the second try: the one before it broke off
        "partial_snapshot",  # some rows are read again in the middle of a run: incremental or blocking
        "replay",  # a run begins with records that the run before had sent
        "torn_replay",  # some partitions lost their last records in the crash: the replay sends them first
        "epoch",  # the source's coordinates start again
        "partitions",  # two or three partitions, by a hash of the key
        "compacted",  # compaction left only the tombstone of some delete
        "quarantine",  # rows with an amount that is negative or no number
        "forged",  # a record with a position far ahead of everything
        "no_run_header",  # a connector before Debezium 3.2, or without its extended headers
    }
)
# What the written rules do not decide yet, or only by comparing partitions: contained only when asked for by name.
POSTGRES_EXTREMES = frozenset(
    {
        "open_transaction_next_run",  # the open transaction is streamed by the run after the snapshot's
    }
)
BINLOG_EXTREMES = frozenset(
    {
        "compressed",  # the statements of a transaction share one position, and `row` starts again in each
    }
)
EXTREMES = frozenset(
    {
        "blocking_opens_partition",  # a blocking snapshot's rows are the run's first records in a partition
        "epoch_overlap",  # the coordinates fall back only a little, and pass the old ones again
    }
)
# Contained as well, wherever the first is.
IMPLIED: Mapping[str, frozenset[str]] = {
    "key_change_toast": frozenset({"key_change", "toast"}),
    "broken_snapshot": frozenset({"full_snapshot"}),
    "torn_replay": frozenset({"replay"}),
    "epoch_overlap": frozenset({"epoch"}),
    "open_transaction_next_run": frozenset({"first_snapshot"}),
    "blocking_opens_partition": frozenset({"partial_snapshot", "partitions"}),
}
# PostgreSQL only: these runs have no stored offsets.
WITHOUT_STORED_OFFSETS = frozenset({"first_snapshot", "full_snapshot", "epoch"})
NEVER_TOGETHER = (
    # A compacted topic takes no record without a key, and a truncate has none.
    frozenset({"compacted", "truncate"}),
    # Without the name of its run nothing distinguishes a later snapshot, or a log that starts again: the feed is
    # suspended, or its rows that are gone stay. And a replay of what compaction has removed is none.
    *(
        frozenset({"no_run_header", name})
        for name in ("epoch", "forged", "full_snapshot", "broken_snapshot", "compacted", "epoch_overlap")
    ),
    frozenset({"no_run_header", "blocking_opens_partition"}),
    frozenset({"no_run_header", "open_transaction_next_run"}),
)
# What the order of the offsets decides: a batch with later offsets of a partition must not come first.
NOT_SHUFFLABLE = frozenset({"epoch", "compacted", "forged", "no_run_header"})


@dataclass(frozen=True)
class History:
    """The records of one table's topic, and the rows that they must end in."""

    kind: SourceKind
    topic: str
    records: Sequence[Record]  # of all partitions, in the order in which they were sent
    rows: Mapping[int, Row | None]  # every key that a record names; None: deleted, or never there
    features: frozenset[str]
    bad_offsets: frozenset[tuple[int, int]]  # (partition, offset) of the records that belong into quarantine
    shufflable: bool  # whether the rows are the same in whatever order the batches come


def features_of(kind: SourceKind, *, extremes: bool = False) -> frozenset[str]:
    """Everything that a history of this kind can contain."""
    if kind == "postgresql":
        return EVERYWHERE | POSTGRES_ONLY | (EXTREMES | POSTGRES_EXTREMES if extremes else frozenset())
    return EVERYWHERE | BINLOG_ONLY | (EXTREMES | BINLOG_EXTREMES if extremes else frozenset())


def chosen_features(kind: SourceKind, random: Random, asked: Collection[str] | None) -> frozenset[str]:
    """What was asked for, or a random choice, and what that implies."""
    if asked is None:
        asked = {name for name in sorted(features_of(kind)) if random.random() < 0.3}
        for pair in NEVER_TOGETHER:
            if asked >= pair:
                asked.remove(random.choice(sorted(pair)))
    unknown = set(asked) - features_of(kind, extremes=True)
    if unknown:
        raise ValueError(f"not a feature of a {kind} history: {', '.join(sorted(unknown))}")
    chosen = frozenset(asked).union(*(IMPLIED.get(name, ()) for name in asked))
    for pair in NEVER_TOGETHER:
        if chosen >= pair:
            raise ValueError(f"never together: {', '.join(sorted(pair))}")
    if "open_transaction" in chosen and not chosen & {"first_snapshot", "full_snapshot"}:
        chosen |= {"first_snapshot"}
    if kind == "postgresql" and chosen & WITHOUT_STORED_OFFSETS:
        chosen |= {"null_first"}
    return chosen
