"""Trainer mode `rewardflow` of verl's v1 trainer: the code for its driver and its workers."""
