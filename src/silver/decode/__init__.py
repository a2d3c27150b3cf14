"""Records into events, in plain Python: bytes in, a change or a reason out, for any bytes whatever.

`explain` is the definition: every shape that Debezium and its transforms give a record, every declared type, every
reason for quarantine; `wrapper` and `avro` take off what is around a message. `typed` and `typed_avro` are made from a
contract and read the records that are just as declared, several times as fast; what they do not take goes to `explain`,
and what they take, `explain` reads the same. `arrow` does that for batches; with `arrays`, `records`, `metadata` and
`avro_columns` it alone knows Arrow.

Nothing here imports pyspark, nothing raises for what a record holds, and no message has a value in it.
"""
