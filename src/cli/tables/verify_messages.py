"""What `lakehouse verify` says: its findings as sentences with the next step, and its errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakehouse.errors import ConservationError

if TYPE_CHECKING:
    from cli.tables.accounts import Account
    from gold.derived.recomputed import TableComparison
    from gold.topics.compare import Comparison


# What is shown, and is no error.
# Shown last, in this order.
HARMLESS = ("suspended", "skipped", "pending")


def table_differs(comparison: TableComparison) -> ConservationError:
    """The error of a table of gold that is not what its tables give."""
    return ConservationError(
        f"{comparison.table} is not what the tables that it is computed from give, in "
        f"{count_of(comparison.differing, 'key')}.",
        hint="Run `lakehouse gold` and compare again, should a run have died. Otherwise find out who else writes to "
        "it; then `lakehouse gold --full-refresh` computes it again.",
    )


def history_differs(history: str, table: str, differing: int) -> ConservationError:
    """The error of a history whose last versions are not the rows of its table."""
    return ConservationError(
        f"The last versions of {history} are not the rows of {table}, in {count_of(differing, 'key')}.",
        hint="Run `lakehouse silver` and compare again, should a run have died. Otherwise find out who else writes to "
        "them; then delete all silver tables of the source and run silver, which rebuilds them from bronze.",
    )


def table_not_compared(comparison: TableComparison) -> ConservationError:
    """The error of a table of gold that could not be compared, with the reason."""
    return ConservationError(
        f"{comparison.table} could not be compared: {comparison.why_not}.",
        hint="Run `lakehouse gold`, which brings it up to silver as it is now, and compare again.",
    )


def topic_differs(comparison: Comparison) -> ConservationError:
    """The error of a topic that is not gold, with the keys."""
    named = f": {', '.join(comparison.keys)}" if comparison.keys else ""
    more = comparison.differing - len(comparison.keys)
    also = f" and {more:,} more" if comparison.keys and more else ""
    return ConservationError(
        f"Topic {comparison.topic} is not what was published of {comparison.table}, in "
        f"{count_of(comparison.differing, 'key')}{named}{also}.",
        hint="Find out who else writes to it or deletes from it; then `lakehouse publish --republish` sends all of "
        f"{comparison.table} again.",
    )


def topic_not_compared(comparison: Comparison) -> ConservationError:
    """The error of a topic that could not be compared, with the reasons."""
    reasons = "; ".join(f"{name}: {why}" for name, why in comparison.unreadable.items())
    return ConservationError(
        f"Topic {comparison.topic} could not be compared: {reasons}.",
        hint="Run `lakehouse publish`, which brings it up to its table as it is now, and compare again.",
    )


def topic_sentences(comparison: Comparison | None) -> list[str]:
    """What there is to say of the topic, other than that it differs."""
    if comparison is None:
        return ["The unified topic was not compared with gold. Next: pass --bootstrap-servers, and no --source"]
    is_unified = comparison.table == "gold"
    what = "Source" if is_unified else "Table"
    lines = [f"{what} {name} was not compared with the topic: {why}." for name, why in comparison.unpublished.items()]
    if lines:
        lines.append("  Next: lakehouse publish")
    if comparison.behind:
        lines.append(
            f"{count_of(comparison.behind, 'commit')} of {comparison.table} are pending for publication. "
            "Next: lakehouse publish"
        )
    if comparison.orders and not comparison.differing:
        rows = count_of(comparison.orders, "order" if is_unified else "row")
        lines.append(f"Topic {comparison.topic} has the {rows} of {comparison.table}, and no other.")
    return lines


def summary(account: Account) -> str:
    """The source's numbers in one line: `1,234 read = 1,000 applied + …`."""
    from silver.order.state import COUNTED

    sums = {count: sum(counted[count] for counted in account.topic_partitions) for count in COUNTED}
    return f"{sums.pop('read'):,} read = " + " + ".join(f"{number:,} {count}" for count, number in sums.items())


def sentences(account: Account) -> list[str]:
    """Every finding as a sentence, with the next step after those of a kind."""
    again = recreated_topics(account)
    lines = []
    harmful = sorted(account.findings.keys() - {*HARMLESS})
    for kind in (*harmful, *(one for one in HARMLESS if one in account.findings)):
        found = account.findings[kind]
        if kind == "pending":
            pending = count_of(found.records, "record")
            lines.append(f"{pending} of bronze are pending for silver. Next: lakehouse silver")
            continue
        for one in found.shown:
            lines.append(f"{_where(one, again)}: {_SENTENCES[kind].format(**_words(one, account.source))}.")
        if found.number > len(found.shown):
            lines.append(f"… and {found.number - len(found.shown):,} more: {count_of(found.records, 'record')} in all.")
        if kind in _NEXT:
            lines.append(f"  Next: {_NEXT[kind].format(**_words(found.shown[0], account.source))}")
    return lines


