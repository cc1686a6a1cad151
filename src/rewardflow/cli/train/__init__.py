"""`rewardflow train`: the command, its live view and its closing report."""
