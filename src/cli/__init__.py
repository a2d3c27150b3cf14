"""The `lakehouse` command."""
