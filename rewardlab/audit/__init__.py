"""The reward audit: what each reward value looks like, and what earns a reward without deserving it."""
