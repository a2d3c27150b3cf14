"""Connectors of Kafka Connect: filled in from the bundle's variables, checked, deployed, watched and moved.

Imports without pyspark.
"""
