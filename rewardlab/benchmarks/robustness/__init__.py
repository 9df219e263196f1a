"""Robustness: how often an attack wins, or turns a judgment that was right without it (``NAME:attacked``)."""
