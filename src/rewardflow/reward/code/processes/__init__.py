"""Runs reward code in child processes, which can be killed and answer with plain data only."""
