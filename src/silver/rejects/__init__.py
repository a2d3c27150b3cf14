"""Records that cannot be applied: the quarantine, decisions about its entries, and suspended tables."""
