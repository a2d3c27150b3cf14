"""Recorded events of MySQL's orders in Avro, as Debezium's connector sends them through Connect's Avro converter.

The schemas are those that the converter registered for this table, and so are the bytes: a schema's id, and the datum.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

from fastavro import parse_schema, schemaless_writer

from demo.processes import HOST

SCHEMAS = Path(__file__).parent / "data" / "avro_schemas.json"
KEY, VALUE = 1, 2


def key_in_avro(key: str) -> bytes:
    """The key of an order, from JSON."""
    return _datum(KEY, json.loads(key))


def value_in_avro(value: str) -> bytes:
    """An event of an order, from JSON, where a decimal is base64 of its unscaled number."""
    event = json.loads(value)
    for row in (event["before"], event["after"]):
        if row is not None and row["total_amount"] is not None:
            row["total_amount"] = base64.b64decode(row["total_amount"])
    return _datum(VALUE, event)


@contextmanager
def schema_registry() -> Iterator[str]:
    """The address of a registry that has the two schemas, by their ids; it ends with the block."""
    answers = {
        f"/schemas/ids/{number}": json.dumps({"schema": json.dumps(schema)}).encode()
        for number, schema in _schemas().items()
    }

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path, b'{"error_code": 40403, "message": "Schema not found"}')
            self.send_response(200 if self.path in answers else 404)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_given: object) -> None:
            """Nothing: the demo's own lines are enough."""

    server = ThreadingHTTPServer((HOST, 0), Answering)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _datum(number: int, value: Mapping[str, Any]) -> bytes:
    datum = BytesIO()
    datum.write(b"\0" + number.to_bytes(4, "big"))
    schemaless_writer(datum, _writing(number), value)
    return datum.getvalue()


@cache
def _schemas() -> dict[int, Any]:
    schemas = json.loads(SCHEMAS.read_text(encoding="utf-8"))
    return {KEY: schemas["key"], VALUE: schemas["value"]}


@cache
def _writing(number: int) -> Any:
    """The schema to write with: a decimal is bytes already."""
    text = json.dumps(_schemas()[number]).replace(', "logicalType": "decimal"', "")
    return parse_schema(json.loads(text))
