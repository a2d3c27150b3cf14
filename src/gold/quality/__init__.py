"""Gate 2: what silver and gold have to meet, and the proof that gold is what silver states."""
