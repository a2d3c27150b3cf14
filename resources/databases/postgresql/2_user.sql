-- The user that the connectors are: it may replicate, read the tables that they read, and write signals. Nothing else.
-- Can be run again: the password is then set anew.
--
-- Run it as a superuser (to grant REPLICATION), after 1_tables.sql, with a psql of PostgreSQL 15 or later:
--   DEBEZIUM_POSTGRES_PASSWORD=... psql -v ON_ERROR_STOP=1 -d ecommerce -f 2_user.sql
--
-- The name is debezium_user; for another: -v debezium_user=NAME, and the bundle's variable postgres_user.

\if :{?debezium_user}
\else
    \set debezium_user debezium_user
\endif
\getenv debezium_password DEBEZIUM_POSTGRES_PASSWORD
\if :{?debezium_password}
\else
    DO $$ BEGIN RAISE EXCEPTION 'Set DEBEZIUM_POSTGRES_PASSWORD in the environment of psql.'; END $$;
\endif

SELECT format('CREATE ROLE %I', :'debezium_user')
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'debezium_user') \gexec

-- The server's log must not have the password: log_statement = ddl would write it down.
BEGIN;
SET LOCAL log_statement = 'none';
SET LOCAL log_min_error_statement = 'panic';
ALTER ROLE :"debezium_user" LOGIN REPLICATION PASSWORD :'debezium_password';
COMMIT;

SELECT format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), :'debezium_user') \gexec
GRANT USAGE ON SCHEMA public TO :"debezium_user";
GRANT SELECT ON public.orders, public.outbox_events TO :"debezium_user";
-- Incremental snapshots open and close a window around each piece that they read, by rows of this table.
GRANT SELECT, INSERT ON public.debezium_signal TO :"debezium_user";
