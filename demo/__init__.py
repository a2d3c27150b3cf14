"""The demo: a Kafka broker of its own, recorded change events, and the jobs of the bundle run over them."""
