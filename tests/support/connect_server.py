"""A Spark Connect server with Delta, on loopback: python -m tests.support.connect_server PORT.

Delta's Python client over Spark Connect (`delta.connect`) sends messages of its own, which a plugin of the server
answers. Delta's plugin has no jar in the public repository for the Spark that is pinned here, so this is one in its
place: the messages that this project sends become the plans that Delta's SQL has for the same, and Spark does the rest.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lakehouse.spark.session import spark_session
from tests.support.connect_worker import executable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Plans are deep: a message in a message a step. The server itself reads so many.
DEEPEST = 1024
VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5


def main(port: int) -> None:
    """Serve until this process is ended."""
    with TemporaryDirectory() as folder:
        os.environ["PYSPARK_PYTHON"] = str(executable(Path(folder)))
        spark = spark_session(
            extra={
                "spark.connect.grpc.binding.address": "127.0.0.1",
                "spark.connect.grpc.binding.port": str(port),
            }
        )
        jvm: Any = spark._jvm
        add_delta(spark, jvm)
        jvm.org.apache.spark.sql.connect.service.SparkConnectService.start(spark.sparkContext._jsc.sc())
        signal.pause()


def add_delta(spark: SparkSession, jvm: Any) -> None:
    """Let the Spark Connect of this process answer Delta's messages."""
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    registry = jvm.org.apache.spark.sql.connect.plugin.SparkConnectPluginRegistry
    registry.relationRegistry()  # reads what is configured, once
    of_object = jvm.java.lang.Class.forName(f"{registry._fqn}$")
    for field, plugin in (("relationRegistryCache", Relations(jvm)), ("commandRegistryCache", Commands(jvm))):
        cache = of_object.getDeclaredField(field)
        cache.setAccessible(True)
        cache.set(None, _seq(jvm, [plugin]))


class Relations:
    """Delta's messages that have rows for an answer."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm
        self._plans = jvm.org.apache.spark.sql.catalyst.plans.logical

    def transform(self, message: bytes, planner: Any) -> Any:
        """The plan of a message; Spark calls it."""
        from delta.connect import proto

        ((kind, bodies),) = fields(proto.DeltaRelation, _packed(message)).items()
        answer = getattr(self, f"_{kind}")
        known = getattr(proto, _named(kind))
        return self._jvm.java.util.Optional.of(answer(planner, fields(known, bodies[0])))

    def _scan(self, planner: Any, said: Fields) -> Any:
        return _parsed(planner, f"TABLE {_table(said)}")

    def _describe_history(self, planner: Any, said: Fields) -> Any:
        return _parsed(planner, f"DESCRIBE HISTORY {_table(said)}")

    def _describe_detail(self, planner: Any, said: Fields) -> Any:
        return _parsed(planner, f"DESCRIBE DETAIL {_table(said)}")

    def _is_delta_table(self, planner: Any, said: Fields) -> Any:
        found = self._jvm.io.delta.tables.DeltaTable.isDeltaTable(planner.session(), _text(said["path"]))
        return _parsed(planner, f"SELECT {str(found).lower()}")

    def _delete_from_table(self, planner: Any, said: Fields) -> Any:
        condition = self._condition(planner, said)
        every = self._jvm.org.apache.spark.sql.catalyst.expressions.Literal.TrueLiteral()
        target = self._relation(planner, said["target"])
        return self._plans.DeleteFromTable(target, condition.getOrElse(None) or every)

    def _update_table(self, planner: Any, said: Fields) -> Any:
        target = self._relation(planner, said["target"])
        return self._plans.UpdateTable(target, self._assignments(planner, said), self._condition(planner, said))

    def _merge_into_table(self, planner: Any, said: Fields) -> Any:
        return self._plans.MergeIntoTable(
            self._relation(planner, said["target"]),
            self._relation(planner, said["source"]),
            self._expression(planner, said["condition"]),
            *[
                _seq(self._jvm, [self._action(planner, action) for action in said.get(actions, [])])
                for actions in ("matched_actions", "not_matched_actions", "not_matched_by_source_actions")
            ],
            bool(said.get("with_schema_evolution", [0])[0]),
        )

    def _action(self, planner: Any, message: bytes) -> Any:
        from delta.connect import proto

        said = fields(proto.MergeIntoTable.Action, message)
        condition = self._condition(planner, said)
        (kind,) = set(said) - {"condition"}
        if kind == "delete_action":
            return self._plans.DeleteAction(condition)
        if kind == "update_star_action":
            return self._plans.UpdateStarAction(condition)
        if kind == "insert_star_action":
            return self._plans.InsertStarAction(condition)
        body = fields(getattr(proto.MergeIntoTable.Action, _named(kind)), said[kind][0])
        assignments = self._assignments(planner, body)
        if kind == "update_action":
            return self._plans.UpdateAction(condition, assignments, False)
        return self._plans.InsertAction(condition, assignments)

    def _assignments(self, planner: Any, said: Fields) -> Any:
        from delta.connect import proto

        pairs = [fields(proto.Assignment, message) for message in said.get("assignments", [])]
        made = [
            self._plans.Assignment(self._expression(planner, pair["field"]), self._expression(planner, pair["value"]))
            for pair in pairs
        ]
        return _seq(self._jvm, made)

    def _condition(self, planner: Any, said: Fields) -> Any:
        given = said.get("condition")
        return self._jvm.scala.Option.apply(self._expression(planner, given) if given else None)

    def _relation(self, planner: Any, messages: Sequence[Any]) -> Any:
        return planner.transformRelation(self._sparks("Relation", messages[0]))

    def _expression(self, planner: Any, messages: Sequence[Any]) -> Any:
        return planner.transformExpression(self._sparks("Expression", messages[0]))

    def _sparks(self, kind: str, message: bytes) -> Any:
        stream = self._jvm.org.sparkproject.connect.protobuf.CodedInputStream.newInstance(message)
        stream.setRecursionLimit(DEEPEST)
        return getattr(self._jvm.org.apache.spark.connect.proto, kind).parseFrom(stream)

    class Java:
        implements = ("org.apache.spark.sql.connect.plugin.RelationPlugin",)


class Commands:
    """Delta's messages that do something and have no rows."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm

    def process(self, message: bytes, planner: Any) -> bool:
        """Carry a message out; Spark calls it."""
        from delta.connect import proto

        command = proto.DeltaCommand()
        command.ParseFromString(_packed(message))
        if command.HasField("create_delta_table"):
            planner.session().sql(_create(command.create_delta_table))
        else:
            table = command.vacuum_table.table
            planner.session().sql(f"VACUUM {table.table_or_view_name or _quoted(table.path.path)}")
        return True

    class Java:
        implements = ("org.apache.spark.sql.connect.plugin.CommandPlugin",)


