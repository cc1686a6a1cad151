"""Compares training on padded rows with training on rows that follow one another."""
