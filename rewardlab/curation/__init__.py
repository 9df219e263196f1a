"""From sources to sets: built, cleaned, balanced, split, looked at."""
