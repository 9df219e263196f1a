"""What a rollout is paid: the reward of a judgment, of a response under a judge, and of an answer that a rule can check."""
