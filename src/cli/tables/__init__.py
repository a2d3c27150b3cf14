"""Commands about what the tables hold: verify, quality, quarantine, offsets, optimize, purge."""
