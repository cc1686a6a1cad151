"""A run's rollouts on its page: a sample, and a search in the newest."""
