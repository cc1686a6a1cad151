"""Trainer mode `rewardflow` of verl's v1 trainer: what runs in its driver and its workers."""
