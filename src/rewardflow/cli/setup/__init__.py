"""Commands for the first minutes: files of a new run, and completion in the shell."""
