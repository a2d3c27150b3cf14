"""The metrics of a `Status`: all names with their values, as a file, and over HTTP."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lakehouse.errors import SettingsError
from monitoring.metrics import COUNTERS, GAUGES, families, registry_of, samples, serve_metrics, write_metrics
from monitoring.model import Headroom, Pass, Quarantine, Records, Stage, Status, TableFiles
from tests.unit.monitoring.test_page import AT, example

Labels = tuple[tuple[str, str], ...]


def text_of(status: Status) -> str:
    return generate_latest(registry_of(lambda: status)).decode()


def values_of(text: str) -> dict[tuple[str, Labels], float]:
    """Every sample by its name and labels."""
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def value(found: dict[tuple[str, Labels], float], name: str, **labels: str) -> float:
    return found[f"lakehouse_{name}", tuple(sorted(labels.items()))]


def full() -> Status:
    """A status in which every metric has a value."""
    return example()


def test_every_metric_is_in_the_text_of_a_full_status() -> None:
    names = {name for name, _labels in values_of(text_of(full()))}
    assert names == {*GAUGES, *(f"{name}_total" for name in COUNTERS)}


def test_every_metric_has_a_type_and_a_help() -> None:
    text = text_of(full())
    for name, (_labels, said) in GAUGES.items():
        assert f"# TYPE {name} gauge\n" in text
        assert f"# HELP {name} {said}\n" in text
    for name, (_labels, said) in COUNTERS.items():
        assert f"# TYPE {name}_total counter\n" in text
        assert f"# HELP {name}_total {said}\n" in text


@pytest.mark.parametrize("name", [*GAUGES, *COUNTERS])
def test_names_and_labels_are_valid(name: str) -> None:
    labels, said = {**GAUGES, **COUNTERS}[name]
    assert re.fullmatch(r"lakehouse_[a-z][a-z0-9]*(_[a-z0-9]+)*", name)
    assert not name.endswith(("_total", "_count", "_sum", "_bucket", "_milliseconds", "_ms"))
    assert all(re.fullmatch(r"[a-z][a-z_]*", label) for label in labels)
    assert said.endswith(".")


def test_the_values_are_those_of_the_status() -> None:
    found = values_of(text_of(full()))
    assert value(found, "lag_records", source="postgres", stage="silver") == 4_817
    assert value(found, "lag_seconds", source="postgres", stage="silver") == 164.0
    assert value(found, "lag_bytes", source="postgres", stage="database") == 48_000_000
    assert value(found, "records_per_second", source="mariadb", stage="database") == 350.5
    assert value(found, "freshness_seconds", source="mysql", quantile="0.5") == 4.2
    assert value(found, "freshness_seconds", source="mysql", quantile="0.99") == 181.0
    assert value(found, "arrival_records_per_second", source="mysql") == 350.0
    assert value(found, "drain_records_per_second", source="mysql") == 2_900.0
    assert value(found, "catch_up_seconds", source="mysql") == 540.0
    lost_by = "retention of postgres_prod_tables.public.orders"
    assert value(found, "headroom_seconds", source="postgres", lost_by=lost_by) == 93_600.0
    assert value(found, "unaccounted_records", source="mysql") == 3
    assert value(found, "records", source="mysql", outcome="duplicate") == 9_876
    assert value(found, "quarantine_open_records", source="postgres") == 57
    assert value(found, "quarantine_share", source="postgres") == 0.0012
    assert value(found, "quarantine_oldest_seconds", source="postgres") == 273_600.0
    assert value(found, "gate_failed_rules", source="postgres", gate="gate 1") == 2
    assert value(found, "gate_blocks", source="postgres", gate="gate 1") == 0
    assert value(found, "gate_blocks", source="mysql", gate="gate 2") == 1
    assert value(found, "suspended_tables") == 1
    assert value(found, "table_files", table="silver.postgres_orders") == 312
    assert value(found, "table_bytes", table="silver.postgres_orders") == 12_300_000_000
    assert value(found, "table_deletion_vectors", table="silver.postgres_orders") == 96
    assert value(found, "written_bytes_per_changed_byte", table="silver.postgres_orders") == 8.7


def test_a_level_is_a_number() -> None:
    found = values_of(text_of(full()))
    levels = {
        stage: value(found, "stage_level", source="postgres", stage=stage) for stage in ("gold", "silver", "topic")
    }
    assert levels == {"gold": 2, "silver": 1, "topic": 0}
    assert ("lakehouse_stage_level", (("source", "mysql"), ("stage", "connect"))) not in found


def test_the_last_pass_is_the_one_that_counts() -> None:
    last = Pass("b", AT + timedelta(minutes=1), 70, {"bronze": 1.5, "silver": 4.0})
    found = values_of(text_of(Status(AT, passes=[Pass("a", AT, 9, {"gold": 99.0}), last])))
    parts = {labels: seconds for (name, labels), seconds in found.items() if name == "lakehouse_pass_seconds"}
    assert parts == {(("part", "bronze"),): 1.5, (("part", "silver"),): 4.0, (("part", "all"),): 5.5}
    assert value(found, "pass_records") == 70
    assert value(found, "last_pass_timestamp_seconds") == AT.timestamp() + 60


def test_what_was_not_measured_is_left_out() -> None:
    bare = Status(
        AT,
        stages=[Stage("mysql", "bronze", "unknown")],
        headroom=[Headroom("mysql", None, None, None)],
        quarantine=[Quarantine("mysql", 0, None, None, {})],
        records=[Records("mysql", {}, 0)],
        tables=[TableFiles("gold.unified_orders", 0, 0, 0, 0, None)],
    )
    assert any(found is None for _name, _labels, found in samples(bare))
    assert values_of(text_of(bare)) == {
        ("lakehouse_unaccounted_records", (("source", "mysql"),)): 0,
        ("lakehouse_read_records_total", (("source", "mysql"),)): 0,
        ("lakehouse_quarantine_open_records", (("source", "mysql"),)): 0,
        ("lakehouse_suspended_tables", ()): 0,
        ("lakehouse_table_files", (("table", "gold.unified_orders"),)): 0,
        ("lakehouse_table_bytes", (("table", "gold.unified_orders"),)): 0,
        ("lakehouse_table_deletion_vectors", (("table", "gold.unified_orders"),)): 0,
    }


def test_a_metric_without_values_is_no_family() -> None:
    assert [family.name for family in families(Status(AT))] == ["lakehouse_suspended_tables"]


def test_every_sample_has_as_many_labels_as_its_metric() -> None:
    known = {**GAUGES, **COUNTERS}
    for name, labels, _value in samples(full()):
        assert len(labels) == len(known[name][0])
    labelled = [(name, labels) for name, labels, _value in samples(full())]
    assert len(labelled) == len(set(labelled))


def test_values_of_labels_are_escaped() -> None:
    strange = 'a "quoted" \\ name\nin two lines'
    found = values_of(text_of(Status(AT, records=[Records(strange, {"applied": 3}, 0)])))
    assert value(found, "records", source=strange, outcome="applied") == 3


# The file.


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "lakehouse.prom"
    file.write_text("old\n")
    write_metrics(full, file)
    assert values_of(file.read_text()) == values_of(text_of(full()))
    assert [one.name for one in tmp_path.iterdir()] == ["lakehouse.prom"]


def test_a_file_stays_as_it_is_where_the_status_is_not_known(tmp_path: Path) -> None:
    file = tmp_path / "lakehouse.prom"
    file.write_text("old\n")

    def ask() -> Status:
        raise RuntimeError("the tables are gone")

    with pytest.raises(RuntimeError, match="the tables are gone"):
        write_metrics(ask, file)
    assert file.read_text() == "old\n"
    assert [one.name for one in tmp_path.iterdir()] == ["lakehouse.prom"]


def test_a_file_in_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "absent" / "lakehouse.prom"
    with pytest.raises(SettingsError, match="No such file or directory") as refused:
        write_metrics(full, file)
    assert str(file) in refused.value.what
    assert "--metrics-file" in refused.value.hint
    assert not file.parent.exists()


# The server.


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


class Asked:
    """Counts how often it was asked for a status."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Status:
        self.times += 1
        return replace(example(), suspended=["a table"] * self.times)


