"""Eight kinds of DDL on real servers under writes, each with each policy: silver equals the source, or says why not.

A table for each kind and policy in one database, which a rule of each policy makes. All of it by the command. Ten
minutes on two cores, so it is run with the whole recordings, not with the other live tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from demo.stack.database import Database
from demo.stack.stack import Stack
from tests.live.test_avro import SECONDS, is_dropped
from tests.live.test_database import Jobs, measured
from tests.support.live.command import Command, Ended
from tests.support.live.connectors import Config
from tests.support.live.told import until
from tests.support.live.whole_database import Texts, in_order, silver_texts, source_texts, tables, wait_for_records

pytestmark = [pytest.mark.spark, pytest.mark.whole]

NAMESPACE = "shifting"
POLICIES = ("evolve", "suspend", "quarantine")
COLUMNS = (
    "id BIGINT NOT NULL, line BIGINT NOT NULL, name VARCHAR(50), amount INT, large BIGINT, touched INT,"
    " PRIMARY KEY (id)"
)
BEFORE = ("(1, 1, '11', 5, 6, 0)", "(2, 1, NULL, NULL, NULL, 0)")
# Of each kind its DDL, of PostgreSQL and of MySQL, and a row that only the table after it can have.
KINDS: Mapping[str, tuple[str, ...]] = {
    "add": (*["ADD COLUMN extra VARCHAR(20)"] * 2, "(3, 1, '33', 5, 6, 0, 'new')"),
    "add_default": (*["ADD COLUMN extra INT NOT NULL DEFAULT 7"] * 2, "(3, 1, '33', 5, 6, 0, 8)"),
    "widen": ("ALTER COLUMN amount TYPE BIGINT", "MODIFY amount BIGINT", "(3, 1, '33', 5000000000, 6, 0)"),
    "narrow": ("ALTER COLUMN large TYPE INT", "MODIFY large INT", "(3, 1, '33', 5, 7, 0)"),
    "drop": (*["DROP COLUMN name"] * 2, "(3, 1, 5, 6, 0)"),
    "rename": (*["RENAME COLUMN name TO called"] * 2, "(3, 1, '33', 5, 6, 0)"),
    "retype": ("ALTER COLUMN name TYPE INT USING name::int", "MODIFY name INT", "(3, 1, 33, 5, 6, 0)"),
    "key": (
        "DROP CONSTRAINT {table}_pkey, ADD PRIMARY KEY (id, line)",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (id, line)",
        "(1, 2, '12', 5, 6, 0)",
    ),
}
TABLES = {f"{kind}_{policy}": (kind, policy) for kind in KINDS for policy in POLICIES}


@dataclass(frozen=True)
class Server:
    """A database server, and the connector that reads these tables of it."""

    kind: str
    packaged: str
    own: Config

    def database(self, stack: Stack) -> Database:
        return stack.postgresql if self.kind == "postgresql" else stack.mysql

    @property
    def name(self) -> str:
        """Of its connector, and of its topics."""
        return f"{NAMESPACE}_{self.kind}"

    def config(self, packaged: Mapping[str, Config]) -> dict[str, str]:
        with_schemas = {f"{part}.converter.schemas.enable": "true" for part in ("key", "value")}
        own = {"topic.prefix": self.name, "table.include.list": rf"{NAMESPACE}\..*", **with_schemas, **self.own}
        return {**packaged[self.packaged], **own}

    def create(self, database: Database) -> None:
        word = "SCHEMA" if self.kind == "postgresql" else "DATABASE"
        database.execute(
            f"CREATE {word} {NAMESPACE}",
            *[f"CREATE TABLE {NAMESPACE}.{table} ({COLUMNS})" for table in TABLES],
            *[f"INSERT INTO {NAMESPACE}.{table} VALUES {', '.join(BEFORE)}" for table in TABLES],
        )
        if self.kind == "postgresql":
            database.execute(
                f"GRANT USAGE ON SCHEMA {NAMESPACE} TO debezium_user",
                f"GRANT SELECT ON ALL TABLES IN SCHEMA {NAMESPACE} TO debezium_user",
                f"CREATE PUBLICATION {NAMESPACE} FOR TABLES IN SCHEMA {NAMESPACE}",
            )
        else:
            database.execute(f"GRANT SELECT, LOCK TABLES ON {NAMESPACE}.* TO 'debezium_user'@'%'")

    def write(self, database: Database) -> None:
        """A change of each table as it was.

        Of PostgreSQL the connector asks the database for the key when it reads a change, not as it was then: what was
        written before the DDL is read before it.
        """
        database.execute(*[f"UPDATE {NAMESPACE}.{table} SET touched = 1 WHERE id = 1" for table in TABLES])

    def shift(self, database: Database) -> None:
        """The DDL, and writes to every row, table by table."""
        for table, (kind, _policy) in TABLES.items():
            of_postgresql, of_mysql, row = KINDS[kind]
            ddl = (of_postgresql if self.kind == "postgresql" else of_mysql).replace("{table}", table)
            name = f"{NAMESPACE}.{table}"
            database.execute(
                f"ALTER TABLE {name} {ddl}",
                f"UPDATE {name} SET touched = 2",
                f"INSERT INTO {name} VALUES {row}",
            )

    def drop(self, database: Database) -> None:
        if self.kind == "postgresql":
            database.execute(f"DROP PUBLICATION {NAMESPACE}", f"DROP SCHEMA {NAMESPACE} CASCADE")
        else:
            database.execute(f"DROP DATABASE {NAMESPACE}")


SERVERS = {
    "postgresql": Server(
        "postgresql", "postgres-tables-connector", {"slot.name": NAMESPACE, "publication.name": NAMESPACE}
    ),
    "mysql": Server(
        "mysql",
        "mysql-tables-connector",
        {
            "database.include.list": NAMESPACE,
            "database.server.id": "196001",
            "schema.history.internal.kafka.topic": f"schema-changes.{NAMESPACE}",
        },
    ),
}
# Of a table's topic: two rows, and an update, two updates and an insert.
ROWS, MORE = 2, 4


@dataclass
class Shifted:
    """Both databases after the DDL, silver after the run that has read it, and how that run ended."""

    jobs: Jobs
    ended: Ended
    before: dict[tuple[str, str], Texts] = field(default_factory=dict)

    def silver(self, server: str, table: str) -> Texts:
        return silver_texts(self.jobs.warehouse, f"silver.{server}_{table}")

    def source(self, server: str, table: str, *columns: str) -> Texts:
        database = SERVERS[server].database(self.jobs.stack)
        return source_texts(database, f"SELECT {', '.join(columns) or '*'} FROM {NAMESPACE}.{table}")

    def require_equal(self, server: str, table: str) -> None:
        """Silver has the source's columns as they are, and may have one that is gone beside them."""
        wanted = self.source(server, table)
        names = {*wanted[0]}
        found = in_order({name: row.get(name) for name in row if name in names} for row in self.silver(server, table))
        assert found == wanted, (server, table)

    @property
    def suspended(self) -> set[str]:
        return {
            name
            for name in (f"{server}_{table}" for server in SERVERS for table in TABLES)
            if _is_said(name, self.ended)
        }


