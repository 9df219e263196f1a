"""What differs between model families, and how models are loaded, cut into batches and given a value head."""
