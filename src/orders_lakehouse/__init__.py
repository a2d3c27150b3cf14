"""The distribution by its own name: `python -m orders_lakehouse` is `lakehouse`."""
