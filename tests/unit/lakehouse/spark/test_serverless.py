"""No module of src uses what Databricks' serverless compute refuses: there is no JVM at hand, and nothing is kept."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

from lakehouse.spark import session

CODE = Path(session.__file__).parents[2]
Nodes = Sequence[tuple[str, ast.AST]]
# Attributes of a session or of rows: the Java behind them, RDDs, what is kept, and settings.
REFUSED = {
    *("sparkContext", "_sc", "_jsc", "_jvm", "_jdf", "_jsparkSession", "_jseq", "_gateway", "rdd", "rdds"),
    *("cache", "persist", "unpersist", "localCheckpoint", "cacheTable", "setCheckpointDir", "conf"),
    *("foreachPartition", "mapPartitions", "parallelize", "accumulator"),
}
# Only where it is not serverless (in `held`), or not Databricks; and (`conf`) settings that serverless takes.
GUARDED = {
    "lakehouse/delta/delta_log.py": ["_jsparkSession", "_jvm", "_jvm", "_jvm"],
    "lakehouse/delta/files.py": ["_jsparkSession", "_jvm", "_jvm"],
    "lakehouse/delta/locks.py": ["_jsc", "sparkContext", "sparkContext"],
    "lakehouse/erasure/files.py": ["_jsparkSession", "_jvm", "_jvm", "_jvm", "conf", "conf", "conf", "conf"],
    "lakehouse/spark/materialized.py": ["_jdf", "conf", "localCheckpoint", "rdd", "unpersist"],
    "lakehouse/spark/session.py": [
        *("_gateway", "_jsparkSession", "_jsparkSession", "_jvm", "_jvm"),
        *("conf", "sparkContext", "sparkContext", "sparkContext"),
    ],
    "lakehouse/spark/sizing.py": ["conf"] * 8,
}


@pytest.fixture(scope="module")
def nodes() -> Nodes:
    """Of every module the nodes of its code."""
    return [
        (str(file.relative_to(CODE)), node)
        for file in sorted(CODE.glob("*/**/*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    ]


def test_what_serverless_refuses_is_only_in_guarded_places(nodes: Nodes) -> None:
    found: dict[str, list[str]] = {}
    for module, node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in REFUSED:
            found.setdefault(module, []).append(node.attr)
    assert {module: sorted(names) for module, names in found.items()} == GUARDED


def test_every_stream_takes_what_there_is_and_ends(nodes: Nodes) -> None:
    triggers = [
        ast.unparse(node)
        for _module, node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "trigger"
    ]
    assert len(triggers) == 1
    assert all(trigger.endswith(".trigger(availableNow=True)") for trigger in triggers)


def test_what_a_stream_calls_is_a_function_of_a_module_with_plain_data(nodes: Nodes) -> None:
    """It is called in another process: what it changed in this one would be lost."""
    given = [
        ast.unparse(node.args[0])
        for _module, node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "foreachBatch"
    ]
    assert given == ["write"]
