"""Measurements that are read by people, not asserted by tests: their figures depend on the machine."""
