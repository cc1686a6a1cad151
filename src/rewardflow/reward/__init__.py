"""The reward agent and its parts: groups of rollouts, calls, limits, the user's code and the journal."""
