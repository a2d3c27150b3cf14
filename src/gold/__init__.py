"""Gold: unified orders of all sources, and the topic that BigQuery loads."""
