"""`lakehouse connect render`, `check` and `deploy` of the packaged connector of a whole database, by each route."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import cli.connect.shared
from connectors.routes import REGEX_ROUTER
from tests.support import command_line
from tests.unit.connectors.stand_in import ConnectStandIn, at_once

ROOT = Path(__file__).parents[3]
NAME = "mysql-database-connector"
ROUTES: dict[str, tuple[Any, dict[str, str]]] = {
    "default": (None, {}),
    "pattern": (
        "topic_<>",
        {
            "transforms": "topics",
            "transforms.topics.type": REGEX_ROUTER,
            "transforms.topics.regex": r"order_dw\.([^.]+)\.(.+)",
            "transforms.topics.replacement": "topic_$2",
        },
    ),
    "fixed": (
        {"${var.mysql_database}.user": "users", "order_dw.order": "orders"},
        {
            "transforms": "topics1,topics2",
            "transforms.topics1.type": REGEX_ROUTER,
            "transforms.topics1.regex": r"order_dw\.order_dw\.user",
            "transforms.topics1.replacement": "users",
            "transforms.topics2.type": REGEX_ROUTER,
            "transforms.topics2.regex": r"order_dw\.order_dw\.order",
            "transforms.topics2.replacement": "orders",
        },
    ),
}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of one's own, with the packaged connectors beside it."""
    shutil.copy(ROOT / "bundle.yaml", tmp_path)
    shutil.copytree(ROOT / "resources/connect", tmp_path / "resources/connect")
    return tmp_path / "bundle.yaml"


def name_topics(bundle: Path, topics: Any) -> Path:
    """The connector's file, with these `topics`."""
    path = bundle.parent / "resources/connect" / f"{NAME}.json"
    config = json.loads(path.read_text())["config"]
    named = {} if topics is None else {"topics": topics}
    path.write_text(json.dumps({"name": NAME, **named, "config": config}, indent=2))
    return path


def run(capsys: pytest.CaptureFixture[str], bundle: Path, command: str, *arguments: str) -> tuple[int, str, str]:
    """`lakehouse connect` with a command and these arguments, on the bundle."""
    given = ("--bundle", str(bundle), "--var", "bootstrap_servers=b:9092")
    return command_line.run(capsys, "connect", command, *arguments, *given)


@pytest.mark.parametrize("route", ROUTES)
def test_a_route_is_rendered(bundle: Path, capsys: pytest.CaptureFixture[str], route: str) -> None:
    _code, packaged, _err = run(capsys, bundle, "render", NAME)
    topics, wanted = ROUTES[route]
    name_topics(bundle, topics)
    code, out, _err = run(capsys, bundle, "render", NAME)
    assert code == 0
    assert json.loads(out) == {"name": NAME, "config": {**json.loads(packaged)["config"], **wanted}}


@pytest.mark.parametrize("route", ROUTES)
def test_what_is_rendered_passes_the_check(bundle: Path, capsys: pytest.CaptureFixture[str], route: str) -> None:
    name_topics(bundle, ROUTES[route][0])
    folder = bundle.parent / "rendered"
    assert run(capsys, bundle, "render", NAME, "--output", str(folder))[0] == 0
    code, out, err = run(capsys, bundle, "check", str(folder / f"{NAME}.json"))
    assert (code, err) == (0, "")
    assert NAME in out
    # And the target's own, this one among them.
    assert run(capsys, bundle, "check", "--var", f"connectors={NAME}, mysql-tables-connector")[0] == 0


@pytest.mark.parametrize("route", ROUTES)
def test_a_route_is_deployed(
    bundle: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    stand_in: ConnectStandIn,
    route: str,
) -> None:
    monkeypatch.setattr(cli.connect.shared, "worker_at", at_once)
    topics, wanted = ROUTES[route]
    name_topics(bundle, topics)
    assert run(capsys, bundle, "deploy", NAME, "--connect-url", stand_in.url)[0] == 0
    deployed = stand_in.configs[NAME]
    assert {key: value for key, value in deployed.items() if key.startswith("transforms")} == wanted
    assert "topics" not in deployed


@pytest.mark.parametrize("command", ["render", "check"])
def test_a_mistake_ends_it_with_file_line_and_key(
    bundle: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    path = name_topics(bundle, {"order_dw.user": "users", "order_dw.order": "users"})
    chosen = [NAME] if command == "render" else ["--var", f"connectors={NAME}"]
    code, out, err = run(capsys, bundle, command, *chosen)
    assert (code, out) == (2, "")
    assert f"{path}:5: {NAME}: topics: order_dw.order: order_dw.user has the name users too" in err


@pytest.mark.parametrize("route", ROUTES)
def test_the_documentation_shows_what_is_rendered(route: str) -> None:
    page = (ROOT / "docs/connect.md").read_text(encoding="utf-8")
    lines = [line.strip().rstrip(",") for line in page.splitlines()]
    assert [key for key, value in ROUTES[route][1].items() if f'"{key}": {json.dumps(value)}' not in lines] == []
