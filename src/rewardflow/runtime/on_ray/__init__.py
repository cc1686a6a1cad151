"""A run on a Ray cluster: the same loop in this process, with ranks and generators as actors."""
