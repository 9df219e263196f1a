"""Parts of `eval/rehearsal.py`: the data, the instruments within a run, what is read off it, TRL's own trainers."""
