"""Commands about the tables: verify, quality, quarantine, offsets, optimize, purge, unlock."""
