"""Parts of `eval/newcomer.py`: eyes that read a drawn scene, a server that judges by them, sets in many forms, the cures."""
