"""A judge: the specification that names it, its votes on pairs, rankings and best-of-N."""
