"""What was read and what became of it: the audit of silver, and the proof that nothing is missing."""
