"""Estimates advantages, one algorithm in each module: how good a score is compared with others.

Always true: an estimator sees only scored rollouts (`estimator.estimate_scored`), so a failed one gets 0 and affects no
other. A rollout that has nothing to be compared with, because its siblings failed, gets 0 and not its score.
"""
