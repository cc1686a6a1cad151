"""Records what happens in a run: events, its directory, files of JSON lines, totals, redaction, private files."""
