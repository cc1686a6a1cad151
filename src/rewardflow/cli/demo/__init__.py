"""`rewardflow demo`: training with a slow judge, and `demo agent`, the reward agent alone."""
