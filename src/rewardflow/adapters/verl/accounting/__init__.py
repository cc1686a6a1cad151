"""Counts what became of samples, groups, steps and devices, for every trainer mode, and writes it to files."""
