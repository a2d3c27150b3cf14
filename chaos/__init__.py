"""Faults at random on the real stack, and whether everything is right afterwards: `make chaos SEED=1 ROUNDS=20`."""