def scrape(port: int) -> dict[tuple[str, Labels], float]:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.status == 200
        return values_of(answer.read().decode())


def test_a_server_answers_until_it_is_stopped() -> None:
    port, asked = free_port(), Asked()
    stop = serve_metrics(asked, host="127.0.0.1", port=port)
    try:
        assert asked.times == 0
        assert scrape(port) == values_of(text_of(replace(full(), suspended=["a table"])))
        scrape(port)
        assert asked.times == 1
    finally:
        stop()
    with pytest.raises(URLError):
        scrape(port)
    serve_metrics(asked, host="127.0.0.1", port=port)()


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"Nothing can listen at 127\.0\.0\.1:{port}") as refused:
            serve_metrics(full, host="127.0.0.1", port=port)
    assert "--metrics-port" in refused.value.hint


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that stands until it is set forward by so many seconds."""
    now = [1_000.0]
    monkeypatch.setattr("monitoring.metrics.time.monotonic", lambda: now[0])

    def forward(seconds: float) -> None:
        now[0] += seconds

    return forward


def test_a_second_scrape_within_ten_seconds_gets_the_same_answer(clock: Callable[[float], None]) -> None:
    asked = Asked()
    registry = registry_of(asked)
    assert asked.times == 0
    first = generate_latest(registry)
    clock(9.9)
    assert generate_latest(registry) == first
    assert asked.times == 1
    clock(0.1)
    assert generate_latest(registry) != first
    assert asked.times == 2


def test_a_status_that_failed_is_asked_for_again(clock: Callable[[float], None]) -> None:
    answers = [Status(AT, suspended=["a"])]

    def ask() -> Status:
        if answers:
            return answers.pop()
        raise RuntimeError("gone")

    registry = registry_of(ask)
    assert b"lakehouse_suspended_tables 1.0" in generate_latest(registry)
    clock(11)
    for _scrape in range(2):
        with pytest.raises(RuntimeError, match="gone"):
            generate_latest(registry)
