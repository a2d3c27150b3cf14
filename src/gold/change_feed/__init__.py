"""What has changed: the keys and rows in the change data feeds of silver and of gold."""
