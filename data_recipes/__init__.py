"""One file per public source of pairs, each with ``load() -> Iterator[PreferencePair]``.

They import rewardlab, never the reverse.
"""
