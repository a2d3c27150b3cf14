"""Contracts of a deployment without unified orders: two plain tables, an upsert topic, a join."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

BY_RULE: Mapping[str, Any] = {"sources": {"shop": {"kind": "mysql", "by_rule": {"all": {"include": [r"shop\..*"]}}}}}
UPSERT: Mapping[str, Mapping[str, Any]] = {
    "items": {"topic": "upsert.items", "table": "silver.items", "partitions": 1, "replication_factor": 1}
}
JOINED: Mapping[str, Any] = {
    "items_with_kind": {
        "table": "items",
        "columns": {"id": "id", "name": "name"},
        "left_join": [{"table": "kinds", "by": {"id": "kind_id"}, "columns": {"kind": "name"}}],
    }
}
_ID = {"keys": ["id"], "sequence_by": "source_position"}
# The files that declare the two tables.
ITEMS: Mapping[str, Any] = {
    "bronze/topics.yaml": {
        "sources": {
            "shop": {
                "kind": "mysql",
                "feeds": {
                    "items": {"topics": ["shop.items"], "envelope": "table"},
                    "kinds": {"topics": ["shop.kinds"], "envelope": "table"},
                },
            }
        }
    },
    "silver/tables.yaml": {
        "tables": {
            "items": {**_ID, "columns": {"id": "BIGINT", "name": "STRING", "kind_id": "BIGINT"}},
            "kinds": {**_ID, "columns": {"id": "BIGINT", "name": "STRING"}},
        }
    },
}


def written(folder: Path, files: Mapping[str, Any]) -> Path:
    """A folder of contracts with these files, and no other."""
    own = folder / "contracts"
    for name, declared in files.items():
        path = own / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(declared, sort_keys=False), encoding="utf-8")
    return own
