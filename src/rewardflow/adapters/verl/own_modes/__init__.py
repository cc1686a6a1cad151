"""What rewardflow adds to verl's own trainer modes: a sampler that drops failed verdicts and reports metrics."""
