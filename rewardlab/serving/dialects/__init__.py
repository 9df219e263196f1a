"""The HTTP formats in which other frameworks request rewards, one file each."""
