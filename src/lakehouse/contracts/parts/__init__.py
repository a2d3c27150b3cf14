"""What models of contracts are made of: their base, names, and types of columns."""
