"""Contracts: what the YAML files declare, as frozen typed models; every mistake has a file, a line and a key.

Imports without pyspark."""
