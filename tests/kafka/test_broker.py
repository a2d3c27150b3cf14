"""The embedded broker: it serves, and it never outlives the block or the process that started it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic, ResourceType

from demo import broker
from demo.broker import embedded_broker, restartable_broker
from demo.processes import free_ports
from lakehouse.errors import KafkaError
from tests.support.brokers import READER, READER_PASSWORD, SecuredBroker, plain_config

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).parents[2]

# A program that holds a broker until somebody ends it. Shells start background jobs with INT ignored: undo that.
HOLDER = """
import signal, sys, time
from pathlib import Path
from demo.broker import embedded_broker, restartable_broker

signal.signal(signal.SIGINT, signal.default_int_handler)
with embedded_broker(Path(sys.argv[1])):
    print("running", flush=True)
    time.sleep(600)
"""


def java_processes(home: Path) -> list[int]:
    """The processes whose command line names this broker's folder."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = (process / "cmdline").read_bytes()
            except OSError:  # it has just ended
                continue
            if b"kafka.Kafka" in command and os.fsencode(home) in command:
                found.append(int(process.name))
    return found


def test_it_serves_ordinary_compacted_and_transactional_records(bootstrap_servers: str) -> None:
    admin = AdminClient(plain_config(bootstrap_servers))
    topic = NewTopic("served", num_partitions=2, replication_factor=1, config={"cleanup.policy": "compact"})
    admin.create_topics([topic])["served"].result()
    producer = Producer({**plain_config(bootstrap_servers), "transactional.id": "writer"})
    producer.init_transactions()
    for value, end in ((b"kept", producer.commit_transaction), (b"dropped", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce("served", key=b"k", value=value, partition=1)
        producer.flush()
        end()
    settings = {"group.id": "readers", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = Consumer({**plain_config(bootstrap_servers), **settings})
    consumer.subscribe(["served"])
    message = consumer.poll(30)
    assert message is not None
    assert (message.key(), message.value(), message.partition()) == (b"k", b"kept", 1)
    assert consumer.poll(1) is None
    consumer.close()
    admin.delete_topics(["served"])["served"].result()


def test_a_topic_nobody_created_does_not_appear(bootstrap_servers: str) -> None:
    admin = AdminClient(plain_config(bootstrap_servers))
    admin.list_topics("never-created", timeout=10)
    assert "never-created" not in admin.list_topics(timeout=10).topics


@pytest.mark.slow
def test_it_stops_with_the_block_and_keeps_the_folder_it_was_given(tmp_path: Path) -> None:
    with embedded_broker(tmp_path / "home") as servers:
        assert servers.startswith("127.0.0.1:")
        assert len(java_processes(tmp_path)) == 1
    assert java_processes(tmp_path) == []
    assert "Kafka Server started" in (tmp_path / "home" / "server.log").read_text()


@pytest.mark.slow
def test_it_stops_when_the_block_fails_and_removes_its_own_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ZeroDivisionError), embedded_broker():
        assert len(java_processes(tmp_path)) == 1
        raise ZeroDivisionError
    assert java_processes(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_its_parent(ending: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"running\n"
        assert len(java_processes(tmp_path)) == 1
        parent.send_signal(ending)
        assert parent.wait(20) != 0
    deadline = time.monotonic() + 5
    while java_processes(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert java_processes(tmp_path) == []


@pytest.mark.slow
def test_it_takes_other_ports_when_something_was_quicker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        offers = iter([(taken.getsockname()[1], *free_ports(1)), free_ports(2)])
        monkeypatch.setattr(broker, "free_ports", lambda _count: next(offers))
        with embedded_broker(tmp_path) as servers:
            assert not servers.endswith(f":{taken.getsockname()[1]}")


@pytest.mark.slow
def test_a_broker_that_does_not_start_shows_the_end_of_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "_format", lambda *_: None)
    with pytest.raises(KafkaError, match=r"(?s)does not answer.*meta\.properties"), embedded_broker(tmp_path):
        pass
    assert java_processes(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_it_starts_again_at_the_same_address_with_the_same_data(end: str, tmp_path: Path) -> None:
    with restartable_broker(tmp_path) as running:
        address = running.bootstrap_servers
        admin = AdminClient(plain_config(address))
        admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result()
        producer = Producer({**plain_config(address), "acks": "all"})
        producer.produce("kept", value=b"before")
        assert producer.flush(20) == 0
        getattr(running, end)()
        assert java_processes(tmp_path) == []
        running.start()
        assert running.bootstrap_servers == address
        assert len(java_processes(tmp_path)) == 1
        consumer = Consumer({**plain_config(address), "group.id": "readers", "auto.offset.reset": "earliest"})
        consumer.subscribe(["kept"])
        message = consumer.poll(30)
        consumer.close()
        assert message is not None
        assert message.value() == b"before"
        with pytest.raises(RuntimeError, match="runs already"):
            running.start()
    assert java_processes(tmp_path) == []


@pytest.mark.slow
def test_a_broker_that_is_stopped_may_stay_so(tmp_path: Path) -> None:
    with restartable_broker(tmp_path) as running:
        running.kill()
        running.stop()
    assert java_processes(tmp_path) == []


@pytest.mark.slow
def test_one_that_was_started_again_ends_with_its_parent_too(tmp_path: Path) -> None:
    program = HOLDER.replace("embedded_broker", "restartable_broker").replace("])):", "])) as broker:")
    program = program.replace("    print(", "    broker.kill()\n    broker.start()\n    print(")
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"running\n"
        parent.kill()
    deadline = time.monotonic() + 5
    while java_processes(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert java_processes(tmp_path) == []


def _wait_until_known(admin: AdminClient, topic: str) -> None:
    """A topic is known to clients a moment after the controller has made it."""
    deadline = time.monotonic() + 30
    while topic not in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_the_secured_broker_asks_who_and_lets_do_what_was_granted(secured: SecuredBroker) -> None:
    admin = secured.admin()
    admin.create_topics([NewTopic("guarded", 1, 1)])["guarded"].result()
    _wait_until_known(admin, "guarded")
    as_reader = {"sasl.username": READER, "sasl.password": READER_PASSWORD}
    config = {**plain_config(secured.bootstrap_servers), **secured.admin_config()}
    reader = AdminClient({**config, **as_reader})
    assert "guarded" not in reader.list_topics(timeout=10).topics
    with pytest.raises(KafkaException) as refused:
        reader.describe_topics(TopicCollection(["guarded"]))["guarded"].result()
    assert refused.value.args[0].code() == ClientError.TOPIC_AUTHORIZATION_FAILED
    secured.grant(ResourceType.TOPIC, "guarded", AclOperation.DESCRIBE)
    assert "guarded" in reader.list_topics(timeout=10).topics
    with pytest.raises(KafkaException):
        AdminClient({**config, **as_reader, "sasl.password": "wrong"}).list_topics(timeout=3)
