"""Brings the parts of a run together: on one machine, in one process."""
