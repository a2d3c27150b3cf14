-- The outbox and the table for signals, in the database ecommerce.
-- Needs MySQL 8.0.13: see the other file for older ones.
-- Can be run again: what is there stays.
--
-- Run it as the user that owns the database:
--   mysql < 1_tables.sql
--
-- ecommerce.orders is the application's own table, and is not made here.

USE ecommerce;

CREATE TABLE IF NOT EXISTS outbox_events (
    id CHAR(36) NOT NULL DEFAULT (UUID()),
    -- Becomes the end of the topic's name: `orders` goes to outbox.event.mysql.orders.
    aggregatetype VARCHAR(255) NOT NULL,
    -- Becomes the key: events of one aggregate stay in order.
    aggregateid VARCHAR(255) NOT NULL,
    -- Becomes the header eventType.
    type VARCHAR(255) NOT NULL,
    payload JSON NOT NULL,
    -- With microseconds; Debezium sends it as text, in UTC.
    created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    PRIMARY KEY (id),
    INDEX idx_created_at (created_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- A row here starts an incremental snapshot; docs/connect.md. The connector itself writes here, too.
CREATE TABLE IF NOT EXISTS debezium_signal (
    id VARCHAR(42) NOT NULL,
    type VARCHAR(32) NOT NULL,
    data VARCHAR(2048),
    PRIMARY KEY (id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
