"""Benchmarks: each compares a figure with a computed bound, or with a yardstick that runs on the same machine."""
