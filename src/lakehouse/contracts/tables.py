"""`silver/tables.yaml`: the silver tables, their keys and columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from lakehouse.contracts.parts.base import Model
from lakehouse.contracts.parts.column_types import ArrayType, ColumnSource, ColumnType, DecimalType, SimpleType
from lakehouse.contracts.parts.names import Name, Pattern
from lakehouse.contracts.parts.schema_policy import OnSchemaChange

EpochUnit = Literal["millis", "micros", "nanos"]
Metadata = Literal[
    "schema",
    "ingestion-timestamp",
    "source.timestamp",
    "source.database",
    "source.schema",
    "source.table",
    "source.properties",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "headers",
]


class Column(Model):
    """One column of a silver table: its type, and how the value travels in the change event. A type alone will do."""

    type: ColumnType
    fields: tuple[str, ...] = Field(default=(), strict=False)
    """The fields of the event that may hold the value: the first that is present counts. Default: the column's name."""
    from_topic: Pattern | None = None
    """The value is what the one group of this regular expression matches in the topic's name: which shard it is."""
    metadata: Metadata | None = None
    """The value is not of the row: it is what the envelope or Kafka says of the record, by Flink's name for it
    (docs/from-flink.md)."""
    source_type: ColumnSource | None = None
    """What the column is in its database, where the type alone does not say: `time`, `numeric(65,30)`, `bit(8)` …"""
    epoch_unit: EpochUnit | None = None
    """What an integer counts that stands for a time. Default: what the feed's `time_precision_mode` says, else micros.
    Under `adaptive`, a column of at most three digits behind the second has millis."""
    allow_cut_digits: bool = False
    """The connector may have cut digits of this column before they came here, and that is accepted."""
    optional: bool = False
    """Where an event has no field for it, it is NULL. Otherwise a field that no event has ever had is an error, and one
    that earlier events had and later ones have not sends them to quarantine, or suspends the table."""
    sensitive: bool = False
    """Its values are for the tables alone: no report, no list and no sample of keys shows them."""

    @model_validator(mode="before")
    @classmethod
    def _from_type(cls, value: Any) -> Any:
        return value if isinstance(value, Mapping | Column) else {"type": value}

    @property
    def is_of_row(self) -> bool:
        """Whether its value stands in a field of the event's row."""
        return self.from_topic is None and self.metadata is None

    @property
    def element_type(self) -> DecimalType | SimpleType:
        """Of an array the type of what it holds, else the type."""
        return self.type.element if isinstance(self.type, ArrayType) else self.type

    @property
    def source_name(self) -> str:
        """The name of the source type without its sizes; empty without one."""
        return self.source_type.name if self.source_type else ""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        whole = handler.resolve_ref_schema(handler(core_schema))
        return {"anyOf": [whole["properties"]["type"], whole]}


class MaxRejectRatio(Model):
    """How many of a batch's records may be rejected before the table is suspended: beyond both numbers it is."""

    share: float = Field(gt=0, le=1, strict=False)
    """Of the changes and truncates of a batch."""
    records: int = Field(default=0, ge=0)
    """So many never suspend the table: a small batch may be all bad."""


class SilverTable(Model):
    """One silver table: its keys and columns, and how the changes of its feed are applied."""

    keys: tuple[Name, ...] = Field(default=(), strict=False)
    """The columns that make up the key. A table without a primary key has a declared one, or is `append_only`."""
    append_only: bool = False
    """The table is the list of its changes, one row each: for a table without columns that identify a row."""
    sequence_by: Literal["source_position", "kafka_offset"]
    """source_position: the database's own order. kafka_offset: for feeds whose events carry no position."""
    payload: Literal["full", "partial"] = "full"
    """Of an outbox: whether every event is a whole row, or leaves the columns that it does not name as they are."""
    scd_type: Literal[1, 2] = 1
    """1: a row is what it is now. 2: beside that, `silver.<table>_history` has every version that it was
    (docs/history.md); needs `sequence_by: source_position`."""
    track_history_columns: tuple[Name, ...] = Field(default=(), strict=False)
    """Of `scd_type: 2`: a version begins where one of these columns changes; others are what they were last in it.
    Default: all."""
    track_history_except: tuple[Name, ...] = Field(default=(), strict=False)
    """The same by the columns that begin no version."""
    apply_as_deletes: tuple[str, ...] = Field(default=(), strict=False)
    """Of an outbox: the event types that delete the row. In a table feed the operation `d` does. With it, an event
    without a type goes to quarantine."""
    apply_as_upserts: tuple[str, ...] = Field(default=(), strict=False)
    """Of an outbox: the event types that state the row; an event of any other type goes to quarantine. Default: all
    that do not delete it."""
    max_reject_ratio: MaxRejectRatio | None = None
    """Beyond it, nothing of the batch is applied and the table is suspended; default: any number may be rejected."""
    max_record_bytes: int = Field(default=8_000_000, ge=1)
    """A record whose key and value have more bytes goes to quarantine, unless it deletes its row. So a row of silver
    fits the published topic: its `max_message_bytes` is higher by 65,536 at least."""
    on_schema_change: OnSchemaChange = OnSchemaChange()
    """What becomes of the table when its source changes its columns. The types are this contract's: a value that does
    not fit goes as `parse_errors` says."""
    columns: dict[Name, Column] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_an_identity(self) -> SilverTable:
        if bool(self.keys) == self.append_only:
            raise ValueError("a table needs `keys`, or `append_only: true` without keys")
        return self

    @model_validator(mode="after")
    def _can_have_a_history(self) -> SilverTable:
        tracked = [*self.track_history_columns, *self.track_history_except]
        if self.scd_type == 1 and tracked:
            raise ValueError("`track_history_columns` and `track_history_except` are of `scd_type: 2`")
        if self.track_history_columns and self.track_history_except:
            raise ValueError("either `track_history_columns` or `track_history_except`")
        if self.scd_type == 2 and (self.append_only or self.sequence_by != "source_position"):
            raise ValueError(
                "`scd_type: 2` needs `keys` and `sequence_by: source_position`: only a source's own order says which "
                "version came before which"
            )
        unknown = sorted({*tracked} - {*self.columns} | {*tracked} & {*self.keys})
        if unknown:
            raise ValueError(f"no columns beside the keys, whose history could be tracked: {', '.join(unknown)}")
        return self

    @property
    def has_history(self) -> bool:
        """Whether the versions of its rows are kept."""
        return self.scd_type == 2

    @property
    def types_decide(self) -> bool:
        """Whether an event's type says what becomes of its row."""
        return bool(self.apply_as_deletes or self.apply_as_upserts)

    @property
    def sensitive_columns(self) -> frozenset[str]:
        """The columns whose values are for the table alone."""
        return frozenset(name for name, column in self.columns.items() if column.sensitive)

    def fields_of(self, column: str) -> tuple[str, ...]:
        """The fields of the event that may hold this column, the preferred one first."""
        return self.columns[column].fields or (column,)


class SilverTables(Model):
    """`silver/tables.yaml`: the silver tables, each of the feed of its name."""

    tables: dict[Name, SilverTable] = Field(default_factory=dict)
