"""The teacher stage: ask, check against the label, keep, tag the difficulty."""
