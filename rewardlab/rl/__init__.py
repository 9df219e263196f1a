"""Pure functions of tensors. Read ``reference.py`` first: one whole step, top to bottom."""
