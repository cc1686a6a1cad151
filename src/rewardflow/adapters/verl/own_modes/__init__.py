"""A sampler for verl's own trainer modes: measures the judging there, and leaves out groups with too few verdicts."""
