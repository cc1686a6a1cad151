"""Turns rollouts into jobs, and verdicts into complete groups."""
