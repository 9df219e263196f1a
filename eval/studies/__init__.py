"""Controlled experiments on the training methods: one file per question, run by ``python -m eval.studies``."""
