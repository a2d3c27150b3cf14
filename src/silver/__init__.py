"""Silver: one table a feed, equal to the source table, made from the change events in bronze."""
