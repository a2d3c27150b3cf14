"""Checks of connectors: of each, and between them."""
