"""From rollouts to jobs, and from verdicts to complete groups."""
