"""Rollout engines: they take prompts and yield responses one by one, with the log-probs of the sampled tokens."""
