"""Helpers of the tests: recorded events as bronze rows, tables as plain Python."""
