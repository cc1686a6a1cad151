"""Serves the reports of runs while they go on."""
