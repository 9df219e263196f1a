"""The policy-gradient methods on TRL: trainer, advantages and loss, critic."""
