"""What a reward pays, and to whom: probes of responses that must earn nothing."""
