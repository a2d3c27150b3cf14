"""What is read: tables, broker, Kafka Connect and databases. Each module asks one of them, and judges nothing."""
