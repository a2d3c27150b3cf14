"""The files of resources/monitoring: every metric that they name exists, every limit is the one of thresholds.yaml."""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from cli.main import app
from monitoring.metrics import COUNTERS, GAUGES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "resources/monitoring"
PAGE = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")

Rule = Mapping[str, Any]


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


GROUPS: Sequence[Mapping[str, Any]] = read("prometheus-rules.yaml")["groups"]
RULES: Sequence[Rule] = [rule for group in GROUPS for rule in group["rules"]]
BOARD = json.loads((FOLDER / "grafana-board.json").read_text(encoding="utf-8"))
THRESHOLDS: Mapping[str, Mapping[str, float]] = yaml.safe_load(
    (ROOT / "src/monitoring/thresholds.yaml").read_text(encoding="utf-8")
)
# What a rule compares with a limit: the threshold, and how many of the metric's units are one of its own.
LIMITED = {
    "ReplicationSlotLag": ("wal_bytes", 1),
    "ConnectorLag": ("connector_seconds", 1000),
    "HeadroomLow": ("headroom_seconds", 1),
    "BronzeLag": ("lag_seconds", 1),
    "SilverLag": ("lag_seconds", 1),
    "GoldLag": ("lag_seconds", 1),
    "UnifiedTopicLag": ("lag_seconds", 1),
    "FreshnessLow": ("freshness_seconds", 1),
    "QuarantineShare": ("quarantine_share", 1),
    "QuarantineAge": ("quarantine_seconds", 1),
    "PassSlow": ("pass_seconds", 1),
    "NoPass": ("run_seconds", 1),
    "TableFiles": ("table_files", 1),
}
STAGES = ("Databases", "Connect", "Topics", "Bronze", "Silver", "Gold", "Unified topic", "Quality", "Tables")
OWN = {*GAUGES, *(f"{name}_total" for name in COUNTERS)}
# A metric of this project or of an exporter, as an expression names it.
NAMED = re.compile(r"\b(?:lakehouse|pg|debezium|kafka)_\w+")
# An expression without what is no metric: the texts of labels, durations, and label lists after by and on.
NO_METRIC = re.compile(r'"[^"]*"|\[\w+\]|\b(?:by|on)\s*\([^)]*\)')
WORDS = {"and", "unless", "sum", "rate", "time", "absent"}


def of_postgres() -> Iterator[str]:
    for prefix, query in read("postgres-exporter.yaml").items():
        for column in query["metrics"]:
            for name, about in column.items():
                assert re.search(rf"\b{name}\b", query["query"]), f"the query has no column {name}"
                if about["usage"] != "LABEL":
                    yield f"{prefix}_{name}"


def of_connect() -> Iterator[str]:
    """The names that the rules make: Debezium's attributes are the last group of a pattern."""
    for rule in read("jmx-exporter-connect.yaml")["rules"]:
        name = rule["name"]
        if "$" not in name:
            yield name
            continue
        attributes = re.findall(r"\(([^()]+)\)", rule["pattern"])[-1]
        for attribute in attributes.split("|"):
            yield re.sub(r"\$\d", attribute, name)


KNOWN = {*OWN, *of_postgres(), *of_connect()}


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in RULES)
    yield from (target["expr"] for target in targets())


