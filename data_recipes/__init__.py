"""One file per public source of pairs, each with its ``RECIPE``: facts about the source, and a row's way to pairs.

They import rewardlab, never the reverse. ``rewardlab data build NAME --from FOLDER --out DIR`` runs one; so does a file of your
own with a ``RECIPE`` in it. Every one holds what was found out about the columns; columns could not be checked against the
files themselves where this was written, so that a row of another shape is listed as bad, with what was missing.
"""
