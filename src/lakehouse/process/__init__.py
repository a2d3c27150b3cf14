"""The process that runs: its signals, its lock, its progress, and what it prints."""
