"""The tables of the stories, as each database declares them, and rows to write into them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from demo.stack.database import Database

# Tables of one story each, all with the columns of orders. What is the same in MariaDB and MySQL is told in MySQL.
STORIES: Mapping[str, Sequence[str]] = {
    "postgresql": (
        *("life", "emptied", "large_default", "large_full", "grown"),
        *("opened", "crashed", "again", "signalled"),
    ),
    "mysql": ("life", "emptied", "grown", "opened", "crashed", "again", "signalled"),
    "mariadb": ("life", "emptied", "crashed", "again"),
}
# Its rows say that everything before them was told.
FINISHED = "finished"
TYPES = "orders_types"
SIGNALS = "debezium_signal"
COLUMNS = (
    "order_id",
    "customer_id",
    "product_id",
    "status",
    "total_amount",
    "created_at",
    "updated_at",
    "note",
)
OF_TYPES: Mapping[str, str] = {
    "postgresql": """order_id BIGINT PRIMARY KEY, d10_2 DECIMAL(12,4), d38_10 DECIMAL(38,10), dnum NUMERIC,
        dbl DOUBLE PRECISION, ts0 TIMESTAMP(0), ts3 TIMESTAMP(3), ts6 TIMESTAMP(6), tstz TIMESTAMPTZ, dt DATE, tm TIME,
        iv INTERVAL, bl BOOLEAN, uid UUID, js JSONB, bin BYTEA, arr INT[]""",
    "mysql": """order_id BIGINT PRIMARY KEY, d10_2 DECIMAL(12,4), d38_10 DECIMAL(38,10), dnum DECIMAL(65,30),
        dbl DOUBLE, ts0 DATETIME(0), ts3 DATETIME(3), ts6 DATETIME(6), tstz TIMESTAMP(6) NULL, dt DATE, tm TIME(6),
        yr YEAR, bl TINYINT(1), ubi BIGINT UNSIGNED, js JSON, bin VARBINARY(64), en ENUM('a','b'),
        st SET('x','y','z')""",
}
ROWS_OF_TYPES: Mapping[str, Sequence[str]] = {
    "postgresql": (
        """1, 12.3456, 9999999999999999999999999999.9999999999, 123456789.987654321, 0.1, '2024-02-29 12:34:56',
        '2024-02-29 12:34:56.789', '2024-02-29 12:34:56.789012', '2024-02-29 12:34:56.789012+05:30', '2024-02-29',
        '23:59:59.999999', '1 year 2 mons 3 days 04:05:06.789', true, '00000000-0000-0000-0000-000000000001',
        '{"a": [1.50, null, "ü"], "b": 1}', '\\x00ff10', '{1,NULL,3}'""",
        "2" + ", NULL" * 16,
        """3, 0, 0.0000000001, -100000000000000000000, 1e308, '1969-12-31 23:59:59', '9999-12-31 23:59:59.999',
        '1969-12-31 23:59:59.999999', '1900-01-01 00:00:00+00', '0001-01-01', '00:00:00', '-1 mons', false, NULL,
        'null', '\\x', '{}'""",
        """5, -1.5, -0.0000000001, 123456789012345678901234567890.5, '-Infinity', NULL, NULL, '0044-03-15 00:00:00 BC',
        NULL, '0001-01-02', NULL, NULL, NULL, NULL, NULL, NULL, NULL""",
    ),
    "mysql": (
        """1, 12.3456, 9999999999999999999999999999.9999999999, 123456789.987654321, 0.1, '2024-02-29 12:34:56',
        '2024-02-29 12:34:56.789', '2024-02-29 12:34:56.789012', '2024-02-29 07:04:56.789012', '2024-02-29',
        '838:59:59', 2024, 1, 18446744073709551615, '{"a": [1.5, null, "ü"], "b": 1}', x'00FF10', 'b', 'x,z'""",
        "2" + ", NULL" * 17,
        """3, 0, 0.0000000001, -100000000000000000000, 1e308, '1969-12-31 23:59:59', '9999-12-31 23:59:59.999',
        '1969-12-31 23:59:59.999999', '1970-01-01 00:00:01', '1000-01-01', '-838:59:59', 1901, 0, 0, 'null', '', NULL,
        ''""",
    ),
}


@dataclass(frozen=True)
class Dialect:
    """What differs between the databases. `kind` as contracts have it, `namespace` as topics name it."""

    kind: str
    namespace: str
    time: str = "TIMESTAMP(6) NULL"
    text: str = "LONGTEXT"
    grant: str = "GRANT SELECT ON ecommerce.* TO 'debezium_user'@'%'"

    @property
    def stories(self) -> Sequence[str]:
        """The tables of its stories."""
        return STORIES[self.kind]

    def create(self, database: Database) -> None:
        """Every table of the stories, empty."""
        for table in (*self.stories, FINISHED):
            database.execute(
                f"CREATE TABLE {table} (order_id BIGINT PRIMARY KEY, customer_id BIGINT NOT NULL, product_id BIGINT,"
                " status VARCHAR(32) NOT NULL DEFAULT 'pending', total_amount DECIMAL(10,2),"
                f" created_at {self.time}, updated_at {self.time}, note {self.text})"
            )

    def log_versions(self, table: str) -> Sequence[str]:
        """Statements that let triggers write every version of the table's rows into `<table>_log`, in their order."""
        number = "BIGINT AUTO_INCREMENT PRIMARY KEY" if self.kind != "postgresql" else "BIGSERIAL PRIMARY KEY"
        log = f"{table}_log"
        create = (
            f"CREATE TABLE {log} (number {number}, order_id BIGINT, is_deleted BOOLEAN, status VARCHAR(32),"
            f" total_amount DECIMAL(10,2), note {self.text})"
        )
        into = f"INSERT INTO {log} (order_id, is_deleted, status, total_amount, note)"
        now = f"{into} VALUES (NEW.order_id, FALSE, NEW.status, NEW.total_amount, NEW.note);"
        gone = f"{into} SELECT OLD.order_id, TRUE, NULL, NULL, NULL"
        is_moved = "WHERE OLD.order_id <> NEW.order_id;"
        if self.kind == "postgresql":
            body = (
                f"IF TG_OP = 'DELETE' THEN {gone}; ELSE IF TG_OP = 'UPDATE' THEN {gone} {is_moved} END IF; {now}"
                " END IF; RETURN NULL;"
            )
            return (
                create,
                f"CREATE FUNCTION {log}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$",
                f"CREATE TRIGGER {log} AFTER INSERT OR UPDATE OR DELETE ON {table}"
                f" FOR EACH ROW EXECUTE FUNCTION {log}()",
            )
        return (
            create,
            f"CREATE TRIGGER {log}_i AFTER INSERT ON {table} FOR EACH ROW {now}",
            f"CREATE TRIGGER {log}_u AFTER UPDATE ON {table} FOR EACH ROW BEGIN {gone} FROM DUAL {is_moved} {now} END",
            f"CREATE TRIGGER {log}_d AFTER DELETE ON {table} FOR EACH ROW {gone}",
        )


POSTGRESQL = Dialect(
    "postgresql",
    "public",
    time="TIMESTAMP(6)",
    text="TEXT",
    grant="GRANT SELECT ON ALL TABLES IN SCHEMA public TO debezium_user",
)
MYSQL = Dialect("mysql", "ecommerce")
MARIADB = Dialect("mariadb", "ecommerce")


def insert(table: str, ids: Iterable[int], *, status: str = "pending", note: str = "NULL") -> str:
    """One statement for several rows; what is in them follows from the id."""
    rows = [
        f"({number}, {number % 97}, NULL, '{status}', {number % 1000}.{number % 100:02}, '2024-05-01 12:00:00.123456',"
        f" NULL, {note})"
        for number in ids
    ]
    return f"INSERT INTO {table} ({', '.join(COLUMNS)}) VALUES {', '.join(rows)}"
