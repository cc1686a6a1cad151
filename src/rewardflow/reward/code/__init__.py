"""Finds the user's reward code, runs it on the loop, in threads or in processes, and reads its results."""
