"""A real Kafka broker for the demo and the tests: one node, its own process, loopback only, gone with its parent.

    with embedded_broker() as bootstrap_servers:
        ...

Start it in the main thread, or in one that outlives the block: Linux kills it with the thread that started it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import NoReturn
from uuid import uuid4

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from demo.processes import HOST, Server, free_ports, last_lines, text_of
from lakehouse.errors import KafkaError
from lakehouse.kafka.broker import client_config
from lakehouse.kafka.connection import KafkaConnection
from lakehouse.spark.jars import jar_paths, java, load_manifest

HERE = Path(__file__).parent
START_SECONDS = 60.0
STOP_SECONDS = 15.0
ATTEMPTS = 5
# Started often and for minutes: the quick compiler only, no file of performance counters.
JVM_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


@dataclass(frozen=True)
class Listener:
    """How clients reach a broker: the protocol, the broker's further settings, and a client's to log in."""

    protocol: str = "PLAINTEXT"
    properties: tuple[str, ...] = ()
    client: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def embedded_broker(directory: Path | None = None) -> Iterator[str]:
    """A running, empty broker: yields its `127.0.0.1:PORT`, and has stopped when the block is left in any way.

    Its data, settings and log are in `directory`, made for it and kept; without one, in a folder that is removed.
    TERM leaves the block as Ctrl-C does, unless this process handles TERM itself; on Linux even a KILL of this
    process takes the broker along. Raises InstallationError without Java or the jars, and KafkaError when the broker
    does not answer within 60 s.
    """
    with restartable_broker(directory) as broker:
        yield broker.bootstrap_servers


@contextmanager
def restartable_broker(directory: Path | None = None, *, listener: Listener | None = None) -> Iterator[Broker]:
    """As `embedded_broker`, but yields the broker itself, which can be stopped and started again inside the block."""
    with ExitStack() as stack:
        stack.enter_context(_term_as_interrupt())
        home = (directory or Path(stack.enter_context(TemporaryDirectory(prefix="kafka-")))).absolute()
        home.mkdir(parents=True, exist_ok=True)
        broker = Broker(home, listener or Listener())
        stack.callback(broker.kill)
        stack.callback(broker.stop)  # before the kill
        broker.start()
        yield broker


class Broker:
    """A broker and its folder: stopped and started again, it has the same address and the same data."""

    def __init__(self, home: Path, listener: Listener) -> None:
        self._home = home
        self._listener = listener
        self._java_command = _java_command()
        self._cluster_id = _new_cluster_id()
        self._ports: tuple[int, ...] | None = None
        self._process: Server | None = None
        _format(home, self._java_command, self._cluster_id)

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:PORT`, once it was started."""
        if self._ports is None:
            raise RuntimeError("This broker was never started.")
        return f"{HOST}:{self._ports[0]}"

    def start(self) -> None:
        """Start it and wait until it answers; first on free ports, later on the same. Raises KafkaError.

        When something was quicker and took one of the free ports, it takes others.
        """
        if self._process is not None:
            raise RuntimeError("This broker runs already.")
        offers = [self._ports] if self._ports else [None] * ATTEMPTS
        for offer in offers:
            ports = offer or free_ports(2)
            _write_properties(self._home, self._listener, port=ports[0], controller_port=ports[1])
            self._process = _start(self._home, self._java_command)
            if self._process.answers(partial(self._is_at, ports[0]), seconds=START_SECONDS):
                self._ports = ports
                return
            self.stop()
            if "Address already in use" not in text_of(_log(self._home)):
                break
        raise KafkaError(
            f"The embedded broker does not answer. The end of its log:\n{last_lines(text_of(_log(self._home)))}\n",
            hint="Look there for the reason; it needs 512 MB of memory and a writable folder.",
        )

    def stop(self) -> None:
        """Ask it to end and wait until it has; after 15 s, end it. Nothing when it does not run."""
        if self._process is not None:
            self._process.stop(seconds=STOP_SECONDS)
            self._process = None

    def kill(self) -> None:
        """End it as a crash of the machine would, and wait until it has ended. Nothing when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def pause(self) -> None:
        """Let it stand still: its port is open, and it answers nothing."""
        if self._process is not None:
            self._process.pause()

    def resume(self) -> None:
        """Let it go on."""
        if self._process is not None:
            self._process.resume()

    def wipe(self) -> None:
        """Delete all topics of a broker that has ended; the next start is a new cluster at the same address."""
        if self._process is not None:
            raise RuntimeError("This broker runs.")
        shutil.rmtree(self._home / "data")
        self._cluster_id = _new_cluster_id()
        _format(self._home, self._java_command, self._cluster_id)

    def _is_at(self, port: int) -> bool:
        """Whether this broker, and nobody else, answers at that port."""
        return _cluster_at(port, self._listener) == self._cluster_id


@contextmanager
def _term_as_interrupt() -> Iterator[None]:
    """Inside, TERM raises KeyboardInterrupt; unless somebody handles TERM already, or this is not the main thread."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _java_command() -> list[str]:
    jars = jar_paths(load_manifest(HERE / "jars.yaml"), hint="Run `make setup`.")
    class_path = os.pathsep.join(str(jar) for jar in jars)
    log4j = f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"
    return [str(java()), *JVM_OPTIONS, log4j, "-cp", class_path]


def _new_cluster_id() -> str:
    """A random id as Kafka writes them: 16 bytes in URL-safe base64, without padding."""
    return urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")


def _format(home: Path, java_command: list[str], cluster_id: str) -> None:
    """Have Kafka's own tool prepare the data folder. It looks at no port, so any two will do."""
    _write_properties(home, Listener(), port=1, controller_port=2)
    tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", f"--config={home / 'server.properties'}"]
    run = subprocess.run([*java_command, *tool], capture_output=True, text=True, check=False)
    if run.returncode:
        raise KafkaError(
            f"Kafka cannot format {home}:\n{last_lines(run.stdout + run.stderr)}\n",
            hint="Fix what it says; the folder must be empty and writable.",
        )


def _write_properties(home: Path, listener: Listener, *, port: int, controller_port: int) -> None:
    own = [
        f"listeners={listener.protocol}://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        f"advertised.listeners={listener.protocol}://{HOST}:{port}",
        f"listener.security.protocol.map={listener.protocol}:{listener.protocol},CONTROLLER:PLAINTEXT",
        f"security.inter.broker.protocol={listener.protocol}",
        f"controller.quorum.voters=1@{HOST}:{controller_port}",
        f"log.dirs={home / 'data'}",
        *listener.properties,
    ]
    fixed = (HERE / "broker.properties").read_text(encoding="utf-8")
    (home / "server.properties").write_text("\n".join([fixed, *own, ""]), encoding="utf-8")


def _log(home: Path) -> Path:
    return home / "server.log"


def _start(home: Path, java_command: list[str]) -> Server:
    _log(home).unlink(missing_ok=True)
    return Server([*java_command, "kafka.Kafka", str(home / "server.properties")], log=_log(home))


def _cluster_at(port: int, listener: Listener) -> str | None:
    """The id of the cluster that answers on a port of this machine, if one does."""
    with suppress(OSError, KafkaException):
        socket.create_connection((HOST, port), timeout=1).close()
        config = {
            **client_config(KafkaConnection(bootstrap_servers=f"{HOST}:{port}")),
            "security.protocol": listener.protocol,
            **listener.client,
        }
        return AdminClient(config).list_topics(timeout=5).cluster_id
    return None
