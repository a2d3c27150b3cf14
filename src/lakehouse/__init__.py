"""What the layers share and none of them owns: contracts, errors, session, tables, Kafka, quality, reports."""
