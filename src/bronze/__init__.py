"""Bronze: the raw change events of every source, exactly as Kafka had them."""
