-- A procedure that removes old rows of the outbox in batches, each a transaction of its own, and an event that calls it
-- every day (event_scheduler = ON).
--
-- Run it as the user that owns the database, who needs CREATE ROUTINE, ALTER ROUTINE and EVENT on it:
--   mariadb < 3_remove_old_outbox_rows.sql
-- By hand; rows older than 7 days, 5,000 at a time:
--   mariadb ecommerce -e 'CALL remove_old_outbox_events(7, 5000)'
--
-- The connector is told of the deletes too, and its EventRouter drops them: no record comes of one, and silver forgets
-- nothing. An event that was inserted stays in the binlog, whether its row is still there or not. Only a new snapshot
-- reads the table itself: it tells again just the rows that are left. So keep them for longer than a connector may be
-- broken.

USE ecommerce;

DROP PROCEDURE IF EXISTS remove_old_outbox_events;

DELIMITER //
CREATE PROCEDURE remove_old_outbox_events(IN days INT, IN batch INT)
MODIFIES SQL DATA
BEGIN
    DECLARE removed INT DEFAULT 1;
    IF days IS NULL OR days < 1 OR batch IS NULL OR batch < 1 THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'days and batch must be 1 or more';
    END IF;
    WHILE removed > 0 DO
        DELETE FROM outbox_events WHERE created_at < NOW(6) - INTERVAL days DAY ORDER BY created_at LIMIT batch;
        SET removed = ROW_COUNT();
    END WHILE;
END //
DELIMITER ;

CREATE EVENT IF NOT EXISTS remove_old_outbox_events
ON SCHEDULE EVERY 1 DAY
DO CALL remove_old_outbox_events(7, 5000);
