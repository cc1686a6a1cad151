"""One reward agent for many processes and training runs: a service's limits hold for the sum of them.

spec.py        what the agent is: named rewards and settings, which can travel and be compared
messages.py    what goes between client and host, and how rollouts and rewards are packed
settled.py     which serial numbers are over
host.py        the agent's side: who asked for what, and who is told; knows no Ray
outbox.py      what a client is still to be told
lacking.py     groups that wait for rollouts which may never come
client.py      the run's side, with the face of `RewardAgent`; knows no Ray
record.py      what a client writes down of its run
service.py     a host with a loop of its own, opened when first asked and again after it halted
cluster.py     joining a Ray cluster, or a small one of our own
ray_actor.py   the host as a named, detached Ray actor, and the line to it
"""
