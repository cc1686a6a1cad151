"""Rollout engines: prompts go in, responses come out one by one, with the log-probs they were sampled under."""
