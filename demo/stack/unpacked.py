"""Archives of the jar cache, unpacked once beside it."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from lakehouse.spark.jars import Jar, cache_dir, jar_paths, load_manifest

SERVERS = Path(__file__).with_name("servers.yaml")
CONVERTER = Path(__file__).with_name("converter.yaml")
REMEDY = "Run `make setup-live`."
MYSQL = "mysql-Linux-amd64.tar.gz"
# Kafka Connect has them. A second class of the same name from a plugin's folder would be another class.
OF_KAFKA_CONNECT = ("connect-api-", "kafka-clients-", "slf4j-api-", "lz4-java-", "snappy-java-")


def plugin_folders() -> tuple[Path, ...]:
    """A folder a Debezium connector, as `plugin.path` wants them. Raises InstallationError when one was not fetched."""
    return tuple(_unpacked(jar, _unpack_plugin) for jar in _servers() if "debezium-connector" in jar.coordinate)


def converter_jars() -> tuple[Path, ...]:
    """The jars of the Avro converter. Raises InstallationError when one was not fetched."""
    return jar_paths(load_manifest(CONVERTER), hint=REMEDY)


def registry_folder() -> Path:
    """The folder of the schema registry, with its jar and `lib`. Raises InstallationError when it was not fetched."""
    (jar,) = (jar for jar in _servers() if "registry-app" in jar.coordinate)
    return _unpacked(jar, _unpack_all)


def mysql_folder() -> Path:
    """The folder of MySQL's server, with `bin` and `share`. Raises InstallationError when it was not fetched."""
    (jar,) = (jar for jar in _servers() if "mysql-server" in jar.coordinate)
    return _unpacked(jar, _unpack_mysql)


def _servers() -> tuple[Jar, ...]:
    return load_manifest(SERVERS)


def _unpacked(jar: Jar, unpack: Callable[[Path, Path], None]) -> Path:
    """The folder, which is there whole or not at all."""
    folder = cache_dir().parent / "unpacked" / jar.file_name.partition(".tar")[0].removesuffix(".jar")
    if not folder.is_dir():
        (archive,) = jar_paths([jar], hint=REMEDY)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as temporary:
            unpack(archive, Path(temporary) / folder.name)
            if not folder.is_dir():
                (Path(temporary) / folder.name).rename(folder)
    return folder


def _unpack_all(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")


def _unpack_plugin(archive: Path, folder: Path) -> None:
    _unpack_all(archive, folder)
    for jar in folder.rglob("*.jar"):
        if jar.name.startswith(OF_KAFKA_CONNECT):
            jar.unlink()


def _unpack_mysql(archive: Path, folder: Path) -> None:
    folder.mkdir()
    with ZipFile(archive) as jar, jar.open(MYSQL) as packed, (folder / MYSQL).open("wb") as file:
        shutil.copyfileobj(packed, file)
    _unpack_all(folder / MYSQL, folder)
    (folder / MYSQL).unlink()
