"""Support of the tests on real databases and connectors."""
