"""Rewards of answers that a rule can check: extraction, numbers, mathematics, and who pays where no rule can."""
