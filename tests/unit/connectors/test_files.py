"""Connectors from files, and the bundle's variables in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connectors.connectors import has_reference, is_reference, is_secret, secrets_of
from connectors.files import ConnectorFile, read_file, read_text, without_comments
from connectors.rest import exception_lines
from connectors.variables import Variables, chosen_files, load_bundle, rendered, resource_files, variables_of
from lakehouse.errors import SettingsError

BUNDLE = """
bundle:
  name: shop
variables:
  host: {description: a host, default: "db.${bundle.target}.${bundle.name}"}
  port: {description: a port, default: 5432}
  schema: {description: a name, default: "${var.host}:${var.port}"}
  user: {description: "", default: ""}
  mail: {description: "", default: "${workspace.current_user.userName}"}
  circle: {description: "", default: "${var.circle}"}
  connectors: {description: "", default: "one"}
targets:
  dev: {default: true, variables: {port: "6543"}}
  prod:
"""


def read(text: str) -> ConnectorFile:
    return read_text(text, file="c.json", name="c")


def lines(text: str) -> list[tuple[int | None, str]]:
    return [(finding.line, finding.key) for finding in read(text).findings]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bundle.yaml").write_text(BUNDLE)
    connectors = tmp_path / "resources" / "connect"
    connectors.mkdir(parents=True)
    config = {"connector.class": "x", "h": "${var.schema}", "p": "${env:P}", "t": "${routedByValue}"}
    for name in ("one", "two"):
        (connectors / f"{name}.json").write_text(json.dumps({"name": name, "config": config}, indent=1))
    return tmp_path


def of(folder: Path, target: str | None = None, *given: str, **environment: str) -> Variables:
    return variables_of(load_bundle(folder / "bundle.yaml"), target, given=given, environment=environment)


def test_both_forms_are_read_with_the_line_of_every_option() -> None:
    whole = read('{"name": "n",\n "config": {\n  "connector.class": "x",\n  "tasks.max": 1, "a": true}}').connector
    bare = read('{"connector.class": "x",\n "tasks.max": "1", "a": "true"}').connector
    assert whole is not None
    assert bare is not None
    assert (whole.name, bare.name) == ("n", "c")
    assert whole.config == bare.config == {"connector.class": "x", "tasks.max": "1", "a": "true"}
    assert (whole.lines["tasks.max"], bare.lines["tasks.max"]) == (4, 2)


def test_comments_are_findings_with_their_lines_and_the_rest_is_read() -> None:
    text = '{\n  // the class\n  "connector.class": "x", # why\n  "u": "http://a/*b*/#c" /* two\n lines */\n}'
    read_ = read(text)
    assert [finding.line for finding in read_.findings] == [2, 3, 4]
    assert {finding.check for finding in read_.findings} == {"json"}
    assert read_.connector is not None
    assert read_.connector.config == {"connector.class": "x", "u": "http://a/*b*/#c"}
    assert without_comments(text)[1].count("\n") == text.count("\n")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('{"a": "x"\n "b": "y"}', 2, "a comma or a bracket is missing"),
        ('{"a": "x",\n}', None, "a comma before the closing bracket"),
        ("", 1, "not valid JSON"),
        ("{'a': 1}", 1, "a key in double quotes is missing"),
        ('{"a": "x"}', 1, "no connector"),
        ("[]", 1, "no connector"),
    ],
)
def test_what_is_no_connector_is_a_finding_with_its_line(text: str, line: int | None, said: str) -> None:
    read_ = read(text)
    (finding,) = read_.findings
    assert read_.connector is None
    assert said in finding.what
    assert finding.line == (line or finding.line)


def test_options_that_stand_twice_or_are_no_text_are_findings() -> None:
    text = '{"connector.class": "x",\n"a": "1",\n"a": "2",\n"b": null,\n"c": [1],\n"d": {"e": 1}}'
    assert lines(text) == [(3, "a"), (4, "b"), (5, "c"), (6, "d")]


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        read_file(tmp_path / "none.json")


# The bundle's variables.


def test_a_value_comes_from_the_target_before_the_default(folder: Path) -> None:
    assert of(folder).target == "dev"
    assert of(folder).value("schema") == "db.dev.shop:6543"
    assert of(folder, "prod").value("schema") == "db.prod.shop:5432"


def test_the_environment_goes_before_the_target_and_the_command_line_before_all(folder: Path) -> None:
    assert of(folder, BUNDLE_VAR_port="1").value("port") == "1"
    assert of(folder, None, "port=2", BUNDLE_VAR_port="1").value("port") == "2"
    assert of(folder, None, "host=a=b").value("host") == "a=b"


def test_other_placeholders_stay_as_they_are(folder: Path) -> None:
    text = "${env:P} ${file:/x:y} ${routedByValue} $1"
    assert of(folder).filled(text, used_in="here") == text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("user", r"The variable user has no value in target dev \(f.json: c: k\). Set BUNDLE_VAR_user"),
        ("mail", r"f.json: c: k: \$\{workspace.current_user.userName\} is known to Databricks only"),
        ("circle", "refers to itself"),
        ("hots", "has no variable 'hots'.*did you mean 'host'"),
    ],
)
def test_a_value_that_cannot_be_had_is_an_error_with_its_place(folder: Path, name: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        of(folder).filled(f"${{var.{name}}}", used_in="f.json: c: k")


def test_a_workspace_in_a_connector_itself_is_an_error(folder: Path) -> None:
    with pytest.raises(SettingsError, match="known to Databricks only"):
        of(folder).filled("${workspace.host}", used_in="here")


@pytest.mark.parametrize(("given", "said"), [("port", "has no value"), ("prot=1", "did you mean 'port'")])
def test_a_wrong_var_is_an_error(folder: Path, given: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        of(folder, None, given)


def test_an_unknown_target_or_bundle_is_an_error(folder: Path) -> None:
    with pytest.raises(SettingsError, match="Its targets are: dev, prod"):
        of(folder, "test")
    with pytest.raises(SettingsError, match="--bundle FILE"):
        load_bundle(folder / "none.yaml")
    (folder / "bundle.yaml").write_text("a: [")
    with pytest.raises(SettingsError, match=r"bundle.yaml:\d+: not valid YAML"):
        load_bundle(folder / "bundle.yaml")
    (folder / "bundle.yaml").write_text("a: 1\nb: \x00")
    with pytest.raises(SettingsError, match=r"bundle.yaml:2: not valid YAML: the character U\+0000 in column 4 "):
        load_bundle(folder / "bundle.yaml")
    (folder / "bundle.yaml").write_text("a: 1")
    with pytest.raises(SettingsError, match="no targets"):
        load_bundle(folder / "bundle.yaml")


def test_the_connectors_have_variables_of_their_own_file(folder: Path) -> None:
    own = folder / "resources/connect/variables.yaml"
    own.write_text(
        "variables: {slot: {description: '', default: a}, url: {description: '', default: '${var.host}/'}}\n"
        "targets: {dev: {variables: {slot: b}}}\n"
    )
    assert [of(folder, target).value("slot") for target in ("dev", "prod")] == ["b", "a"]
    assert of(folder).value("url") == "db.dev.shop/"
    assert of(folder, None, BUNDLE_VAR_slot="c").value("slot") == "c"
    assert of(folder).value("port") == "6543"
    for text, said in (
        ("variables: {host: {default: a}}", "has the variable host of"),
        ("targets: {test: {}}", "has the target test, which"),
        ("variables: [", "variables.yaml:1: not valid YAML"),
    ):
        own.write_text(text)
        with pytest.raises(SettingsError, match=said):
            of(folder)


def test_a_connector_is_filled_in(folder: Path) -> None:
    files = resource_files(folder / "bundle.yaml")
    assert [path.stem for path in chosen_files(files, of(folder), ())] == ["one"]
    assert [path.stem for path in chosen_files(files, of(folder), ("two.json", "one"))] == ["two", "one"]
    with pytest.raises(SettingsError, match="did you mean 'one'"):
        chosen_files(files, of(folder), ("ones",))
    done = rendered(files[0], of(folder)).connector
    assert done is not None
    assert done.config == {"connector.class": "x", "h": "db.dev.shop:6543", "p": "${env:P}", "t": "${routedByValue}"}
    assert done.lines["h"] == 5
    with pytest.raises(SettingsError, match="There is no connector in"):
        resource_files(folder / "resources" / "bundle.yaml")


# Secrets.


@pytest.mark.parametrize("key", ["database.password", "a.sasl.jaas.config", "ssl.key.password", "api.token", "secret"])
def test_options_that_may_be_secret(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize("key", ["database.user", "topic.prefix", "key.converter", "database.ssl.mode", "keySource"])
def test_options_that_are_not(key: str) -> None:
    assert not is_secret(key)


def test_a_secret_of_two_characters_and_a_reference_are_no_text_to_look_for() -> None:
    config = {"database.password": "hunter2", "x.token": "ab", "y.secret": "${env:P}", "topic.prefix": "orders"}
    assert secrets_of(config) == ["hunter2"]


def test_references() -> None:
    assert is_reference("${env:P}")
    assert not is_reference("x${env:P}")
    assert has_reference('password="${env:P}";')
    assert not has_reference("${routedByValue}")


def test_of_a_trace_the_exceptions_are_shown() -> None:
    trace = "org.X: no\n\tat org.Y.z(Y.java:1)\n\tat java.base/a.B.c(B.java:2)\nCaused by: p.E: why\n\t... 8 more\n"
    assert exception_lines(trace) == ("org.X: no", "Caused by: p.E: why")
