"""Contracts proposed from a sample of a topic: sample, records, guesses, and the YAML made of them."""
