"""How rollouts are made: whole, truncated, as a dialogue, by an engine; and which prompts they answer."""
