"""Records what happens in a run: events, the run directory, files of JSON lines, totals, redaction, and private files."""
