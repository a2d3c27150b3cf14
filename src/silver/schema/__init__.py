"""The schemas of messages, and what their changes mean for a batch."""
