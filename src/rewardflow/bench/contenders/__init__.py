"""Programs that train the same workload, each in its own process: ours, TRL and verl.

Always true: the programs of TRL and verl import nothing of rewardflow but this package, so that they run in any
environment that has their library and orjson.
"""
