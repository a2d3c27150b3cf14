"""The five files of a proposal as commented YAML, every guess with its reason."""

from __future__ import annotations

from collections import Counter

from cli.proposal.guesses import Guessed, Proposal, ProposedColumn
from cli.proposal.texts.text import comment, line, scalar
from silver.by_rule.types import DecimalMode


def topics(proposal: Proposal) -> list[str]:
    """bronze/topics.yaml: the source and its feed."""
    mode = _decimal_mode(proposal)
    return [
        *comment(f"Proposed from a sample of {proposal.topic}:"),
        *comment(f"{proposal.seen}."),
        *comment("Check what the comments say of every guess, then: lakehouse validate --contracts DIR."),
        "sources:",
        *line(2, f"{scalar(proposal.source.value)}:", proposal.source.why),
        *line(4, f"kind: {proposal.kind.value}", proposal.kind.why),
        *line(4, "start: earliest", "of the very first run; every later one continues"),
        "    feeds:",
        *line(6, f"{proposal.feed}:", f"its silver table is silver.{proposal.feed}"),
        f"        topics: [{scalar(proposal.topic)}]",
        *line(8, f"envelope: {proposal.envelope}", _why_envelope(proposal)),
        *(line(8, f"tables: [{scalar(proposal.tables.value)}]", proposal.tables.why) if proposal.tables else []),
        *(line(8, f"decimal_handling_mode: {mode.value}", mode.why) if mode else []),
        *_ignored(proposal),
    ]


def _why_envelope(proposal: Proposal) -> str:
    if proposal.envelope == "outbox":
        return f"what the EventRouter writes in {proposal.events} records"
    if {"aggregateid", "payload"} <= {column.field for column in proposal.columns}:
        return "check: it looks like an outbox table that the connector sends without the EventRouter"
    return f"op, source and a row in {proposal.events} records"


def _decimal_mode(proposal: Proposal) -> Guessed | None:
    """How decimals travel, when the sample shows it; None for an outbox and for what the default says."""
    modes: Counter[DecimalMode] = Counter(one.guess.decimals for one in proposal.columns if one.guess.decimals)
    if proposal.envelope == "outbox" or not modes or "precise" in modes:
        return None
    mode: DecimalMode = "string" if "string" in modes else "double"
    how = "text of numbers" if mode == "string" else "numbers with a fraction"
    count = modes[mode]
    return Guessed(mode, f"{count} column{' is' if count == 1 else 's are'} {how}, none could be base64 of a decimal")


def _ignored(proposal: Proposal) -> list[str]:
    why = "heartbeats, transactions, schema changes of this connector; read when they exist"
    if proposal.ignored_topics:
        return [*line(4, "ignored_topics:", why), *(f"      - {scalar(topic)}" for topic in proposal.ignored_topics)]
    return line(4, "ignored_topics: []", why)


def tables(proposal: Proposal) -> list[str]:
    """silver/tables.yaml: the silver table."""
    return [
        *comment("The silver table of the feed, its columns in the order in which the events first have them."),
        "tables:",
        f"  {proposal.feed}:",
        *line(4, f"keys: [{scalar(proposal.key)}]", proposal.key_why),
        *(_order_of_table() if proposal.envelope == "table" else _order_of_outbox(proposal)),
        "    columns:",
        *[one for column in proposal.columns for one in _column(proposal, column)],
    ]


def _order_of_table() -> list[str]:
    return line(4, "sequence_by: source_position", "change events carry their place in the database's log")


def _order_of_outbox(proposal: Proposal) -> list[str]:
    partial = max((column.lacking for column in proposal.columns), default=0)
    whole = (
        "every event has every column" if not partial else f"up to {partial} of {proposal.events} events lack a column"
    )
    return [
        *line(4, "sequence_by: kafka_offset", "outbox events carry no place in the database's log"),
        *line(4, "payload: full", f"{whole}; partial, if what an event leaves out stays as it is"),
        *line(4, "apply_as_deletes: []", "add the event types that delete the row; then every event needs a type"),
    ]


