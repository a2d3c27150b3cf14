"""The cases of the laws, and the one warehouse in which they are played."""
