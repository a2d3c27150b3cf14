"""What an erased record of bronze is known by. Imports without pyspark."""

# The header of a bronze row whose record was erased: JSON of what order needs of it (silver.decode.reference.erased).
ERASED_HEADER = "__lakehouse.erased"
# The Spark type of a record's headers.
HEADERS = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
