"""The jars that a local Spark, or a server of the demo, needs: pinned in a manifest, fetched once into a cache.

Every jar is named by its coordinate and checked by its sha256 before it enters the cache. What is in the cache was
checked, so using it takes no Java, no network and no hashing. Imports without pyspark.

    python -m lakehouse.spark.jars [MANIFEST ...]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from xml.sax.saxutils import quoteattr

from pydantic import Field, StringConstraints

from lakehouse.contracts.files import read_document
from lakehouse.contracts.parts.base import Model
from lakehouse.errors import ContractError, InstallationError, LakehouseError
from lakehouse.process.terminal import PlainConsole

SPARK_MANIFEST = Path(__file__).with_name("jars.yaml")
MINIMUM_JAVA = 17

PART = r"[A-Za-z0-9._-]+"
Coordinate = Annotated[str, StringConstraints(pattern=rf"^{PART}:{PART}:{PART}(:{PART}@{PART})?$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Jar(Model):
    """One file of a Maven repository: its coordinate and what it must hold.

    The coordinate is `group:artifact:version`, or `group:artifact:version:classifier@extension` of another file than
    the jar itself.
    """

    coordinate: Coordinate
    sha256: Sha256

    @property
    def parts(self) -> tuple[str, str, str, str, str]:
        """Group, artifact, version, classifier (empty: none) and extension."""
        name, _, extension = self.coordinate.partition("@")
        group, artifact, version, *classifier = name.split(":")
        return group, artifact, version, "".join(classifier), extension or "jar"

    @property
    def file_name(self) -> str:
        """`artifact-version[-classifier].extension`, the name it has in every repository and in the cache."""
        _group, artifact, version, classifier, extension = self.parts
        return f"{artifact}-{version}{f'-{classifier}' if classifier else ''}.{extension}"


class Manifest(Model):
    """A `jars.yaml`."""

    jars: tuple[Jar, ...] = Field(min_length=1, strict=False)


Download = Callable[[Sequence[Jar], Path], None]


def load_manifest(path: Path) -> tuple[Jar, ...]:
    """The jars that the manifest at `path` names.

    Raises InstallationError when there is no such file, ContractError when it is not a manifest.
    """
    if not path.is_file():
        raise InstallationError(f"There is no manifest {path}.", hint="Give the path of a jars.yaml.")
    document = read_document(path, Manifest, name=str(path))
    if not isinstance(document.contract, Manifest):
        raise ContractError(document.problems)
    return document.contract.jars


def cache_dir() -> Path:
    """Where jars are kept: `jars/` in $LAKEHOUSE_CACHE, else in orders-lakehouse of the user's cache directory."""
    own = os.environ.get("LAKEHOUSE_CACHE")
    if own:
        return Path(own).absolute() / "jars"
    users = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(users).absolute() / "orders-lakehouse" / "jars"


def jar_paths(jars: Iterable[Jar], *, hint: str = "Run `lakehouse jars`.") -> tuple[Path, ...]:
    """The cached file of every jar, in their order. Raises InstallationError when one is not in the cache."""
    cache = cache_dir()
    paths = tuple(cache / jar.file_name for jar in jars)
    for path in paths:
        if not path.is_file():
            raise InstallationError(f"The jar {path.name} is not in {cache}.", hint=hint)
    return paths


def spark_jars() -> tuple[Path, ...]:
    """The cached jars of a local Spark session. Raises InstallationError when one is not in the cache."""
    return jar_paths(load_manifest(SPARK_MANIFEST))


def java() -> Path:
    """The Java that Spark takes too: of JAVA_HOME if that is set, else the first on PATH.

    Raises InstallationError when there is none, or when it is older than 17.
    """
    hint = f"Install Java {MINIMUM_JAVA} (Debian: `apt-get install openjdk-17-jre-headless`) or set JAVA_HOME to it."
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(Path(home) / "bin" / "java" if home else "java")
    if found is None:
        raise InstallationError(f"There is no Java {'in JAVA_HOME, ' + home if home else 'on PATH'}.", hint=hint)
    answer = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(\d+)', answer.stderr)
    if version is None or int(version[1]) < MINIMUM_JAVA:
        raise InstallationError(f"{found} is not Java {MINIMUM_JAVA} or newer.", hint=hint)
    return Path(found)


def missing(jars: Iterable[Jar]) -> tuple[Jar, ...]:
    """Those of the jars that are not in the cache, each once."""
    cache = cache_dir()
    return tuple(dict.fromkeys(jar for jar in jars if not (cache / jar.file_name).is_file()))


