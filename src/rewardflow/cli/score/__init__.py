"""`rewardflow score`: the command, its scoring loop and its closing report."""
