"""What the benchmark of a backlog reads from Spark's event log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import profile, report
from benchmarks.profile import Layer

LAYERS = [Layer("silver", begun=100.0, ended=110.0), Layer("gold", begun=110.0, ended=115.0)]


def job(number: int, *, stages: list[int], description: str = "") -> dict[str, Any]:
    told = {"spark.job.description": description} if description else {}
    return {"Event": "SparkListenerJobStart", "Job ID": number, "Stage IDs": stages, "Properties": told}


def completed(number: int, begun_ms: int, ended_ms: int, *, rows: int = 0, scopes: tuple[str, ...] = ()) -> Any:
    sums = {"executorRunTime": (ended_ms - begun_ms) * 2, "shuffle.write.recordsWritten": rows}
    return {
        "Event": "SparkListenerStageCompleted",
        "Stage Info": {
            "Stage ID": number,
            "Stage Name": "save at NativeMethodAccessorImpl.java:0",
            "Number of Tasks": 2,
            "Submission Time": begun_ms,
            "Completion Time": ended_ms,
            "RDD Info": [*[{"Scope": json.dumps({"id": "1", "name": name})} for name in scopes], {"Name": "PythonRDD"}],
            "Accumulables": [
                *[{"Name": f"internal.metrics.{name}", "Value": value} for name, value in sums.items()],
                {"Name": "number of output rows", "Value": "7"},
            ],
        },
    }


EVENTS = [
    {"Event": "SparkListenerApplicationStart"},
    job(1, stages=[1, 2], description="silver postgres\nid = 8cbe-1\nrunId = 7c93-2\nbatch = 4: Writing modified data"),
    completed(1, 101_000, 103_000, rows=30, scopes=("Exchange", "Scan parquet spark_catalog.silver.orders")),
    completed(2, 102_000, 106_000, rows=12),
    # Spark passes over a stage that it has run for an earlier job.
    job(2, stages=[2, 3], description="collect at /somewhere/src/gold/derived/marts.py:161"),
    completed(3, 111_000, 112_000),
    job(3, stages=[4], description="$anonfun$recordOperation$1 at Logging.scala:128"),
    completed(4, 113_000, 113_500),
    job(4, stages=[5], description="file:/somewhere/warehouse/bronze/mysql_events<br/>Optimizing 2 files"),
    completed(5, 114_000, 114_200),
    job(5, stages=[6]),
    completed(6, 114_500, 114_600),
]


def rows(table: Any) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in report.markdown(table).splitlines()[2:]]


def test_a_layer_is_told_with_its_jobs_and_the_seconds_in_which_they_were_at_work() -> None:
    stages = profile.stages(EVENTS)
    assert rows(profile.layers_table(LAYERS, stages)) == [
        ["silver", "10.0", "5.0", "1", "2", "4", "42"],
        ["gold", "5.0", "1.8", "4", "4", "8", "0"],
    ]


def test_the_longest_stages_are_told_with_what_they_do() -> None:
    table = rows(profile.stages_table(LAYERS, profile.stages(EVENTS)))
    assert [line[2] for line in table] == ["2", "1", "3", "4", "5", "6"]
    assert table[1] == [
        *("silver", "1", "1", "silver postgres: Writing modified data"),
        *("Exchange, Scan parquet", "2", "2.0", "4.0", "30"),
    ]
    assert table[2][3] == "collect at derived/marts.py:161"
    assert table[3][3] == "recordOperation at Logging.scala:128"
    assert table[4][3] == "bronze/mysql_events Optimizing 2 files"
    assert table[5][3] == "save at NativeMethodAccessorImpl.java:0"


def test_a_log_is_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "local-1").write_text("\n".join(json.dumps(event) for event in EVENTS))
    (tmp_path / ".local-1.crc").write_bytes(b"\0")
    assert profile.stages_in(tmp_path) == profile.stages(EVENTS)
    (tmp_path / "local-2").touch()
    with pytest.raises(ValueError, match="too many values"):
        profile.stages_in(tmp_path)
