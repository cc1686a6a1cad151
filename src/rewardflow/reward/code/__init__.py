"""The user's reward code: how it is found, called, run in threads or processes, and read."""
