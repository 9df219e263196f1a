"""A judge behind HTTP."""
