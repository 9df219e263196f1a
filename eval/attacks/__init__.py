"""Parts of `eval/serving_attacks.py`: an endpoint that is watched, the attacks, requests with changed bytes, poison."""
