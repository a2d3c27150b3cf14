"""`lakehouse forget`: a row erased from every layer, and the search that proves it."""
