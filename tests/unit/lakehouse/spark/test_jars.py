"""The pinned jars: manifests, the cache, and a download that is checked before anything is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from lakehouse.errors import ContractError, InstallationError
from lakehouse.spark import jars
from lakehouse.spark.jars import Jar, fetch, jar_paths, load_manifest

ROOT = Path(__file__).parents[4]


def a_jar(name: str, content: bytes = b"right") -> Jar:
    return Jar(coordinate=f"org.example:{name}:1.0", sha256=hashlib.sha256(content).hexdigest())


class Repository:
    """Stands for Ivy: serves the same bytes as every jar, and remembers what it was asked for."""

    def __init__(self, content: bytes = b"right", *, lacks: str = "") -> None:
        self.content = content
        self.lacks = lacks
        self.asked: list[str] = []

    def download(self, wanted: Sequence[Jar], folder: Path) -> None:
        for jar in wanted:
            self.asked.append(jar.coordinate)
            if jar.coordinate != self.lacks:
                (folder / jar.file_name).write_bytes(self.content)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAKEHOUSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files_below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "manifest",
    [
        "src/lakehouse/spark/jars.yaml",
        "demo/jars.yaml",
        "demo/stack/connect.yaml",
        "demo/stack/converter.yaml",
        "demo/stack/servers.yaml",
        "tests/jars.yaml",
    ],
)
def test_the_manifests_name_each_file_once(manifest: str) -> None:
    names = [jar.file_name for jar in load_manifest(ROOT / manifest)]
    assert len(names) == len(set(names)) > 1


@pytest.mark.parametrize(
    "entry",
    [
        "{coordinate: org.example:one, sha256: " + "0" * 64 + "}",
        "{coordinate: org.example:one:1.0, sha256: abc}",
        "{coordinate: org.example:one:1.0}",
        "{coordinate: 'org.example:../one:1.0', sha256: " + "0" * 64 + "}",
        "{coordinate: 'org.example:one:1.0:plugin', sha256: " + "0" * 64 + "}",
    ],
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, entry: str) -> None:
    (tmp_path / "jars.yaml").write_text(f"jars:\n  - {entry}\n")
    with pytest.raises(ContractError):
        load_manifest(tmp_path / "jars.yaml")


def test_another_file_of_a_version_has_its_classifier_and_extension() -> None:
    jar = Jar(coordinate="org.example:one:1.0:plugin@tar.gz", sha256="0" * 64)
    assert jar.parts == ("org.example", "one", "1.0", "plugin", "tar.gz")
    assert jar.file_name == "one-1.0-plugin.tar.gz"


def test_a_manifest_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InstallationError, match=r"no manifest .*nowhere\.yaml"):
        load_manifest(tmp_path / "nowhere.yaml")


def test_a_missing_jar_is_named_with_the_command_that_fetches_it(cache: Path) -> None:
    with pytest.raises(InstallationError, match=r"one-1\.0\.jar is not in .*Run `lakehouse jars`\."):
        jar_paths([a_jar("one")])


def test_what_was_fetched_is_found(cache: Path) -> None:
    wanted = (a_jar("one"), a_jar("two"))
    assert fetch(wanted, download=Repository().download) == wanted
    assert jar_paths(wanted) == (cache / "jars" / "one-1.0.jar", cache / "jars" / "two-1.0.jar")
    assert files_below(cache) == ["one-1.0.jar", "two-1.0.jar"]


def test_only_what_is_missing_is_asked_for_and_only_once(cache: Path) -> None:
    repository = Repository()
    fetch([a_jar("one")], download=repository.download)
    fetch([a_jar("one"), a_jar("two"), a_jar("two")], download=repository.download)
    assert fetch([a_jar("one"), a_jar("two")], download=repository.download) == ()
    assert repository.asked == ["org.example:one:1.0", "org.example:two:1.0"]


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(cache: Path) -> None:
    wrong = hashlib.sha256(b"wrong").hexdigest()
    with pytest.raises(InstallationError) as refusal:
        fetch([a_jar("good", b"wrong"), a_jar("bad")], download=Repository(b"wrong").download)
    assert f"org.example:bad:1.0 has the wrong sha256: expected {a_jar('bad').sha256}, got {wrong}" in str(
        refusal.value
    )
    assert files_below(cache) == []


def test_a_jar_that_did_not_come_is_named_and_nothing_is_kept(cache: Path) -> None:
    repository = Repository(lacks="org.example:two:1.0")
    with pytest.raises(InstallationError, match=r"org\.example:two:1\.0 was not downloaded"):
        fetch([a_jar("one"), a_jar("two")], download=repository.download)
    assert files_below(cache) == []


def java_that(does: str, home: Path) -> None:
    """Make `home` a JAVA_HOME whose java is this line of shell."""
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{does}\n")
    java.chmod(0o755)


def test_ivy_is_told_to_resolve_nothing_and_to_stay_in_the_folder(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java_that("""[ "$1" = -version ] && echo 'openjdk version "17.0.1"' >&2 || echo no route""", tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    cache.mkdir()
    with pytest.raises(InstallationError, match=r"Ivy could not download org\.example:one:1\.0; .*ivy\.log says why"):
        jars.download_with_ivy([a_jar("one")], tmp_path)
    assert 'transitive="false"' in (tmp_path / "ivy.xml").read_text()
    assert f'defaultCacheDir="{tmp_path}/ivy"' in (tmp_path / "settings.xml").read_text()
    assert (cache / "ivy.log").read_text() == "no route\n"


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_CACHE", "/own")
    assert jars.cache_dir() == Path("/own/jars")
    monkeypatch.delenv("LAKEHOUSE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/users")
    assert jars.cache_dir() == Path("/users/orders-lakehouse/jars")


@pytest.mark.parametrize("version", ['java version "1.8.0_402"', 'openjdk version "11.0.2"', "no Java here"])
def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    java_that(f"echo '{version}' >&2", tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InstallationError, match=r"is not Java 17 or newer\. Install Java 17"):
        jars.java()


def test_no_java_at_all_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InstallationError, match=r"no Java on PATH\. Install Java 17"):
        jars.java()


def test_the_command_says_the_error_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert jars.main([str(tmp_path / "nowhere.yaml")]) == InstallationError.exit_code
    assert capsys.readouterr().err.startswith("There is no manifest")
