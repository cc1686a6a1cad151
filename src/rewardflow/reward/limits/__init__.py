"""Governors: decide when the next call may start, and at which endpoint, by pace, concurrency, breakers and money."""
