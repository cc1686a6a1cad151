"""Commands for the first minutes: files of a new run, data in the layout for training, completion in the shell."""
