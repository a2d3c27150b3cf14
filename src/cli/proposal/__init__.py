"""Contracts proposed from a sample of a topic: sample, events, guesses, and the YAML made of them."""
