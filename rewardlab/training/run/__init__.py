"""A training run: its folder, resuming it, watching it, and the skeleton all stages share."""
