"""Verifiers that need more than rules: mathematics, by math-verify in processes that can be killed."""
