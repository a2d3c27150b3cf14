"""What only bronze knows: earlier records, and rows derived again from all their events."""
