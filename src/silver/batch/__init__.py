"""One batch of a feed in Spark: decoded, placed, folded to one change a key, and merged; the rest is derived again.

Everything here is a function of the batch, the table and bronze; `silver.source_batch` reads and writes."""
