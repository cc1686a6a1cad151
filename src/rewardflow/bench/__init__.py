"""Benchmarks: each compares with a bound that is computed, or with a yardstick that runs beside it."""
