"""What the order of a source's changes means, in plain Python: nothing here imports pyspark or reads a table.

facts      what the records of a batch are, by topic-partition and connector run
runs       connector runs, their snapshots and coordinates, and what follows: epochs, replays, cutoffs
ranges     which offsets of bronze silver has read, and what it reads next, batch by batch
state      what silver knows of a source, and what a batch adds to it
history    both together, for a batch of one feed
positions  where every record of a batch is in its source's history
"""
