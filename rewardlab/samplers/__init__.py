"""Who answers a prompt: a local checkpoint, an OpenAI-compatible endpoint, a script."""
