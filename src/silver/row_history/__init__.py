"""The history of rows (`scd_type: 2`): every version that a key's row has had, and from when to when it held.

The same events as the fold, with another result. `sequence` and `versions` are pure; `table` writes.
"""
