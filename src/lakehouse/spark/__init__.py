"""Spark and Delta: the session, the tables of the warehouse, and who may work on them."""
