"""Benchmarks, one readable file each, and the runner that scores any judge on any of them."""
