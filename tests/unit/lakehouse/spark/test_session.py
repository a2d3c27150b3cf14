"""Which settings a Spark session gets: on this machine, on a cluster, and under spark-submit."""

from __future__ import annotations

import socket

import pytest

from lakehouse.config import settings
from lakehouse.delta.tables import Warehouse
from lakehouse.errors import LakehouseError, SettingsError
from lakehouse.quality.data_docs import default_folder
from lakehouse.spark.session import spark_session
from lakehouse.spark.settings import Cluster, cluster, session_settings

MASTER = "spark://master-1:7077"
SECRET = "wJalrXUtnFEMI"  # noqa: S105 - of nobody
# What correctness needs, wherever Spark runs.
NEEDED = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.ansi.enabled": "true",
}
OF_ONE_MACHINE = {
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.ui.enabled",
    "spark.sql.shuffle.partitions",
    "spark.databricks.delta.snapshotPartitions",
}
VACUUM = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


@pytest.fixture(autouse=True)
def _not_on_databricks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)


@pytest.mark.parametrize("master", [None, "local", "local[4]", "local[*]", "local[2,3]"])
def test_on_this_machine_small_tasks_and_no_page_of_their_own(master: str | None) -> None:
    found = session_settings(Cluster(master), jars=["/a.jar", "/b.jar"])
    assert found.items() >= NEEDED.items()
    assert found.keys() >= OF_ONE_MACHINE
    assert found["spark.master"] == (master or "local[*]")
    assert found["spark.jars"] == "/a.jar,/b.jar"


@pytest.mark.parametrize(
    "master", [MASTER, "spark://a:1,b:2", "yarn", "k8s://https://api:6443", "local-cluster[2,1,900]"]
)
def test_on_a_cluster_what_is_for_one_machine_is_left_to_spark(master: str) -> None:
    found = session_settings(cluster(master=master), jars=["/a.jar"])
    assert found.items() >= NEEDED.items()
    assert not found.keys() & OF_ONE_MACHINE
    assert (found["spark.master"], found["spark.jars"], found[VACUUM]) == (master, "/a.jar", "32")


def test_settings_that_were_asked_for_go_before_ours_and_jars_and_java_options_beside_them() -> None:
    conf = {
        "spark.driver.memory": "8g",
        "spark.sql.shuffle.partitions": "64",
        "spark.jars": "/s3.jar",
        "spark.driver.extraJavaOptions": "-Dmine=1",
    }
    found = session_settings(Cluster(None, conf), jars=["/a.jar"], java_options=["-Xss4m"])
    assert found["spark.driver.memory"] == "8g"
    assert found["spark.sql.shuffle.partitions"] == "64"
    assert found["spark.jars"] == "/a.jar,/s3.jar"
    first, *others = found["spark.driver.extraJavaOptions"].split()
    assert first.startswith("-Dlog4j2.configurationFile=")
    assert others[-2:] == ["-Xss4m", "-Dmine=1"]


@pytest.mark.parametrize("theirs", ["-XX:+UseG1GC", "-Xss4m -XX:+UseSerialGC -Dmine=1", "-XX:+UseZGC"])
def test_another_garbage_collector_takes_the_place_of_ours(theirs: str) -> None:
    ours = session_settings(Cluster())["spark.driver.extraJavaOptions"]
    assert ours.split().count("-XX:+UseParallelGC") == 1
    asked_for = Cluster(None, {"spark.driver.extraJavaOptions": theirs})
    for found in (session_settings(asked_for), session_settings(Cluster(), java_options=[theirs])):
        options = found["spark.driver.extraJavaOptions"]
        assert "ParallelGC" not in options
        assert options.endswith(theirs)


def test_under_spark_submit_what_was_given_there_goes_before_ours() -> None:
    given = {"spark.master": MASTER, "spark.app.name": "mine", "spark.jars": "/theirs.jar", "spark.driver.memory": "1g"}
    given |= {"spark.sql.constraintPropagation.enabled": "true", "spark.sql.session.timeZone": "UTC"}
    found = session_settings(Cluster(), jars=["/a.jar"], submitted=given)
    assert found.items() >= {**NEEDED, **given}.items()
    assert not found.keys() & {*OF_ONE_MACHINE, "spark.driver.extraJavaOptions"}


def test_under_spark_submit_settings_of_the_command_go_before_those_given_there() -> None:
    given = {"spark.master": MASTER, "spark.sql.shuffle.partitions": "8", "spark.app.name": "__main__.py"}
    found = session_settings(Cluster(MASTER, {"spark.sql.shuffle.partitions": "16"}), submitted=given)
    assert found["spark.sql.shuffle.partitions"] == "16"
    assert found["spark.app.name"] == "orders-lakehouse"
    assert "spark.driver.memory" not in found


