"""Governors: when the next call may start, and to which endpoint, by pace, concurrency, breakers and money."""