def fetch(jars: Iterable[Jar], *, download: Download | None = None) -> tuple[Jar, ...]:
    """Bring into the cache what it lacks; returns what was brought. Nothing missing: no Java and no network.

    A jar enters the cache whole and checked, or not at all. `download` puts files into a folder; left out, Ivy does.
    Raises InstallationError when a download fails or when a checksum is not the one of the manifest.
    """
    wanted = missing(jars)
    if not wanted:
        return ()
    cache = cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache.parent, prefix="jars-") as folder:
        (download or download_with_ivy)(wanted, Path(folder))
        for jar in wanted:
            _check(jar, Path(folder) / jar.file_name)
        for jar in wanted:
            (Path(folder) / jar.file_name).replace(cache / jar.file_name)
    return wanted


def _check(jar: Jar, file: Path) -> None:
    if not file.is_file():
        raise InstallationError(f"{jar.coordinate} was not downloaded.", hint="Check it in the manifest and try again.")
    actual = hashlib.sha256(file.read_bytes()).hexdigest()
    if actual != jar.sha256:
        raise InstallationError(
            f"{jar.coordinate} has the wrong sha256: expected {jar.sha256}, got {actual}. Nothing was kept.",
            hint="Do not use it: find out what is between here and the repository, or fix the manifest.",
        )


def download_with_ivy(jars: Sequence[Jar], folder: Path) -> None:
    """Put each jar into `folder`, with the Ivy that pyspark ships and from Ivy's default repository.

    A mirror, a proxy or a company's certificates: Java takes them from JAVA_TOOL_OPTIONS.
    Raises InstallationError when pyspark or Java is missing, or when a jar cannot be had.
    """
    ivy = _ivy_jar()
    (folder / "ivy.xml").write_text(_ivy_module(jars), encoding="utf-8")
    (folder / "settings.xml").write_text(_ivy_settings(folder / "ivy"), encoding="utf-8")
    command = [str(java()), "-XX:TieredStopAtLevel=1", "-cp", str(ivy), "org.apache.ivy.Main", "-warn"]
    command += ["-settings", str(folder / "settings.xml"), "-ivy", str(folder / "ivy.xml"), "-confs", "default"]
    command += ["-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    lost = [jar.coordinate for jar in jars if not (folder / jar.file_name).is_file()]
    if run.returncode or lost:
        log = cache_dir().parent / "ivy.log"
        log.write_text(run.stdout, encoding="utf-8")
        raise InstallationError(
            f"Ivy could not download {', '.join(lost) or 'the jars'}; {log} says why.",
            hint="Check the network, or its proxy in JAVA_TOOL_OPTIONS, and try again.",
        )


def _ivy_jar() -> Path:
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise InstallationError("pyspark is not installed.", hint="Install orders-lakehouse[local].")
    return next(Path(pyspark.origin).parent.glob("jars/ivy-*.jar"))


def _ivy_module(jars: Iterable[Jar]) -> str:
    """What to download: exactly these files, nothing that they depend on."""
    lines = []
    for jar in jars:
        group, artifact, version, classifier, extension = (quoteattr(part) for part in jar.parts)
        of_class = f"m:classifier={classifier} " if jar.parts[3] else ""
        lines.append(
            f'<dependency org={group} name={artifact} rev={version} transitive="false" conf="default">'
            f"<artifact name={artifact} {of_class}type={extension} ext={extension}/></dependency>"
        )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="lakehouse" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )


def _ivy_settings(cache: Path) -> str:
    """Ivy's default repository, without its POMs: the manifest has said it all. One jar may come in two versions."""
    return (
        '<ivysettings><settings defaultResolver="default" defaultConflictManager="all"/>'
        f"<caches defaultCacheDir={quoteattr(str(cache))}/>"
        '<resolvers><ibiblio name="default" m2compatible="true" usepoms="false"/></resolvers></ivysettings>'
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch what the manifests name and say what was fetched. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m lakehouse.spark.jars", description="Fetch pinned jars.")
    parser.add_argument("manifests", nargs="*", type=Path, metavar="MANIFEST", help="default: those of a local Spark")
    manifests = parser.parse_args(argv).manifests or [SPARK_MANIFEST]
    try:
        fetched = fetch(jar for manifest in manifests for jar in load_manifest(manifest))
    except LakehouseError as error:
        PlainConsole(stderr=True).print(str(error), soft_wrap=True)
        return error.exit_code
    if fetched:
        PlainConsole().print(f"Fetched {len(fetched)} jars into {cache_dir()}.", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