def _is_said(name: str, ended: Ended) -> bool:
    return f"silver.{name} is suspended: " in ended.out + ended.err


@pytest.fixture(scope="module")
def shifted(
    stack: Stack, command: Command, packaged_connectors: Mapping[str, Config], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shifted]:
    """Two runs: of the tables as they were, and of what came with the DDL."""
    jobs, worker = Jobs(command, stack, tmp_path_factory.mktemp(NAMESPACE)), stack.connect.worker
    is_of = frozenset(f"{of.name}.{NAMESPACE}.{table}" for of in SERVERS.values() for table in TABLES).__contains__
    tables_of_both = len(TABLES) * len(SERVERS)
    jobs.declare(bronze={"sources": {name: _source(of) for name, of in SERVERS.items()}})
    for of in SERVERS.values():
        of.create(of.database(stack))
        worker.put_config(of.name, of.config(packaged_connectors))
    try:
        wait_for_records(stack, is_of, ROWS * tables_of_both)
        with measured("48 tables: first run"):
            assert jobs.run().code == 0
        for of in SERVERS.values():
            of.write(of.database(stack))
        wait_for_records(stack, is_of, (ROWS + 1) * tables_of_both)
        for of in SERVERS.values():
            of.shift(of.database(stack))
        wait_for_records(stack, is_of, (ROWS + MORE) * tables_of_both)
        with measured("48 tables: after the DDL"):
            ended = jobs.run()
        yield Shifted(jobs, ended)
    finally:
        for of in SERVERS.values():
            worker.delete(of.name)
            if of.kind == "postgresql":
                until(lambda: is_dropped(stack.postgresql, NAMESPACE), SECONDS)
            of.drop(of.database(stack))


