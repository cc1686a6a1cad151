"""Programs that train the same workload, each in a process of its own: ours, TRL and verl.

Always true: another's program imports nothing of ours but this package, so that it runs in any environment that has its
library and orjson.
"""
