"""The files of a finished run, by name."""

VOTES, REPORT, SCORES, OFFICIAL = "votes.jsonl", "report.json", "scores.jsonl", "official.jsonl"
REFUSED_FIELDS = "refused_fields.json"  # of a request, by the judge's endpoint
PARTIAL_VOTES = "votes.partial.jsonl"  # of rows that lack some, while a run is not finished
