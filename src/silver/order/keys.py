"""Keys that were changed into one another are folded together: a row may have values that its previous keys stated."""

from __future__ import annotations

from collections.abc import Iterable

# The topic, where a feed is sharded (else empty), and the Kafka key as text.
Key = tuple[str, str]


def groups(changed: Iterable[tuple[Key, Key]]) -> dict[Key, str]:
    """Of each of these keys, the key text that stands for all that it was changed from or to, over many changes too.

    `changed`: a key, and another one that it was changed from or to.
    """
    parent: dict[Key, Key] = {}

    def root(key: Key) -> Key:
        parent.setdefault(key, key)
        while parent[key] != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    for one, other in changed:
        lower, higher = sorted((root(one), root(other)))
        parent[higher] = lower
    return {key: root(key)[1] for key in parent}
