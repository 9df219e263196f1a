"""One file per public source of pairs, each with ``load() -> Iterator[PreferencePair]``; they import rewardlab, never the reverse."""
