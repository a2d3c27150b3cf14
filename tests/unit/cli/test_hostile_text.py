"""Commands that show what others wrote (keys, names, reasons, traces, topics) show it all, and end as they should."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cli.monitoring import doctor, explain, status
from cli.proposal.database import TopicRow
from cli.proposal.texts.shown import shown as shown_topics
from cli.tables import optimize, purge, verify
from cli.tables.accounts import Account, Findings
from cli.tables.results import gate_results, records_by_feed
from gold.topics.compare import Comparison
from lakehouse.contracts.files import load_contracts
from lakehouse.delta.optimize import Maintained
from lakehouse.process.steps import wide_console
from lakehouse.process.terminal import new_table
from lakehouse.quality.results import Result as RuleResult
from monitoring.doctor import Result
from monitoring.explain import Explained, Explanation
from monitoring.model import Finding, Freshness, Headroom, Pass, Quarantine, Stage, Status
from monitoring.readings.unified_topic import Published, PublishedRecords
from monitoring.status import View
from silver.purge import Plan
from tests.support.command_line import run
from tests.unit.connectors.stand_in import ConnectStandIn, connect_stand_in
from tests.unit.monitoring.scenes import postgres

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
HOSTILE = ["[/b]", "[code=12]", "[red]", ":x:", "a\\[b]", "[link=x]"]
CONTROL = "\x1b[2J\u202e"


@pytest.fixture(params=HOSTILE)
def text(request: pytest.FixtureRequest) -> str:
    return f"x{request.param}y"


@pytest.fixture
def connect() -> Iterator[ConnectStandIn]:
    with connect_stand_in() as one:
        yield one


def printed(capsys: pytest.CaptureFixture[str], show: Callable[[Console], None]) -> str:
    """What is shown, without the line breaks of cells."""
    show(wide_console())
    out = capsys.readouterr().out
    assert "\x1b" not in out
    return "".join(out.split())


def result(text: str) -> RuleResult:
    given: Any = {"run": text, "gate": "gold", "source": text, "feed": text, "rule": text, "on_failure": "fail"}
    return RuleResult(**given, evaluated=2, failed=1, passed=False, sample_keys=(text,), observed=text, message=text)


def of_status(text: str) -> Status:
    return Status(
        NOW,
        stages=[Stage(text, "topics", "critical", what=f"absent: {text}", hint=text)],
        freshness=[Freshness(text, 1.0, 2.0, 3)],
        headroom=[Headroom(text, 1.0, 2.0, 3.0, 4.0, text)],
        quarantine=[Quarantine(text, 1, 0.1, 10.0, {text: 1})],
        passes=[Pass(text, NOW, 1, {text: 1.0})],
        lock=text,
        findings=[Finding("critical", text, f"{text}.", text), Finding("warning", text, text, "")],
    )


def of_explain(text: str) -> Explanation:
    row = {text: text, "note": text}
    event = Explained(text, text, 0, 7, NOW, text, text, None, (1, 2), text, text)
    version = {"_commit_version": "1", "_commit_timestamp": "t", "_change_type": text, "_topic": text}
    return Explanation(text, text, [event], {text: row}, {text: [version]}, row)


def test_a_status_is_shown(capsys: pytest.CaptureFixture[str], text: str) -> None:
    out = printed(capsys, lambda console: console.print(status.rendered(of_status(text))))
    assert out.count(text) >= 12


def test_the_checks_of_doctor_are_shown(capsys: pytest.CaptureFixture[str], text: str) -> None:
    results = [Result("heartbeat", text, ok, text) for ok in (True, False)]
    view = View(load_contracts())
    out = printed(capsys, lambda _console: doctor._show(results, view, {text: text}))
    assert out.count(text) == 6


def test_an_explanation_is_shown(capsys: pytest.CaptureFixture[str], text: str) -> None:
    found, sent = of_explain(text), PublishedRecords([Published(text, 0, 1, text, text)], True)

    def show(console: Console) -> None:
        explain._show_events(found, console)
        explain._show_row(text, found.gold, console)
        explain._show_versions(text, found.versions[text], console)
        explain._show_published(sent, found, console)
        explain._show_events(Explanation(text, text, [], {}, {}, None), console)

    assert printed(capsys, show).count(text) == 5 + 4 + 3 + 3 + 1


def test_what_verify_finds_is_shown(capsys: pytest.CaptureFixture[str], text: str) -> None:
    counts = dict.fromkeys(("read", "applied", "superseded", "duplicate", "tombstone", "ignored", "quarantined"), 1)
    place = {"topic": text, "topic_id": "a", "partition": 0, "pending": 0, **counts}
    found = {"topic": text, "topic_id": "a", "partition": 0, "first": 1, "last": 2, "records": 2}
    account = Account(text, [place], {"missing": Findings(1, 2, [found])})
    comparison = Comparison(text, 3, 0, (text,), {text: text}, 1, text)

    def show(_console: Console) -> None:
        verify._show([account])
        verify._show_topic(comparison)

    assert printed(capsys, show).count(text) >= 9


def test_the_results_of_gates_and_the_quarantine_are_shown(capsys: pytest.CaptureFixture[str], text: str) -> None:
    def show(console: Console) -> None:
        for one in gate_results([result(text)]):
            console.print(one)
        console.print(records_by_feed([{"feed": text, "state": text, "records": 3}]))

    out = printed(capsys, show)
    assert out.count(text) == 7
    assert "holds" in out


@pytest.mark.parametrize("dry_run", [True, False])
def test_what_is_removed_is_shown_however_long_its_name(
    capsys: pytest.CaptureFixture[str], text: str, dry_run: bool
) -> None:
    long = text * 30
    plan, one = Plan(long, None, 3, long), Maintained(long, 1, 2, 3, 4)
    out = printed(capsys, lambda _console: purge._show([plan], dry_run=dry_run))
    assert out.replace("│", "").count(text) >= 2 * 20
    out = printed(capsys, lambda _console: optimize._show([one], dry_run=dry_run))
    assert out.replace("│", "").count(text) >= 20


def test_topics_are_shown(capsys: pytest.CaptureFixture[str], text: str) -> None:
    rows = [TopicRow(text, taken, text, text, (text,), 1, text, 2, text) for taken in (True, False)]
    out = printed(capsys, lambda console: console.print(shown_topics(text, rows)))
    assert out.count(text) == 13


def test_a_new_tableors_is_shown(capsys: pytest.CaptureFixture[str], text: str) -> None:
    made = new_table(text, text)
    made.add_row(text)
    assert printed(capsys, lambda console: console.print(made)).count(text) == 3


@pytest.mark.parametrize("command", [("connect", "status"), ("doctor",), ("status",)])
def test_the_trace_of_a_task_is_shown(
    capsys: pytest.CaptureFixture[str], connect: ConnectStandIn, tmp_path: Path, command: tuple[str, ...], text: str
) -> None:
    name = f"orders{text}"
    connect.add(
        name, {**postgres().config, "database.user": text}, trace=f"Broken: {text} {CONTROL}\n\tat a.b(C.java:1)"
    )
    where = () if command[0] == "connect" else ("--warehouse", str(tmp_path / "warehouse"))
    code, out, err = run(capsys, *command, "--connect-url", connect.url, *where)
    assert code in {1, 2, 4}
    assert "Traceback" not in err
    assert "unexpected" not in err
    said = "".join((out + err).split())
    assert said.count(text) >= 2
    assert "\\x1b[2J\\u202e" in said
    assert not {"\x1b", "\u202e"} & set(out + err)


def test_a_refused_option_is_shown(capsys: pytest.CaptureFixture[str], text: str) -> None:
    for arguments in (("explain", text), ("offsets", "show", text), ("status", f"--{text}"), (text,)):
        code, _out, err = run(capsys, *arguments, "--warehouse", "/nowhere")
        assert code == 2
        assert "Traceback" not in err
