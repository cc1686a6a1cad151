"""What happened in a run: events, the run directory, files of JSON lines, totals, and redaction."""
