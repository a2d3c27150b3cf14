"""Real databases, Kafka Connect and Debezium on free ports of loopback, for `make demo-live` and `make live`."""