def panels() -> list[Mapping[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def targets() -> Iterator[Mapping[str, Any]]:
    for panel in panels():
        yield from panel["targets"]


def limits(expression: str) -> list[tuple[str, float]]:
    plain = NO_METRIC.sub("", expression)
    return [(sign, float(number)) for sign, number in re.findall(r"([<>]=?)\s*([\d.]+)", plain)]


def test_metrics_of_rules_and_board_exist() -> None:
    found = {name for expression in expressions() for name in NAMED.findall(NO_METRIC.sub("", expression))}
    assert found - KNOWN == set()


def test_every_word_of_a_rule_is_a_metric_or_one_of_promql() -> None:
    for rule in RULES:
        plain = re.sub(r"\{[^}]*\}", "", NO_METRIC.sub("", rule["expr"]))
        assert set(re.findall(r"[A-Za-z_]\w*", plain)) - KNOWN - WORDS == set(), rule["expr"]


def test_labels_of_own_metrics_are_theirs() -> None:
    labels = {**GAUGES, **{f"{name}_total": about for name, about in COUNTERS.items()}}
    for expression in expressions():
        for name, chosen in re.findall(r"(lakehouse_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)=", chosen)) <= set(labels[name][0]), expression


@pytest.mark.parametrize(("alert", "of"), LIMITED.items(), ids=LIMITED)
def test_limits_are_those_of_thresholds(alert: str, of: tuple[str, int]) -> None:
    threshold, times = of
    warning, critical = (THRESHOLDS[threshold][level] * times for level in ("warning", "critical"))
    beyond, within = (">", "<=") if critical > warning else ("<", ">=")
    found = {rule["labels"]["severity"]: limits(rule["expr"]) for rule in RULES if rule["alert"] == alert}
    assert found == {"warning": [(beyond, warning), (within, critical)], "critical": [(beyond, critical)]}


def test_an_alert_of_both_severities_has_a_threshold() -> None:
    severities = defaultdict(list)
    for rule in RULES:
        severities[rule["alert"]].append(rule["labels"]["severity"])
    assert {alert for alert, found in severities.items() if found == ["warning", "critical"]} == set(LIMITED)
    assert all(found in (["warning"], ["critical"], ["warning", "critical"]) for found in severities.values())


def of_alert(alert: str, severity: str) -> Rule:
    (rule,) = (rule for rule in RULES if (rule["alert"], rule["labels"]["severity"]) == (alert, severity))
    return rule


def test_the_five_limits_that_operators_know_by_heart() -> None:
    warned = {alert: of_alert(alert, "warning")["expr"] for alert in ("ReplicationSlotLag", "ConnectorLag", "PassSlow")}
    assert warned["ReplicationSlotLag"].startswith("pg_replication_slot_lag_bytes > 100000000 and ")
    assert warned["ConnectorLag"].startswith("debezium_metrics_MilliSecondsBehindSource > 10000 and ")
    assert warned["PassSlow"].startswith('lakehouse_pass_seconds{part="all"} > 60 and ')
    assert of_alert("ConnectorNotRunning", "critical")["expr"] == "kafka_connect_connector_status < 1"
    rate = of_alert("EventRateLow", "warning")
    assert rate["expr"] == "sum(rate(lakehouse_read_records_total[10m])) < 0.1"
    assert rate["for"] == "15m"


def commands(command: Any, prefix: str = "") -> Iterator[str]:
    """Every command below it, also those of a group: `quarantine list`."""
    for name, below in getattr(command, "commands", {}).items():
        yield prefix + name
        yield from commands(below, f"{prefix}{name} ")


def test_a_rule_says_what_is_wrong_and_which_command_is_next() -> None:
    known = set(commands(typer.main.get_command(app)))
    for rule in RULES:
        assert rule["labels"].keys() == {"severity"}
        assert rule["annotations"].keys() == {"summary", "description"}
        named = re.findall(r"\blakehouse ([a-z]+(?: [a-z]+)?)", rule["annotations"]["description"])
        assert named, f"{rule['alert']} names no command"
        assert [words for words in named if words not in known and words.split()[0] not in known] == []
        groups = [words for words in named if words.split()[0] in {"quarantine", "connect", "quality", "offsets"}]
        assert [words for words in groups if words not in known] == []
        for page in re.findall(r"docs/[\w-]+\.md", rule["annotations"]["description"]):
            assert (ROOT / page).is_file()


def test_every_stage_has_a_group_of_rules() -> None:
    assert {stage.lower() for stage in STAGES} <= {group["name"] for group in GROUPS}


def test_every_alert_is_tested_firing_and_silent() -> None:
    tests = read("prometheus-rules.test.yaml")
    assert tests["rule_files"] == ["prometheus-rules.yaml"]
    fires, silent = set(), set()
    for test in tests["tests"]:
        for one in test["alert_rule_test"]:
            for expected in one["exp_alerts"]:
                fires.add((one["alertname"], expected["exp_labels"]["severity"]))
            if not one["exp_alerts"]:
                silent.add(one["alertname"])
    assert fires == {(rule["alert"], rule["labels"]["severity"]) for rule in RULES}
    assert silent == {rule["alert"] for rule in RULES}


def test_the_board_has_a_row_for_each_stage_and_a_panel_for_each_metric() -> None:
    rows = [panel["title"] for panel in BOARD["panels"] if panel["type"] == "row"]
    assert [row for row in rows if row in STAGES] == list(STAGES)
    shown = {name for target in targets() for name in NAMED.findall(NO_METRIC.sub("", target["expr"]))}
    assert OWN - shown == set()
    of_exporters = {"pg_replication_slot_lag_bytes", "kafka_connect_connector_status", "kafka_connect_task_status"}
    assert {*of_exporters, "debezium_metrics_MilliSecondsBehindSource"} <= shown


def test_the_board_asks_the_chosen_datasource_and_has_units() -> None:
    assert BOARD["schemaVersion"] >= 39
    assert "datasource" in {variable["name"] for variable in BOARD["templating"]["list"]}
    for panel in panels():
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        for one in (panel, *panel["targets"]):
            assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(numbers) == len(set(numbers))


def test_the_panels_of_the_board_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_prometheus_scrapes_every_exporter() -> None:
    settings = read("prometheus.yaml")
    assert all((FOLDER / name).is_file() for name in settings["rule_files"])
    found = {
        job["job_name"]: [target for static in job["static_configs"] for target in static["targets"]]
        for job in settings["scrape_configs"]
    }
    ports = {name: {target.rsplit(":", maxsplit=1)[1] for target in addresses} for name, addresses in found.items()}
    assert ports == {"lakehouse": {"9464"}, "node": {"9100"}, "postgres": {"9187"}, "kafka-connect": {"9404"}}


# As the JMX exporter shows an MBean's attribute to the rules, and what comes of it: name, labels, value of the rule.
MBEANS: list[tuple[str, str, dict[str, str], int | None]] = [
    (
        "debezium.postgres<type=connector-metrics, context=streaming, server=shop><>MilliSecondsBehindSource: 7",
        "debezium_metrics_MilliSecondsBehindSource",
        {"plugin": "postgres", "server": "shop", "context": "streaming"},
        None,
    ),
    (
        "debezium.mysql<type=connector-metrics, context=snapshot, server=mysql_prod_tables><>SnapshotRunning: true",
        "debezium_metrics_SnapshotRunning",
        {"plugin": "mysql", "server": "mysql_prod_tables", "context": "snapshot"},
        None,
    ),
    (
        "kafka.connect<type=connector-metrics, connector=mysql-outbox-connector><>status: running",
        "kafka_connect_connector_status",
        {"connector": "mysql-outbox-connector", "state": "running"},
        1,
    ),
    (
        'kafka.connect<type=connector-metrics, connector="a (b)"><>status: failed',
        "kafka_connect_connector_status",
        {"connector": "a (b)", "state": "failed"},
        0,
    ),
    (
        "kafka.connect<type=connector-task-metrics, connector=mysql-outbox-connector, task=0><>status: paused",
        "kafka_connect_task_status",
        {"connector": "mysql-outbox-connector", "task": "0", "state": "paused"},
        0,
    ),
]


@pytest.mark.parametrize(("shown", "name", "labels", "value"), MBEANS, ids=[shown for shown, *_ in MBEANS])
def test_an_attribute_becomes_a_metric(shown: str, name: str, labels: dict[str, str], value: int | None) -> None:
    """The exporter takes the first rule whose pattern is found in the line."""
    rule, match = first_rule(shown)
    assert match is not None
    assert match.expand(re.sub(r"\$(\d)", r"\\\1", rule["name"])) == name
    assert {key: match.expand(re.sub(r"\$(\d)", r"\\\1", of)) for key, of in rule["labels"].items()} == labels
    assert rule.get("value") == value


@pytest.mark.parametrize(
    "shown",
    [
        "debezium.postgres<type=connector-metrics, context=streaming, server=a><>MilliSecondsBehindSourceMaxValue: 7",
        "debezium.postgres<type=connector-metrics, context=streaming, server=a><>LastEvent: x",
        "kafka.connect<type=connector-metrics, connector=a><>connector-type: source",
    ],
)
def test_other_attributes_are_not_exported(shown: str) -> None:
    assert first_rule(shown)[1] is None


def first_rule(shown: str) -> tuple[Rule, re.Match[str] | None]:
    for rule in read("jmx-exporter-connect.yaml")["rules"]:
        if (match := re.search(rule["pattern"], shown)) is not None:
            return rule, match
    return {}, None


def test_the_page_has_every_metric_alert_and_file() -> None:
    for name, (labels, _about) in {**GAUGES, **{f"{name}_total": of for name, of in COUNTERS.items()}}.items():
        shown = ", ".join(f"`{label}`" for label in labels)
        assert re.search(rf"^\| `{name}` \| {shown} ?\| \S", PAGE, re.MULTILINE), name
    cells = re.findall(r"^\| (`[A-Z]\w+`.*?) \|", PAGE, re.MULTILINE)
    assert {rule["alert"] for rule in RULES} == {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert [path.name for path in FOLDER.iterdir() if f"`{path.name}`" not in PAGE] == []


@pytest.mark.live
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "prometheus-rules.yaml"),
        ("check", "config", "prometheus.yaml"),
        ("test", "rules", "prometheus-rules.test.yaml"),
    ],
    ids=" ".join,
)
def test_promtool_finds_nothing_wrong(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)  # noqa: S607
    assert done.returncode == 0, done.stdout + done.stderr
