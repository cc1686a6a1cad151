"""`rewardflow demo`: the command, the judge it asks and its closing report."""
