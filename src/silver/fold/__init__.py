"""The fold: from the set of a key's events to its row, column by column.

Pure functions over Arrow and Polars; no Spark. What an event's position is, `silver.order` says.
"""
