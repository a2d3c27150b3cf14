"""Tables that are made by a rule (`by_rule` of bronze/topics.yaml): from what their events and their database say."""