def _column(proposal: Proposal, column: ProposedColumn) -> list[str]:
    guess = column.guess
    parts = [
        *(
            [Guessed(f"fields: [{scalar(column.field)}]", "its name in the events")]
            if column.field != column.name
            else []
        ),
        *([Guessed(f"source_type: {guess.source_type}", "")] if guess.source_type else []),
        # micros is the default
        *([Guessed(f"epoch_unit: {guess.epoch_unit}", "")] if guess.epoch_unit not in (None, "micros") else []),
        *(
            [Guessed("optional: true", f"{column.lacking} of {proposal.events} events lack it")]
            if column.lacking
            else []
        ),
    ]
    name = scalar(column.name)
    if not parts:
        return line(6, f"{name}: {guess.type}", guess.why)
    below = [Guessed(f"type: {guess.type}", ""), *parts]
    return [*line(6, f"{name}:", guess.why), *[one for part in below for one in line(8, part.value, part.why)]]


def row_gate(proposal: Proposal) -> list[str]:
    """silver/gate.yaml: the rules of its rows."""
    return [
        *comment(
            "Gate 1: every row on its way into silver; one that fails goes to quality.quarantine. Add your rules."
        ),
        f"feeds: [{proposal.feed}]",
        "expectations:",
        "  - name: key_present",
        "    type: expect_column_values_to_not_be_null",
        f"    kwargs: {{ column: {scalar(proposal.key)} }}",
        *line(4, "on_failure: quarantine", "or warn: the row goes on, and is counted"),
        f"    description: {scalar(f'Every row has its {proposal.key}.')}",
    ]


def table_gate(proposal: Proposal) -> list[str]:
    """gold/gate.yaml: the rules of the table."""
    return [
        *comment("Gate 2: the silver table as a whole, before gold takes it. Add your rules."),
        f"feeds: [{proposal.feed}]",
        "expectations:",
        "  - name: key_unique",
        "    type: expect_column_values_to_be_unique",
        f"    kwargs: {{ column: {scalar(proposal.key)} }}",
        *line(4, "on_failure: fail", "gold does not take the source until it is met; or warn"),
        f"    description: {scalar(f'No two live rows have the same {proposal.key}.')}",
        *comment("The rows of gold after gold has taken them, before they are published."),
        "publication:",
        "  - name: orders_conserved",
        "    type: unexpected_rows_expectation",
        "    kwargs:",
        "      unexpected_rows_query: >-",
        "        SELECT composite_key FROM orders_of_silver LEFT ANTI JOIN {batch} USING (composite_key)",
        "        UNION ALL",
        "        SELECT composite_key FROM {batch} LEFT ANTI JOIN orders_of_silver USING (composite_key)",
        "    on_failure: fail",
        "    description: Gold has every live row of silver, and no other.",
    ]


def gold(proposal: Proposal) -> list[str]:
    """gold/tables.yaml: the gold table and its topic."""
    prefix = proposal.source.value.upper().replace("_", "")
    return [
        *comment("The gold table, and the topic that it is published to."),
        *line(0, f"key: {scalar(proposal.key)}", "the key of the silver table"),
        *line(0, "columns:", "all of the silver table, in its types: change both together; take out what nobody reads"),
        *[f"  {scalar(column.name)}: {column.guess.type}" for column in proposal.columns],
        "sources:",
        f"  {scalar(proposal.source.value)}:",
        *line(4, f"name: {proposal.kind.value}", "source_database"),
        *line(
            4, f"prefix: {scalar(prefix)}", f"composite_key: {prefix}-<{proposal.key}>; it cannot change later: check"
        ),
        f"    feeds: [{proposal.feed}]",
        *_fulfillment(proposal),
        "publication:",
        *line(2, f"topic: {scalar(f'bigquery.unified.{proposal.table}')}", "created, compacted, when it is absent"),
        "  partitions: 3",
        *line(2, "replication_factor: 1", "as many copies as your other topics have: check"),
    ]


def _fulfillment(proposal: Proposal) -> list[str]:
    """fulfillment_status follows from a text column `status`; without one there is none to follow."""
    if not any((column.name, column.guess.type) == ("status", "STRING") for column in proposal.columns):
        why = "fulfillment (column, values, otherwise) is left out, no text column is named status"
        return comment(f"{why}: fulfillment_status is NULL.")
    return [
        *line(0, "fulfillment:", "fulfillment_status"),
        *line(2, "column: status", "the column of that name"),
        *line(2, "values:", "value of the column: fulfillment_status; check"),
        "    completed: FULFILLED",
        "    cancelled: CANCELLED",
        "  otherwise: PENDING",
    ]
