"""Pipelines: command lines that build on each other, above the command line."""
