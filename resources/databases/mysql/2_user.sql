-- The user that the connectors are: it may replicate, read the tables that they read, and write signals. Nothing else.
-- Can be run again: the password is then set anew.
--
-- Run it as an administrator, after the tables, with the password in a variable of the session, so that it stands in no
-- file and in no list of processes:
--   { printf "SET @debezium_password = '%s';\n" "$DEBEZIUM_MYSQL_PASSWORD"; cat 2_user.sql; } | mysql
-- (a password without ' and \). Without the variable it ends with a syntax error near NULL.

SET @create = CONCAT('CREATE USER IF NOT EXISTS ''debezium_user''@''%'' IDENTIFIED BY ', QUOTE(@debezium_password));
SET @create = IF(@debezium_password IS NULL, NULL, @create);
PREPARE create_user FROM @create;
EXECUTE create_user;
DEALLOCATE PREPARE create_user;
SET @alter = CONCAT('ALTER USER ''debezium_user''@''%'' IDENTIFIED BY ', QUOTE(@debezium_password));
PREPARE alter_user FROM @alter;
EXECUTE alter_user;
DEALLOCATE PREPARE alter_user;
SET @debezium_password = NULL, @create = NULL, @alter = NULL;

-- The binlog belongs to the whole server, so these do too. RELOAD: a snapshot takes the global read lock for a moment
-- (snapshot.locking.mode=minimal).
GRANT RELOAD, SHOW DATABASES, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'debezium_user'@'%';
-- Where a hosted server refuses the global lock, the snapshot locks the tables instead.
GRANT LOCK TABLES ON ecommerce.* TO 'debezium_user'@'%';
GRANT SELECT ON ecommerce.orders TO 'debezium_user'@'%';
GRANT SELECT ON ecommerce.outbox_events TO 'debezium_user'@'%';
-- Incremental snapshots open and close a window around each piece that they read, by rows of this table.
GRANT SELECT, INSERT ON ecommerce.debezium_signal TO 'debezium_user'@'%';
-- A whole database of another name needs one more grant: docs/connect.md.
