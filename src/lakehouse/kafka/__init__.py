"""Kafka: how the broker is reached, what it says of topics and offsets, and what is read from it and sent to it."""
