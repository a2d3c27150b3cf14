"""Kafka Connect in distributed mode, one worker, with Debezium's connectors and an Avro converter as its plugins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from connectors.rest import Worker, worker_at
from demo.processes import HOST, free_ports
from demo.stack.service import Service
from demo.stack.unpacked import converter_jars, plugin_folders
from lakehouse.errors import ConnectError
from lakehouse.spark.jars import jar_paths, java, load_manifest

HERE = Path(__file__).parent
JVM_OPTIONS = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
INTERNAL_TOPICS = ("config", "offset", "status")


class KafkaConnect(Service):
    """A worker and its folder. `environment`: the variables that connectors name by `${env:…}`."""

    called = "Kafka Connect"
    start_seconds = 90.0
    stop_seconds = 20.0

    def __init__(self, home: Path, bootstrap_servers: str, environment: Mapping[str, str]) -> None:
        super().__init__(home, log="connect.log")
        self._bootstrap_servers = bootstrap_servers
        self._environment = dict(environment)
        (self._port,) = free_ports(1)

    @property
    def url(self) -> str:
        """Where its REST API answers."""
        return f"http://{HOST}:{self._port}"

    @property
    def worker(self) -> Worker:
        """The client of its REST API."""
        return worker_at(self.url)

    def start(self) -> None:
        """Start the worker; `wait` says when it answers. The second time it goes on where it was."""
        settings = self._home / "connect.properties"
        settings.write_text(self._properties(), encoding="utf-8")
        jars = jar_paths(load_manifest(HERE / "connect.yaml"), hint="Run `make setup-live`.")
        log4j = f"-Dlog4j2.configurationFile={HERE.parent / 'log4j2.properties'}"
        command = [str(java()), *JVM_OPTIONS, log4j, "-cp", os.pathsep.join(str(jar) for jar in jars)]
        command += ["org.apache.kafka.connect.cli.ConnectDistributed", str(settings)]
        self._run(command, environment=self._environment)

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
