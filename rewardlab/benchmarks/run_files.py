"""The files of a finished run, by name."""

VOTES, REPORT, SCORES, OFFICIAL = "votes.jsonl", "report.json", "scores.jsonl", "official.jsonl"
