"""Secrets: found where the reference points, and named there, never shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from pydantic import TypeAdapter, ValidationError

from lakehouse.errors import InstallationError, LakehouseError, SettingsError
from lakehouse.secrets import FromDatabricks, FromEnvironment, FromFile, SecretReference, masked, resolve

HIDDEN = "s3cr\"et\\ value'"
REFERENCES: TypeAdapter[FromEnvironment | FromFile | FromDatabricks] = TypeAdapter(SecretReference)
OF_WORKSPACE = {"databricks_secret": {"scope": "kafka", "key": "reader"}}


def resolved(reference: object) -> str:
    return resolve(REFERENCES.validate_python(reference)).get_secret_value()


def workspace(monkeypatch: pytest.MonkeyPatch, secrets: dict[tuple[str, str], str]) -> None:
    """Stands for the Databricks runtime."""
    runtime = ModuleType("databricks.sdk.runtime")
    read = SimpleNamespace(get=lambda scope, key: secrets[scope, key])
    vars(runtime)["dbutils"] = SimpleNamespace(secrets=read)
    for name in ("databricks", "databricks.sdk"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", runtime)


def test_a_secret_is_found_in_every_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OF_KAFKA", HIDDEN)
    (tmp_path / "password").write_text(f"{HIDDEN}\n")
    workspace(monkeypatch, {("kafka", "reader"): HIDDEN})
    for reference in ({"env": "OF_KAFKA"}, {"file": str(tmp_path / "password")}, OF_WORKSPACE):
        assert resolved(reference) == HIDDEN


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("a\n", "a"),
        ("a\r", "a\r"),
        ("a\rb\n", "a\rb"),
        ("a\n\n", "a\n"),
        ("a\r\n", "a"),
        (" a ", " a "),
        ("a\nb", "a\nb"),
    ],
)
def test_only_the_last_line_break_of_a_file_is_no_part_of_the_secret(written: str, read: str, tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(written.encode())
    assert resolved({"file": str(tmp_path / "password")}) == read


def test_a_secret_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_KAFKA", HIDDEN)
    secret = resolve(FromEnvironment(env="OF_KAFKA"))
    assert HIDDEN not in f"{secret} {secret!r} {[secret]}"


@pytest.mark.parametrize("value", [HIDDEN, "", None, 7, {HIDDEN: None}, {"env": "A", "file": HIDDEN}, [HIDDEN]])
def test_a_value_in_place_of_a_reference_is_refused_and_not_shown(value: object) -> None:
    with pytest.raises(ValidationError, match="by reference, never by value") as refused:
        REFERENCES.validate_python(value)
    assert HIDDEN not in "".join(error["msg"] for error in refused.value.errors())


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ({"env": "NOT_SET"}, "the variable NOT_SET is not set. Set NOT_SET"),
        ({"env": "EMPTY"}, "A secret is empty: the variable EMPTY"),
        ({"file": "absent"}, "the file absent (No such file or directory)"),
        ({"file": "folder"}, "the file folder (Is a directory)"),
        ({"file": "binary"}, "the file binary (it is not UTF-8 text)"),
        ({"file": "empty"}, "A secret is empty: the file empty"),
        ({"databricks_secret": {"scope": "kafka", "key": "wrong"}}, "the secret wrong of the scope kafka"),
    ],
)
def test_what_is_missing_is_named(
    reference: object, sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "empty").write_text("\n")
    workspace(monkeypatch, {})
    with pytest.raises(SettingsError) as error:
        resolved(reference)
    assert sentence in str(error.value)
    assert error.value.__cause__ is None


def test_elsewhere_a_secret_of_a_workspace_says_where_it_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("databricks.sdk.runtime", "pyspark.dbutils"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InstallationError, match="on Databricks only") as error:
        resolved(OF_WORKSPACE)
    assert isinstance(error.value, LakehouseError)


def test_it_loads_without_spark_and_kafka() -> None:
    program = (
        "import sys, lakehouse.secrets;"
        "sys.exit(any(name in sys.modules for name in ('pyspark', 'confluent_kafka', 'databricks')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    "text",
    [
        "failed with password=hunter2, then",
        "jdbc:x?user=a&password=hunter2&b=c",
        "x://someone:hunter2@host/db",
        '{"database.password": "hunter2"}',
        "sasl.jaas.config: Module required username=a password='hunter2';",
        "Authorization: Basic aHVudGVyMjpodW50ZXIy hunter2",
    ],
)
def test_a_secret_in_a_text_is_hidden(text: str) -> None:
    assert "hunter2" not in masked(text, ["hunter2" if "Basic" in text else ""])
    assert "aHVudGVyMjpodW50ZXIy" not in masked(text)