def failure_of(account: Account) -> ConservationError | None:
    """The error of a source with records that are not accounted for; None where all are."""
    wrong = [
        f"{_SAYS[kind]} ({count_of(found.records, 'record')})"
        for kind, found in account.findings.items()
        if kind not in HARMLESS
    ]
    if not wrong:
        return None
    return ConservationError(
        f"Source {account.source}: not every record is accounted for: {', '.join(wrong)}.",
        hint="Each is named with its offsets and the next step: docs/verify.md says more.",
    )


def recreated_topics(account: Account) -> set[str]:
    """The topics that were deleted and created again: their ids distinguish them."""
    ids = {(counted["topic"], counted["topic_id"]) for counted in account.topic_partitions}
    topics = [topic for topic, _id in ids]
    return {topic for topic in topics if topics.count(topic) > 1}


def topic_name(counted: Mapping[str, Any], again: set[str]) -> str:
    """The topic; with its id where another one had its name."""
    return f"{counted['topic']} (id {counted['topic_id']})" if counted["topic"] in again else str(counted["topic"])


def _where(found: Mapping[str, Any], again: set[str]) -> str:
    return f"topic {topic_name(found, again)}, partition {found['partition']}"


def _words(found: Mapping[str, Any], source: str) -> dict[str, Any]:
    """What the sentences of a finding are made of."""
    first, last, records = found.get("first"), found.get("last"), found["records"]
    span = f"offset {first}" if first == last else f"offsets {first} to {last}"
    is_part = first is not None and last is not None and records != last - first + 1
    return {
        **found,
        "source": source,
        "span": span if first is not None else "records of earlier batches",
        "offsets": f"{records:,} of the {span}" if is_part else span,
        "is_": "is" if records == 1 else "are",
        "was": "was" if records == 1 else "were",
        "them": "it" if records == 1 else "them",
    }


def count_of(records: int, what: str) -> str:
    """A number with its noun."""
    return f"{records:,} {what}{'' if records == 1 else 's'}"


# Of every kind of finding that is an error: its name in the error's one line.
_SAYS = {
    "missing": "missing from bronze",
    "stored_twice": "stored twice",
    "never_read": "never read",
    "not_counted": "passed over by silver",
    "counted_twice": "counted twice",
    "unbalanced": "in rows of the batch audit that do not add up",
    "read_otherwise": "in rows of the batch audit that read another number than there is",
}
_SENTENCES = {
    "missing": "{offsets} {was} read, and {is_} not in bronze.{source}_events any more",
    "stored_twice": "{offsets} {is_} in bronze.{source}_events more than once",
    "never_read": "{offsets} {was} never read: between two batches of bronze, and not skipped by command",
    "skipped": "{offsets} {was} skipped by command (ops.batches says why)",
    "suspended": "{offsets} {was} not applied: gate 1 has suspended the table (`suspended` in ops.batches says why)",
    "not_counted": "{offsets} {is_} in bronze, and silver has passed over {them}",
    "counted_twice": "{offsets} {was} counted by more than one batch of silver",
    "unbalanced": "batch {batch} of silver, {span}, read {recorded:,} records and accounts for {found:,}",
    "read_otherwise": "batch {batch} of silver, {span}, read {recorded:,} records where there are {found:,}",
}
_ANEW = "rebuild silver from bronze (docs/verify.md)."
_AGAIN = (
    "while the topic has {them}: lakehouse offsets set {source} --topic {topic} --partition {partition} --to {first}"
)
_NEXT = {
    "suspended": "docs/quarantine.md says how a table goes on.",
    "missing": f"{_AGAIN}, then lakehouse bronze; then {_ANEW}",
    "stored_twice": "DESCRIBE HISTORY of bronze.{source}_events says what wrote {them}; silver is as it should be.",
    "never_read": f"{_AGAIN}, then lakehouse run.",
    "not_counted": _ANEW,
    "counted_twice": _ANEW,
    "unbalanced": _ANEW,
    "read_otherwise": _ANEW,
}
