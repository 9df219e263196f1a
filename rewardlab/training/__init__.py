"""Thin adapters on TRL, accelerate and peft."""
