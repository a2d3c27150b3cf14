"""Tables computed from gold and silver: marts and joins, each kept up with what has changed."""
