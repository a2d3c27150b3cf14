"""The published topics: what is pending for them, its records, and sending these."""
