"""`rewardflow report` and `rewardflow watch`: the pages of runs, as files and served."""
