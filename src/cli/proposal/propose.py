"""Contracts for a topic, proposed from a sample of its records: commented YAML to be checked, and loadable as it is.

The comments say why something was guessed in counts and shapes; no value of a row is in them. Imports without pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cli.proposal.guesses import proposal_of
from cli.proposal.texts.contracts import gold, row_gate, table_gate, tables, topics
from cli.proposal.texts.text import schema_line
from lakehouse.contracts.checks.mistakes import GOLD, ROW_GATE, TABLE_GATE, TABLES, TOPICS
from lakehouse.contracts.files import MODELS, OPTIONAL
from lakehouse.registered import RegisteredSchema
from silver.decode.reference.message import Record


def propose(
    topic: str,
    records: Sequence[Record],
    *,
    ignored_topics: Iterable[str] = (),
    registered: Mapping[int, RegisteredSchema] | None = None,
) -> Mapping[str, str]:
    """The files of a folder of contracts (keys: `contracts.files.MODELS`) for one topic, as commented YAML.

    One source, feed, silver table, gate of its rows, gold table and gate of the table; `load_contracts` takes them as
    they are. They name their JSON schemas in `../schemas`. `registered`: the registry's schemas that records name.
    Raises SettingsError when the records state no row, rows without a key, a key of several columns, which gold cannot
    take, or changes of a database that silver does not know.
    """
    proposal = proposal_of(topic, records, ignored_topics, registered)
    texts = {
        TOPICS: topics(proposal),
        TABLES: tables(proposal),
        ROW_GATE: row_gate(proposal),
        GOLD: gold(proposal),
        TABLE_GATE: table_gate(proposal),
    }
    return {file: "\n".join([schema_line(file), *texts[file], ""]) for file in MODELS if file not in OPTIONAL}