Fields = Mapping[str, Sequence[Any]]


def fields(kind: Any, message: bytes) -> Fields:
    """The fields of a message one level down, by name: bytes as they are, numbers as such.

    Python's own reader goes a hundred levels deep at most, and would read them all.
    """
    names = {field.number: field.name for field in kind.DESCRIPTOR.fields}
    found: dict[str, list[Any]] = {}
    for number, value in _wire(message):
        found.setdefault(names[number], []).append(value)
    return found


def _wire(message: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        size = {FIXED_64: 8, FIXED_32: 4}.get(kind)
        if size is None:
            size, at = _varint(message, at)
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _named(field: str) -> str:
    """The message of a field: `is_delta_table` is an IsDeltaTable."""
    return "".join(word.capitalize() for word in field.split("_"))


def _packed(message: bytes) -> bytes:
    """What a `google.protobuf.Any` holds."""
    from google.protobuf.any_pb2 import Any as Packed

    return bytes(Packed.FromString(bytes(message)).value)


def _table(said: Fields) -> str:
    from delta.connect import proto

    table = fields(proto.DeltaTable, said["table"][0])
    if "table_or_view_name" in table:
        return _text(table["table_or_view_name"])
    return _quoted(_text(fields(proto.DeltaTable.Path, table["path"][0])["path"]))


def _create(asked: Any) -> str:
    from pyspark.sql.connect.types import proto_schema_to_pyspark_data_type

    columns = [
        f"`{column.name}` {proto_schema_to_pyspark_data_type(column.data_type).simpleString()}"
        for column in asked.columns
    ]
    properties = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in asked.properties.items()]
    return " ".join(
        [
            f"CREATE TABLE IF NOT EXISTS {asked.table_name or _quoted(asked.location)} ({', '.join(columns)})",
            "USING delta",
            *([f"PARTITIONED BY ({', '.join(asked.partitioning_columns)})"] if asked.partitioning_columns else []),
            *([f"TBLPROPERTIES ({', '.join(properties)})"] if properties else []),
        ]
    )


def _quoted(path: str) -> str:
    return "delta.`{}`".format(path.replace("`", "``"))


def _text(values: Sequence[Any]) -> str:
    return bytes(values[0]).decode()


def _parsed(planner: Any, sql: str) -> Any:
    return planner.session().sessionState().sqlParser().parsePlan(sql)


def _seq(jvm: Any, items: Sequence[Any]) -> Any:
    values = jvm.java.util.ArrayList()
    for item in items:
        values.add(item)
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(values).toSeq()


if __name__ == "__main__":
    main(int(sys.argv[1]))
