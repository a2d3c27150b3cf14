"""What the order of a source's changes means, in plain Python: nothing here imports pyspark or reads a table.

runs      connector runs, their snapshots and coordinates, and what follows: epochs, replays, cutoffs
state     what silver knows of a source, and what a batch adds to it
history   both together, for a batch of one feed
position  where one change stands
fold      what the records of a key lead to: the definition of silver
"""
