"""Kafka Connect's own JsonConverter, in the JVM of the Spark session: what the sink connector would see of a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse.spark.jars import jar_paths, load_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
MANIFESTS = (ROOT / "tests" / "jars.yaml", ROOT / "demo" / "jars.yaml")
Value = bool | int | str | bytes | Decimal | None


@dataclass(frozen=True)
class Field:
    """A field of a struct as Connect has it."""

    type: str
    is_optional: bool
    name: str | None
    parameters: Mapping[str, str]


class JsonConverter:
    """The converter with `schemas.enable`, as the sink's configuration has it."""

    def __init__(self, spark: SparkSession, *, is_key: bool) -> None:
        jvm = spark._jvm
        assert jvm is not None
        converter = jvm.java.lang.Class.forName("org.apache.kafka.connect.json.JsonConverter", True, _connect(spark))
        self._converter = converter.newInstance()
        self._converter.configure(jvm.java.util.HashMap({"schemas.enable": "true"}), is_key)

    def read(self, record: str | None) -> Mapping[str, Value] | None:
        """The struct that a key or a value of a Kafka record is, dates as days since 1970; None for a tombstone."""
        struct = self._convert(record).value()
        return None if struct is None else {name: _plain(struct.get(name)) for name in _fields(struct.schema())}

    def fields(self, record: str) -> Mapping[str, Field]:
        """The fields of its schema."""
        fields = _fields(self._convert(record).schema())
        return {name: _field(field.schema()) for name, field in fields.items()}

    def _convert(self, record: str | None) -> Any:
        return self._converter.toConnectData("topic", None if record is None else record.encode())


@cache
def _connect(spark: SparkSession) -> Any:
    """The class loader that has Connect: one, since py4j takes two classes of one name for the same."""
    gateway, jvm = spark.sparkContext._gateway, spark._jvm
    assert gateway is not None
    assert jvm is not None
    jars = [path for manifest in MANIFESTS for path in jar_paths(load_manifest(manifest), hint="Run `make setup`.")]
    urls = gateway.new_array(jvm.java.net.URL, len(jars))
    for number, path in enumerate(jars):
        urls[number] = jvm.java.net.URL(path.as_uri())
    # Its parent knows nothing of Spark, so Connect finds its own Kafka and Jackson.
    return jvm.java.net.URLClassLoader(urls, jvm.java.lang.ClassLoader.getPlatformClassLoader())


def _fields(schema: Any) -> dict[str, Any]:
    return {field.name(): field for field in schema.fields()}


def _field(schema: Any) -> Field:
    return Field(
        type=schema.type().getName(),
        is_optional=schema.isOptional(),
        name=schema.name(),
        parameters=dict(schema.parameters() or {}),
    )


def _plain(value: Any) -> Value:
    """Numbers and text come as Python's own; a date comes as Java's."""
    if hasattr(value, "getTime"):
        days, rest = divmod(value.getTime(), 24 * 60 * 60 * 1000)
        assert rest == 0, "a date has no time of day"
        return int(days)
    known: Value = value
    return known
