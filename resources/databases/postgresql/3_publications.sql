-- What the connectors are told of: one publication each. They do not make them (publication.autocreate.mode=disabled),
-- so their user need own nothing. Can be run again: what is there stays.
--
-- Run it as the owner of the tables, who needs CREATE on the database, after 1_tables.sql:
--   psql -v ON_ERROR_STOP=1 -d ecommerce -f 3_publications.sql
--
-- Before a connector starts for the first time: a slot tells only what was published when it happened.

SELECT 'CREATE PUBLICATION debezium_outbox FOR TABLE public.outbox_events'
WHERE NOT EXISTS (SELECT FROM pg_publication WHERE pubname = 'debezium_outbox') \gexec

-- TRUNCATE is among what a publication tells by default. Signals come the same way.
SELECT 'CREATE PUBLICATION debezium_tables FOR TABLE public.orders, public.debezium_signal'
WHERE NOT EXISTS (SELECT FROM pg_publication WHERE pubname = 'debezium_tables') \gexec
