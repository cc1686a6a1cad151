"""Estimators of advantages, one idea to a module: what a score is worth beside other scores.

Always true: an estimator sees scored rollouts alone (`scored.estimate_scored`), so a failed one gets 0 and has no say.
Where there is nothing to compare a rollout with, because its siblings failed, its advantage is 0 and not its score.
"""
