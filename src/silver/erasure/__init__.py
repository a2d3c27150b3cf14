"""Erasure of rows that the source has deleted: which records are theirs, and their rows of silver."""
