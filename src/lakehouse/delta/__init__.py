"""Delta tables: the warehouse, its versions and logs, and the lease of a shared store."""
