"""Reports on a run from the files of its directory: one HTML page, a comparison of two runs, or a trace."""
