"""What a person sees of a step."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from lakehouse.process.steps import LoggedSteps, Steps


def test_a_step_says_what_came_of_it() -> None:
    out = io.StringIO()
    with Steps(Console(file=out, width=100)).step("bronze", "reading") as note:
        note("12 new records")
    assert "… bronze    reading" in out.getvalue()
    assert "✓ bronze    12 new records (" in out.getvalue()


def test_a_failed_step_says_so_and_lets_the_error_through() -> None:
    out = io.StringIO()
    with pytest.raises(ValueError, match="no"), Steps(Console(file=out, width=100)).step("gold", "merging"):
        raise ValueError("no")
    assert "✗ gold      stopped after" in out.getvalue()


def test_long_work_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    clock = iter(range(0, 100, 4))
    monkeypatch.setattr("lakehouse.process.steps.time.monotonic", lambda: float(next(clock)))
    with Steps(Console(file=out, width=100)).step("silver", "merging") as step:
        for batch in range(4):
            step.now(f"batch {batch}")
        step.say("trying again in 2 s")
    lines = out.getvalue().splitlines()
    # A line at most every ten seconds, but at once what a person must see.
    assert [line.split("silver    ")[1].split(" (")[0] for line in lines[1:-1]] == ["batch 2", "trying again in 2 s"]


def test_what_cannot_wait_is_said_at_once() -> None:
    out = io.StringIO()
    steps = Steps(Console(file=out, width=40))
    with steps.step("bronze", "reading"):
        steps.say("bronze postgres: the broker at [::1]:9092 does not answer; trying again in 4 s (2 of 5)")
        assert "the broker at [::1]:9092 does not answer; trying again in 4 s (2 of 5)\n" in out.getvalue()


def lines(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_log_is_an_event_a_line_with_its_run() -> None:
    out = io.StringIO()
    steps = LoggedSteps(out)
    steps.run_id = "r1"
    with steps.step("silver", "merging") as step:
        step.now("not yet: a moment ago the step began")
        step.say("look")
        step("3 records")
    steps.say("beside")
    steps.error("Kafka", "No broker.")
    found = lines(out)
    assert [(one["event"], one["text"]) for one in found] == [
        ("started", "merging"),
        ("progress", "look"),
        ("ended", "3 records"),
        ("said", "beside"),
        ("error", "No broker."),
    ]
    assert {one["run"] for one in found} == {"r1"}
    assert [one["level"] for one in found] == ["info"] * 4 + ["error"]
    assert (found[0]["step"], found[4]["kind"]) == ("silver", "Kafka")
    assert isinstance(found[2]["seconds"], float)


def test_a_step_that_fails_is_logged_as_failed() -> None:
    out = io.StringIO()
    with pytest.raises(ValueError, match="no"), LoggedSteps(out).step("gold", "merging"):
        raise ValueError("no")
    assert [(one["event"], one["level"]) for one in lines(out)] == [("started", "info"), ("failed", "error")]
