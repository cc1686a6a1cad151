"""What a run was like, from the files of its directory: one HTML page, a comparison of two runs, a trace."""