def test_spark_submit_on_one_machine_is_one_machine() -> None:
    found = session_settings(Cluster(), submitted={"spark.master": "local[2]", "spark.ui.enabled": "true"})
    assert found.keys() >= OF_ONE_MACHINE
    assert found["spark.ui.enabled"] == "true"


def test_two_masters_are_a_mistake() -> None:
    with pytest.raises(SettingsError, match=r"spark-submit has the master spark://.*Give it to spark-submit alone"):
        session_settings(Cluster("yarn"), submitted={"spark.master": MASTER})


def test_what_comes_too_late_is_said_without_its_value() -> None:
    with pytest.raises(SettingsError, match=r"spark\.driver\.memory, spark\.jars in --spark-conf: too late") as raised:
        conf = {"spark.jars": f"https://u:{SECRET}@host/a.jar", "spark.driver.memory": "3g"}
        session_settings(Cluster(None, conf), submitted={"spark.master": MASTER})
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("key", NEEDED)
def test_what_the_tables_need_cannot_be_another(key: str) -> None:
    for asked, submitted in (
        (Cluster(None, {key: "other"}), None),
        (Cluster(), {"spark.master": MASTER, key: "other"}),
    ):
        with pytest.raises(SettingsError, match=key) as raised:
            session_settings(asked, submitted=submitted)
        assert "other" not in str(raised.value)


def test_other_extensions_may_stand_beside_deltas() -> None:
    both = f"{NEEDED['spark.sql.extensions']}, com.example.Extension"
    found = session_settings(Cluster(None, {"spark.sql.extensions": both}))
    assert found["spark.sql.extensions"] == both


def test_of_one_key_the_last_value_counts_and_a_value_may_have_signs() -> None:
    given = ["spark.hadoop.fs.s3a.endpoint=http://h:1?a=b", "spark.executor.memory=1g", "spark.executor.memory=2g"]
    conf = cluster(master=None, spark_conf=given).settings
    assert conf == {"spark.hadoop.fs.s3a.endpoint": "http://h:1?a=b", "spark.executor.memory": "2g"}


@pytest.mark.parametrize(
    "wrong",
    [
        f"spark.hadoop.fs.s3a.secret.key:{SECRET}",
        f"fs.s3a.secret.key={SECRET}",
        f"{SECRET}=",
        f"spark.hadoop.fs.s3a.secret.key {SECRET}=",
        f"={SECRET}",
        SECRET,
    ],
)
def test_a_wrong_setting_is_refused_by_its_number(wrong: str) -> None:
    with pytest.raises(SettingsError, match=r"--spark-conf number 2 is not KEY=VALUE") as raised:
        cluster(master=None, spark_conf=["spark.executor.memory=1g", wrong])
    assert SECRET not in str(raised.value)


def test_values_are_not_shown() -> None:
    assert SECRET not in repr(cluster(master=None, spark_conf=[f"spark.hadoop.fs.s3a.secret.key={SECRET}"]))


@pytest.mark.parametrize("key", ["spark.master", "spark.submit.deployMode"])
def test_what_has_an_option_of_its_own_is_no_setting(key: str) -> None:
    with pytest.raises(SettingsError, match=f"{key} is not for --spark-conf"):
        cluster(master=None, spark_conf=[f"{key}=x"])


@pytest.mark.parametrize(
    "master", ["", "spark", "spark://host", "master-1:7077", "local[", "sc://host:15002", "k8s://"]
)
def test_what_is_no_master_is_refused(master: str) -> None:
    with pytest.raises(SettingsError, match=r"is no master of Spark\. Give spark://HOST:PORT"):
        cluster(master=master)


def test_on_databricks_there_is_nothing_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.0")
    assert cluster(master=None) == Cluster()
    with pytest.raises(SettingsError, match=r"--master has no meaning on Databricks"):
        cluster(master="local[*]")
    with pytest.raises(SettingsError, match=r"--spark-conf has no meaning on Databricks"):
        cluster(master=None, spark_conf=["spark.executor.memory=1g"])


def test_a_master_that_does_not_answer_is_said_before_spark_starts() -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(LakehouseError, match=f"No Spark master answers at {master}"):
            spark_session(Cluster(master))


@pytest.mark.parametrize("place", ["/data/lake", "file:/data/lake", "file:///data/lake"])
def test_data_docs_go_into_a_folder_however_it_is_written(place: str) -> None:
    chosen = settings(warehouse=place)
    folder = default_folder(Warehouse(None, chosen.warehouse, chosen.checkpoints))  # type: ignore[arg-type]
    assert str(folder) == "/data/lake/_data_docs"


@pytest.mark.parametrize("place", ["s3a://bucket/lake", "hdfs:///lake"])
def test_data_docs_have_no_folder_in_a_store_elsewhere(place: str) -> None:
    chosen = settings(warehouse=place)
    warehouse = Warehouse(None, chosen.warehouse, chosen.checkpoints)  # type: ignore[arg-type]
    assert default_folder(warehouse) is None
