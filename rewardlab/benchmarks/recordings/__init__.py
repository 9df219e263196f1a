"""Recordings in the forms of other tools, as ``--judge replay:FILE`` takes them."""
