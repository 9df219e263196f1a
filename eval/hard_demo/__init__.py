"""The harder demonstration: nine cells, a third attribute, questions of three steps, and digits under noise."""
