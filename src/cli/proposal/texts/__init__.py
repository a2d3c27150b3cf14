"""A proposal as YAML, and as it is shown."""
