-- The outbox and the table for signals, in schema public of the database that the connectors read.
-- Can be run again: what is there stays.
--
-- Run it as the user that owns the tables of the application, in their database:
--   psql -v ON_ERROR_STOP=1 -d ecommerce -f 1_tables.sql
--
-- public.orders is the application's own table, and is not made here.

CREATE TABLE IF NOT EXISTS public.outbox_events (
    id UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    -- Becomes the end of the topic's name: `orders` goes to outbox.event.postgres.orders.
    aggregatetype VARCHAR(255) NOT NULL,
    -- Becomes the key: events of one aggregate stay in order.
    aggregateid VARCHAR(255) NOT NULL,
    -- Becomes the header eventType.
    type VARCHAR(255) NOT NULL,
    payload JSONB NOT NULL,
    -- UTC without a zone: Debezium sends it as microseconds.
    created_at TIMESTAMP(6) NOT NULL DEFAULT (now() AT TIME ZONE 'UTC')
);
CREATE INDEX IF NOT EXISTS idx_outbox_events_created_at ON public.outbox_events (created_at);

-- The whole old row in the WAL. The EventRouter needs no old row: it is for those who read the table without it.
ALTER TABLE public.outbox_events REPLICA IDENTITY FULL;

-- A row here starts an incremental snapshot; docs/connect.md. The connector itself writes here, too.
CREATE TABLE IF NOT EXISTS public.debezium_signal (
    id VARCHAR(42) PRIMARY KEY,
    type VARCHAR(32) NOT NULL,
    data VARCHAR(2048)
);
