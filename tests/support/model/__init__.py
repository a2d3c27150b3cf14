"""Random histories of a table, told as Debezium tells them, and what the table holds in the end.

Read it in this order:

    history       what comes out, and the names of all things that a history can contain
    table         the rows, and what statements do to them
    log           the database's log: where each change stands (postgres_log, mysql_log: the two kinds)
    connector     reads the log in runs and says what it read: snapshots, changes, replays
    broker        the topic: partitions, offsets, records lost in a crash, compaction
    stories       what happens, in which order: random, but with everything that was asked for
    batches       cuts the records of a history into batches
    reader        reads a whole topic by the rules of the order, in plain Python: a check of the model
"""
