-- A procedure that removes old rows of the outbox, in batches that are committed one by one.
--
-- Run it as the owner of the table:
--   psql -v ON_ERROR_STOP=1 -d ecommerce -f 4_remove_old_outbox_rows.sql
-- Then every day, by cron or pg_cron; rows older than 7 days, 5,000 at a time:
--   psql -d ecommerce -c 'CALL public.remove_old_outbox_events(7, 5000)'
--
-- The connector is told of the deletes too, and its EventRouter drops them: no record comes of one, and silver forgets
-- nothing. An event that was inserted stays in the WAL until it was read, whether its row is still there or not. Only a
-- new snapshot reads the table itself: it tells again just the rows that are left. So keep them for longer than a
-- connector may be broken.

CREATE OR REPLACE PROCEDURE public.remove_old_outbox_events(days INTEGER, batch INTEGER)
LANGUAGE plpgsql AS $$
BEGIN
    IF days IS NULL OR days < 1 OR batch IS NULL OR batch < 1 THEN
        RAISE EXCEPTION 'days and batch must be 1 or more';
    END IF;
    LOOP
        DELETE FROM public.outbox_events
        WHERE id IN (
            SELECT id FROM public.outbox_events
            WHERE created_at < (now() AT TIME ZONE 'UTC') - make_interval(days => days)
            ORDER BY created_at
            LIMIT batch
            FOR UPDATE SKIP LOCKED
        );
        EXIT WHEN NOT FOUND;
        COMMIT;
    END LOOP;
END
$$;
