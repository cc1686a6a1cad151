"""One reward agent for many processes and training runs: a service's limits hold for all of them together.

Both sides
  spec.py           describes the agent: named rewards and settings, which can be sent and compared
  messages.py       the messages between client and host, and how rollouts and rewards are packed
  deliveries.py     verdicts and events that a client has not confirmed, and how it recognises what it has

The client, in a process of a run: the same agent as `RewardAgent`, whose calls the host makes
  client.py         `SharedAgent`: tickets, groups and statistics come from `reward/`
  remote_calls.py   makes the calls of its jobs at the host: sends them in batches, resolves them with verdicts
  connection.py     the connection to a host: retries, reconnects, and the `Transport` protocol

The host, in the agent's process
  host.py           serves clients with one agent
  host_clients.py   the connected clients: leases, polls, requested serial numbers
  samples.py        which clients want which verdict, and how many bytes each run has waiting
  service.py        a host that is opened on the first request, and again after a halt

There are two ways in, which carry the same messages
  ray_actor.py      the host as a named, detached Ray actor, and the transport to it
  rewardflow.serve  the host behind HTTP, and the transport to it
"""
