"""`rewardflow chaos`: a campaign against the agent with a hostile server, kills, a full disk and random budgets."""
