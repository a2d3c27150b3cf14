"""Quality: the rules of the gates, in Great Expectations' names, and how they came out."""
