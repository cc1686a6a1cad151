"""`rewardflow verl`: translates a command line, checks it before anything starts, and calls verl's main."""
