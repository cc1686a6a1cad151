"""Records what happens in a run: events, the run directory, files of JSON lines, totals, and redaction."""
