"""The reference decoder: what a record states, in whichever shape it came, value by value."""
