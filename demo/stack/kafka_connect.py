"""Kafka Connect in distributed mode, one worker, with Debezium's connectors and an Avro converter as its plugins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from connectors.rest import Worker, worker_at
from demo.processes import HOST, Server, free_ports, last_lines, text_of
from demo.stack.unpacked import converter_jars, plugin_folders
from lakehouse.errors import ConnectError, InstallationError
from lakehouse.spark.jars import jar_paths, java, load_manifest

HERE = Path(__file__).parent
START_SECONDS = 90.0
STOP_SECONDS = 20.0
JVM_OPTIONS = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
INTERNAL_TOPICS = ("config", "offset", "status")


class KafkaConnect:
    """A worker and its folder. `environment`: the variables that connectors name by `${env:…}`."""

    def __init__(self, home: Path, bootstrap_servers: str, environment: Mapping[str, str]) -> None:
        self._home = home
        self._bootstrap_servers = bootstrap_servers
        self._environment = dict(environment)
        (self._port,) = free_ports(1)
        self._server: Server | None = None
        home.mkdir()

    @property
    def url(self) -> str:
        """Where its REST API answers."""
        return f"http://{HOST}:{self._port}"

    @property
    def worker(self) -> Worker:
        """The client of its REST API."""
        return worker_at(self.url)

    @property
    def log(self) -> Path:
        """What it writes."""
        return self._home / "connect.log"

    def start(self) -> None:
        """Start the worker; `wait` says when it answers. The second time it goes on where it was."""
        if self._server is not None:
            raise RuntimeError("This worker runs already.")
        settings = self._home / "connect.properties"
        settings.write_text(self._properties(), encoding="utf-8")
        self.log.unlink(missing_ok=True)
        jars = jar_paths(load_manifest(HERE / "connect.yaml"), remedy="Run `make setup-live`.")
        log4j = f"-Dlog4j2.configurationFile={HERE.parent / 'log4j2.properties'}"
        command = [str(java()), *JVM_OPTIONS, log4j, "-cp", os.pathsep.join(str(jar) for jar in jars)]
        command += ["org.apache.kafka.connect.cli.ConnectDistributed", str(settings)]
        self._server = Server(command, log=self.log, environment=self._environment)

    def wait(self) -> None:
        """Wait until it answers. Raises InstallationError with the end of its log when it does not."""
        if self._server is None or not self._server.answers(self._is_there, seconds=START_SECONDS):
            raise InstallationError(
                f"Kafka Connect does not answer. The end of its log:\n{last_lines(text_of(self.log))}\n",
                remedy="Look there for the reason.",
            )

    def stop(self) -> None:
        """Stop it. Nothing when it does not run."""
        if self._server is not None:
            self._server.stop(seconds=STOP_SECONDS)
            self._server = None

    def kill(self) -> None:
        """End it as a crash of the machine would."""
        if self._server is not None:
            self._server.kill()
            self._server = None

    def _is_there(self) -> bool:
        try:
            self.worker.names()
        except ConnectError:
            return False
        return True

    def _properties(self) -> str:
        topics = [f"{kind}.storage.topic=connect-{kind}s" for kind in INTERNAL_TOPICS]
        replication = [f"{kind}.storage.replication.factor=1" for kind in INTERNAL_TOPICS]
        plugins = [*plugin_folders(), self._converter()]
        own = [
            f"bootstrap.servers={self._bootstrap_servers}",
            f"listeners={self.url}",
            f"plugin.path={','.join(str(folder) for folder in plugins)}",
        ]
        fixed = (HERE / "connect.properties").read_text(encoding="utf-8")
        return "\n".join([fixed, *own, *topics, *replication, ""])

    def _converter(self) -> Path:
        """The folder of the Avro converter as `plugin.path` wants it: one folder in it, with links to its jars."""
        folder = self._home / "plugins" / "avro-converter"
        folder.mkdir(parents=True, exist_ok=True)
        for jar in converter_jars():
            link = folder / jar.name
            if not link.exists():
                link.symlink_to(jar)
        return folder.parent
