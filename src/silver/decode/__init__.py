"""Records into events, in plain Python: bytes in, a change or a reason out, for any bytes whatever.

`explain` is the definition: every shape that Debezium and its transforms give a record, every declared type, every
reason for quarantine. `typed` is made from a contract and reads the records that are just as declared, several times as
fast; what it does not take goes to `explain`, and what it takes, `explain` reads the same. `arrow` and `arrays` alone
know Arrow.

Nothing here imports pyspark, nothing raises for what a record holds, and no message has a value in it.
"""
