"""What the layers share of erasure: which records and keys were erased, and the files that may still have them."""