def _source(of: Server) -> Mapping[str, Any]:
    kinds = ("add", "widen", "narrow", "drop", "rename", "retype", "key")
    rules = {
        policy: {
            "include": [rf"{of.name}\.{NAMESPACE}\..*_{policy}"],
            "name": f"{of.kind}_{{table}}",
            "on_schema_change": {kind: policy for kind in kinds if (kind, policy) != ("key", "evolve")},
        }
        for policy in POLICIES
    }
    return {"kind": of.kind, "by_rule": rules, "ignored_topics": [of.name, f"__debezium-heartbeat.{of.name}"]}


# What was there before the DDL, with the update before it.
AS_BEFORE = in_order(
    [
        {"id": 1, "line": 1, "name": "11", "amount": 5, "large": 6, "touched": 1},
        {"id": 2, "line": 1, "name": None, "amount": None, "large": None, "touched": 0},
    ]
)
FIRST_ROWS = in_order([{**dict(row), "touched": "0"} for row in AS_BEFORE])


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_ddl_goes_as_its_policy_says(shifted: Shifted, server: str, kind: str) -> None:
    assert shifted.ended.code == 3, shifted.ended.err
    waits = {f"{server}_{kind}_suspend"} | ({f"{server}_key_evolve"} if kind == "key" else set())
    assert shifted.suspended & {f"{server}_{kind}_{policy}" for policy in POLICIES} == waits
    if kind != "key":
        shifted.require_equal(server, f"{kind}_evolve")
    # Suspended with all of the batch, the update before the DDL too.
    assert shifted.silver(server, f"{kind}_suspend") == FIRST_ROWS
    assert shifted.silver(server, f"{kind}_quarantine") == AS_BEFORE
    rows = tables(shifted.jobs.warehouse).rows("SELECT feed FROM {quality.quarantine} WHERE state = 'open'")
    assert [row["feed"] for row in rows].count(f"{server}_{kind}_quarantine") == MORE - 1


def test_what_is_approved_goes_on(shifted: Shifted) -> None:
    where = ("--warehouse", str(shifted.jobs.warehouse), "--contracts", str(shifted.jobs.folder / "contracts"))
    told = shifted.jobs.command("schema", "diff", *where, "--json")
    waiting = {one["table"] for one in told.json["differences"]}
    assert waiting == shifted.suspended
    plain = [name for name in sorted(waiting) if "_key_" not in name and "_rename_" not in name]
    dry = shifted.jobs.command("schema", "approve", *plain, *where, "--dry-run")
    assert "Nothing was changed" in dry.out
    for names in (plain, *[[name, "--rename", "name=called"] for name in sorted(waiting) if "_rename_" in name]):
        done = shifted.jobs.command("schema", "approve", *names, *where, "--yes")
        assert done.code == 0, done.out + done.err
    refused = shifted.jobs.command("schema", "approve", "mysql_key_suspend", *where, "--yes")
    assert (refused.code, "a table of another key is another table" in refused.err) == (2, True)
    with measured("48 tables: once approved"):
        ended = shifted.jobs.run("silver")
    assert {name for name in waiting if _is_said(name, ended)} == {name for name in waiting if "_key_" in name}
    for server in SERVERS:
        for kind in KINDS:
            if kind not in ("key", "rename"):
                shifted.require_equal(server, f"{kind}_suspend")
        # The column keeps its name, and has the values of both.
        wanted = shifted.source(server, "rename_suspend", "id", "line", "called AS name", "amount", "large", "touched")
        assert shifted.silver(server, "rename_suspend") == wanted
    verified = shifted.jobs.run("verify")
    assert json.loads(verified.out)["exit_code"] in (0, 3), verified.out + verified.err
