"""The journal: saves every paid verdict on disk before it is delivered, under a key that survives restarts."""
